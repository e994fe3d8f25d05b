"""Settings of how a task is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trellis.config import Config
from trellis.optimizers import OptimizationConfig
from trellis.tasks import LoraConfig

_COMPILED = "JAX compiles every step, and fuses the steps between two checkpoints"


@dataclass
class TrainerConfig(Config):
    """How long to train, and what to do how often."""

    optimizer_config: OptimizationConfig = OptimizationConfig()
    train_tf_while_loop: bool = True
    train_tf_function: bool = True
    eval_tf_function: bool = True
    eval_tf_while_loop: bool = False
    allow_tpu_summary: bool = False
    steps_per_loop: int = 1000
    """How often training metrics are reported."""
    summary_interval: int = 1000
    checkpoint_interval: int = 1000
    """How often a checkpoint file is written; 0 writes none, and then the run cannot be resumed."""
    max_to_keep: int = 5
    """How many checkpoint files stay."""
    continuous_eval_timeout: int | None = 3600
    """Seconds without a new checkpoint file after which `continuous_eval` says so; it waits up to `train_steps`."""
    train_steps: int = 0
    """The step at which training ends; 0 leaves it to `train_epochs`."""
    validation_steps: int = -1
    """Batches in an evaluation; -1 is all."""
    validation_interval: int = 1000
    best_checkpoint_export_subdir: str = ""
    """Where in `model_dir` the best checkpoint file goes; together with the metric this turns the export on."""
    best_checkpoint_eval_metric: str = ""
    """The metric that decides; a vertical bar goes into a group."""
    best_checkpoint_metric_comp: Literal["higher", "lower"] = "higher"
    loss_upper_bound: float = 1e6
    """A greater training loss has blown up."""
    recovery_begin_steps: int = 0
    """From which step the bound counts."""
    recovery_max_trials: int = 0
    """How often to go back to the last checkpoint file: 0 fails at once, less never looks."""
    validation_summary_subdir: str = "validation"
    preemption_on_demand_checkpoint: bool = True
    """Whether to save when the run is told to stop."""
    n_microbatches: int = 1
    """Into how many parts a batch is cut, to the same effect with less memory: gradient accumulation."""
    keep_gradients: bool = False
    """Whether checkpoints hold the gradients of their last step, so that the norm of these is reported as that of the
    weights is; for the memory of one more set of parameters."""
    lora: LoraConfig | None = None
    """Adapters that are trained in the place of the model's own weights; null trains these."""
    n_fused_steps: int | None = None
    """The most steps in one compiled call; null follows from the cost of a step, 1 fuses none."""
    train_epochs: float = 0.0
    """How often the training data is seen, if `train_steps` is 0."""
    early_stopping_steps: int = 0
    """For how many steps `best_checkpoint_eval_metric` may fail to improve before training ends; 0 is for ever."""
    blow_up_factor: float = 10.0
    """A training loss so many times the usual one, at three reports in a row, is told as a blow-up; 1 or less never is.
    """
    trackers: list[Literal["wandb", "mlflow", "trackio"]] = field(default_factory=list)
    """The services that track the run, each an extra of that name."""
    report_details: bool = False
    """Whether the screen shows every metric on a line of its own, norms and times too; the files have them anyway."""

    no_effect: ClassVar[Mapping[str, str]] = {
        "train_tf_while_loop": _COMPILED,
        "train_tf_function": _COMPILED,
        "eval_tf_function": _COMPILED,
        "eval_tf_while_loop": _COMPILED,
        "allow_tpu_summary": "summaries are written by the host on every platform",
    }

    @property
    def saves(self) -> bool:
        """Whether checkpoint files are written that a run can be resumed from."""
        return self.checkpoint_interval > 0

    @property
    def keeps_best(self) -> bool:
        """Whether the best checkpoint file is exported."""
        return bool(self.best_checkpoint_export_subdir and self.best_checkpoint_eval_metric)


@dataclass
class ProgressiveConfig(Config):
    """What the settings of a progressive policy inherit; their class says which policy it is."""


@dataclass
class ProgressiveTrainerConfig(TrainerConfig):
    """A trainer that goes through stages, each with its own model, optimizer and data."""

    progressive: ProgressiveConfig | None = None
    """Which stages there are."""
    export_checkpoint: bool = True
    """Whether to write checkpoint files that hold one stage's plain model."""
    export_checkpoint_interval: int | None = None
    """Null is `checkpoint_interval`."""
    export_max_to_keep: int | None = None
    """Null is `max_to_keep`."""
    export_only_final_stage_ckpt: bool = True
    """Whether stages before the last write none."""
