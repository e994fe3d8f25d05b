"""A stretch of a training: a task's two sides as the two loops that run it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import optax

from trellis.aliases import Batch, Key, PyTree, Variables
from trellis.data import SizedStream, is_stream
from trellis.errors import ArgumentError
from trellis.extensions import CheckpointFileReader, SkippedData, newest_file, restore_file
from trellis.loops import (
    Checkpoint,
    CheckpointSource,
    EvalLoop,
    EvalTask,
    Media,
    Metric,
    Outline,
    StepOutput,
    TrainLoop,
    TrainState,
    TrainTask,
    batch_size,
    check_as_before,
    is_traceable,
    overlaid,
    split_batch,
    traceable,
)
from trellis.optimizers import build_schedule
from trellis.runtime import Placement, Precision, RuntimeConfig, StepKeys
from trellis.tasks import (
    BASE,
    BoundModel,
    Lora,
    LoraConfig,
    Model,
    PeftTask,
    Task,
    WrappedModel,
    build_adapters,
    lasting_init,
    parameters_by_path,
    refused,
    results,
    with_parameters,
)
from trellis.trainer.configs import TrainerConfig
from trellis.trainer.default_extensions import on_averages
from trellis.trainer.task_calls import (
    build_task_metrics,
    build_task_model,
    build_task_optimizer,
    sort_logs,
    start_of,
)


@dataclass(eq=False, kw_only=True)
class Stage:
    """What a stretch of a training runs on, and its loops. A training that is not progressive is one stage."""

    task: Task
    model: Model
    initialize: Callable[[BoundModel], Variables]
    """From the model with its own variables to the variables before the first step."""
    build_train_data: Callable[[], Any]
    build_validation_data: Callable[[], Any]
    config: TrainerConfig
    """Its `train_steps` is where the stage ends."""
    runtime: RuntimeConfig
    placement: Placement
    model_dir: Path
    stage_id: int = 0
    """Its number, from 0 on."""
    start_step: int = 0
    """How many steps were completed before. Checkpoint files of this step and earlier ones are not of this stage."""
    periods: tuple[int, ...] = ()
    """The training loop yields a checkpoint at multiples of these."""
    is_shown: bool = True
    """Whether what happens is told on the screen."""

    def __post_init__(self) -> None:
        self._n_steps = self.config.train_steps - self.start_step
        self.optimizer = build_task_optimizer(
            self.task, config=self.config.optimizer_config, runtime=self.runtime, n_steps=self._n_steps or None
        )
        self.skipped_data = SkippedData(self.model_dir, self.placement)
        self.adapters = build_adapters(self.model, self.config.lora, origin=_origin_of(self.task))
        self.learner: Model = self.adapters or self.model
        """What is trained: the model, or its adapters."""
        self._reader = CheckpointFileReader(
            dir=self.model_dir, target=lasting_init(self.learner), after=self.start_step or -1
        )
        # Compiled as a part of what calls it, so that it is traced once for all loops of the stage.
        self._train_step = jax.jit(self._train, inline=True)
        self.validation_step = jax.jit(self._validate, inline=True)

    @property
    def schedules(self) -> dict[str, optax.Schedule]:
        """The learning rates by name, as functions of the step; none if the task has its own optimizer.

        That of a group with a `layer_decay` is the rate of its last layer.
        """
        optimization = self.config.optimizer_config
        if optimization.learning_rate.type is None:
            return {}
        schedule = build_schedule(optimization, n_steps=self._n_steps)

        def times(factor: float) -> optax.Schedule:
            # An optimizer counts the steps of its own stage.
            return lambda step: factor * schedule(step - self.start_step)

        groups = {f"learning_rate/{group.title}": times(group.learning_rate_factor) for group in optimization.groups}
        return {"learning_rate": times(1.0), **groups}

    @cached_property
    def root(self) -> Key:
        """The root of all randomness."""
        root: Key = self.placement.put_state(jax.random.key(self.runtime.seed))
        return root

    @cached_property
    def train_data(self) -> Any:
        """The training data."""
        return self.build_train_data()

    @cached_property
    def validation_data(self) -> Any:
        """The validation data."""
        return self.build_validation_data()

    @cached_property
    def train_loop(self) -> TrainLoop:
        """The training side, from the newest checkpoint file of the stage if there is one."""
        return self._build_train_loop(self.skipped_data.applied_to(self.train_data))

    @cached_property
    def eval_loop(self) -> EvalLoop:
        """The validation side."""
        n_steps = self.config.validation_steps
        n_known = self._n_validation_batches()
        # A published config asks for as many batches as its own data has.
        takes_all = n_steps == -1 or (n_known is not None and n_known < n_steps)
        return self._build_eval_loop(n_steps=None if takes_all else n_steps)

    def build_replay_loop(self, start: "ReplayStart") -> TrainLoop:
        """A training loop that starts from a checkpoint of one's choice, prints nothing and writes nothing."""
        # An iterator is read from its first batch on, up to the position of the checkpoint.
        data = self.train_data if is_stream(self.train_data) else self.build_train_data()
        return self._build_train_loop(self.skipped_data.applied_to(data), start=start)

    def _build_train_loop(self, data: Any, *, start: "ReplayStart | None" = None) -> TrainLoop:
        return TrainLoop(
            init=self._reader if start is None else start,
            task=self.train_task(data),
            rnkey=self.root,
            n_steps_per_checkpoint=self.periods,
            devices=self.placement,
            n_fused_steps=self.config.n_fused_steps,
            grads=self.config.keep_gradients,
            stdout=start is None and self.is_shown,
        )

    def train_task(self, data: Any) -> TrainTask:
        """The training side of the task."""
        return TrainTask(
            data=data,
            optimizer=self.optimizer,
            train_step=self._train_step,
            initialize=self._initialize(),
            count_tokens=self.task.count_tokens,
        )

    def _n_validation_batches(self) -> int | None:
        """How many there are, where that is known."""
        data = self.validation_data
        return data.n_batches if is_stream(data) and isinstance(data, SizedStream) else None

    def _build_eval_loop(self, *, n_steps: int | None) -> EvalLoop:
        task = EvalTask(data=self.validation_data, validation_step=self.validation_step, host_metrics=self.task)
        return EvalLoop(task=task, rnkey=self.root, n_steps=n_steps, devices=self.placement)

    def go_back(self, *, to: int, n_batches: int) -> None:
        """Trains again from the newest checkpoint file, without the batches of the steps that came after it."""
        self.skipped_data.add(step=to, n_batches=n_batches)
        del self.train_loop

    def find_step(self) -> int:
        """The step that the stage goes on from."""
        step = self._reader.find_step()
        return self.start_step if step is None else step

    def outline(self, *, trains: bool, evaluates: bool) -> "StageOutline":
        """What the stage holds and computes, by abstract evaluation; a side that a run does without is left out."""
        train = self.train_loop.outline() if trains else None
        checkpoint = self._checkpoint_shapes(trains=trains)
        return StageOutline(
            model=self.model,
            adapters=self.adapters,
            checkpoint=checkpoint,
            train=train,
            validation=self._short_eval_loop.outline(checkpoint) if evaluates else None,
            n_steps=self.config.train_steps,
            placement=self.placement,
        )

    def read_checkpoint(self, path: Path | None = None, *, trains: bool) -> Checkpoint:
        """The checkpoint of a file, by default of the newest in `model_dir` that is whole.

        Args:
            trains: Whether to learn from the training data what the model takes, and not from the validation data.
        """
        shapes = self._checkpoint_shapes(trains=trains)
        checkpoint = self._reader(shapes) if path is None else restore_file(path, template=shapes)
        checkpoint = (self.train_loop if trains else self._untrained_loop).complete(checkpoint)
        if not self.placement.spans_processes:
            return checkpoint
        # As a training has them, so that the files that are written of them are written once.
        state = (checkpoint.model_params, checkpoint.model_state, checkpoint.optimizer_state)
        like = (shapes.model_params, shapes.model_state, shapes.optimizer_state)
        params, model_state, optimizer_state = self.placement.put_state(state, like=like)
        return dataclasses.replace(
            checkpoint, model_params=params, model_state=model_state, optimizer_state=optimizer_state
        )

    def first_checkpoint(self) -> Checkpoint:
        """The checkpoint that a training would start from, made with the first batch of the validation data."""
        return self._untrained_loop.first_checkpoint()

    def sample_inputs(self) -> tuple[Any, ...]:
        """The inputs of the first batch of the validation data."""
        return split_batch(self._short_eval_loop.peek())[0]

    def _checkpoint_shapes(self, *, trains: bool) -> Checkpoint:
        loop = self.train_loop if trains else self._untrained_loop
        return Checkpoint.of(loop.state_shapes(), step=0)

    @cached_property
    def _untrained_loop(self) -> TrainLoop:
        """A loop that only tells shapes: a run that evaluates needs no training data, and perhaps has none."""
        return self._build_train_loop(iter([self._short_eval_loop.peek()]))

    @cached_property
    def _short_eval_loop(self) -> EvalLoop:
        """A loop over one batch: that there are too few for the config is told with all else that is wrong."""
        if self._n_validation_batches() == 0:
            raise ArgumentError(
                "The validation data has no batch, so nothing could be evaluated. Give it examples for one, lower "
                "task.validation_data.global_batch_size, or keep the short last batch: "
                "--set=task.validation_data.drop_remainder=false"
            )
        # The batches of an iterator are kept by the one loop that has read them.
        return self._build_eval_loop(n_steps=1) if is_stream(self.validation_data) else self.eval_loop

    def bound_model(self, checkpoint: Checkpoint) -> BoundModel:
        """The model with the parameters of a checkpoint, or with their averages if there are some.

        Adapters are merged into the weights beside which they were trained.
        """
        variables: Variables = on_averages(checkpoint).variables
        return self.model_with(variables if self.adapters is None else self.adapters.merged(variables))

    @property
    def shows(self) -> bool:
        """Whether the task shows something of its model at an evaluation."""
        return type(self.task).show_model is not Task.show_model

    def show(self, checkpoint: Checkpoint) -> Mapping[str, Media]:
        """What the task shows of the model of a checkpoint."""
        return self.task.show_model(self.bound_model(checkpoint), step=checkpoint.step)

    def model_with(self, variables: Variables) -> BoundModel:
        """The model with variables from elsewhere, as it answers; no data is looked at."""
        model = computing_model(self.model, runtime=self.runtime)
        return BoundModel(model, params={}).with_variables(variables)

    def _initialize(self) -> Callable[[Variables], Variables]:
        def initialize(variables: Variables) -> Variables:
            bound = BoundModel(self.model, params={}).with_variables(variables)
            return overlaid(variables, self.initialize(bound), place="Task.initialize")

        config = self.config.lora
        if self.adapters is not None and config is not None:
            # A run that has begun has its adapters in files of its own, and may be without those that it started from.
            is_needed = Path(config.init_adapter).is_dir() or newest_file(self.model_dir) is None
            config = config if is_needed else config.replace(init_adapter="")
            return start_beside(initialize, task=self.task, adapters=self.adapters, config=config)
        return traceable(initialize) if is_traceable(self.initialize) else initialize

    def _train(self, state: TrainState, batch: Batch, keys: StepKeys) -> tuple[TrainState, StepOutput]:
        # A task's own step need not know of parts if there are none.
        parts = {"n_microbatches": self.config.n_microbatches} if self.config.n_microbatches != 1 else {}
        result: Any = self.task.train_step(
            batch,
            state=state,
            model=self._computing_model(gathers=True),
            optimizer=self.optimizer,
            metrics=build_task_metrics(self.task, training=True),
            keys=keys,
            **parts,
        )
        if not isinstance(result, tuple):
            raise refused(self.task, "train_step", f"returned a {type(result).__name__}")
        return result

    def _validate(
        self, params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys
    ) -> tuple[dict[str, Metric], dict[str, Any]]:
        model = BoundModel(self._computing_model(), params=params, model_state=model_state)
        metrics = build_task_metrics(self.task, training=False)
        logs: Any = self.task.validation_step(batch, model, metrics)
        if isinstance(logs, Mapping):
            # What a published step has updated is not in what it returns.
            logs = {**dict(results(metrics)), **logs}
        return sort_logs(self.task, logs, n_examples=batch_size(batch))

    def _computing_model(self, *, gathers: bool = False) -> Model:
        """The model in the run's precision.

        Args:
            gathers: Whether its parameters are gathered where they are shared out over devices.
        """
        if not gathers or not self.placement.shares_params:
            return computing_model(self.model, runtime=self.runtime, adapters=self.adapters)
        shapes = self.train_loop.state_shapes()
        gather = self.placement.gathering({"params": shapes.params, **shapes.model_state})
        lower = Precision(self.runtime.mixed_precision_dtype or "float32").applied_to
        # In this order what is gathered is already small.
        if self.adapters is None:
            return WrappedModel(self.model, lambda apply: lower(gather(apply)))
        around = self.adapters.around
        return WrappedModel(self.model, lambda apply: gather(around(lower(apply))))


class ReplayStart(CheckpointSource):
    """The checkpoint that steps are run again from.

    Args:
        read: From what a checkpoint needs, shapes in the place of arrays, to the checkpoint; what it is given, returned
            as it is, is a run that begins at step 0.
    """

    def __init__(self, model: Model, read: Callable[[Checkpoint], Checkpoint]) -> None:
        self.target = lasting_init(model)
        self._read = read

    def __call__(self, initializer: Checkpoint) -> Checkpoint:
        checkpoint = self._read(initializer)
        is_new = checkpoint is initializer
        # Of a run that was told to stop the file holds sums of the steps before it, which are none of this one's.
        return checkpoint if is_new else replace(checkpoint, totals=None, n_completed_steps=0, elapsed_time=0.0)


@dataclass(frozen=True, kw_only=True)
class StageOutline:
    """A stage before its first step; a side that a run does without is None."""

    model: Model
    adapters: Lora | None = None
    """What is trained in the place of the model's own weights."""
    checkpoint: Checkpoint
    """What a checkpoint file will hold."""
    train: Outline | None
    validation: Outline | None
    n_steps: int
    """The step at which the stage ends."""
    placement: Placement


def computing_model(model: Model, *, runtime: RuntimeConfig, adapters: Lora | None = None) -> Model:
    """The model in the precision that a run computes in.

    Args:
        adapters: Those that it is to compute with.
    """
    lower = Precision(runtime.mixed_precision_dtype or "float32").applied_to
    if adapters is not None:
        around = adapters.around
        return WrappedModel(model, lambda apply: around(lower(apply)))
    return WrappedModel(model, lower) if runtime.mixed_precision_dtype else model


def start_beside(
    initialize: Callable[[Variables], Variables], *, task: Task, adapters: Lora, config: LoraConfig
) -> Callable[[Variables], Variables]:
    """What makes the variables of step 0 with adapters, given those of their `init`.

    Args:
        initialize: The same for the model itself.
    """
    start = adapters.starting_from(initialize)
    if not config.init_adapter:
        return start
    if not isinstance(task, PeftTask):
        raise ArgumentError(
            f"trainer.lora.init_adapter is {config.init_adapter}, but {type(task).__name__} has no model that PEFT "
            f"knows. Leave it out; a model of ours that was exported is taken by task.init_checkpoint."
        )

    def initialize_from_peft(variables: Variables) -> Variables:
        begun = start(variables)
        shapes = parameters_by_path(begun["params"])
        arrays = task.read_peft(config.init_adapter, config=config, shapes=shapes)
        return {**begun, "params": with_parameters(begun["params"], arrays)}

    return initialize_from_peft


def merged_model(
    task: Task,
    *,
    config: LoraConfig,
    runtime: RuntimeConfig,
    inputs: Batch,
    trained: Mapping[str, Any],
    fingerprint: Any,
) -> BoundModel:
    """The model of a run with adapters, without its data and its loops: these merged into the weights of step 0.

    Args:
        inputs: What the model takes; only shapes and dtypes count.
        trained: The trained parameters of a checkpoint file, by path.
        fingerprint: That of the weights, in the same file: an error tells if those of step 0 are others now.
    """
    model = build_task_model(task)
    adapters = build_adapters(model, config.replace(init_adapter=""), origin=_origin_of(task))
    assert adapters is not None
    rngs = StepKeys(jax.random.key(runtime.seed), 0).rngs(["params"], prefix="init/")
    own = nn.meta.unbox(jax.jit(lasting_init(adapters))(rngs, inputs))
    start = adapters.starting_from(
        lambda variables: start_of(task)(BoundModel(model, params={}).with_variables(variables))
    )
    begun = start(own)
    base: Any = begun[BASE]
    check_as_before(replace(base, fingerprint=fingerprint), now=base)
    merged = adapters.merged({**begun, "params": with_parameters(begun["params"], trained)})
    return BoundModel(computing_model(model, runtime=runtime), params={}).with_variables(merged)


def _origin_of(task: Task) -> str:
    return f"`{task.starts_from}`" if task.starts_from else "the model's own init"


def stage_id_of(step: int, *, last_steps: Sequence[int]) -> int:
    """The stage that a checkpoint of a step comes from: at a border, the stage that ends there.

    Args:
        last_steps: The step at which each stage ends.
    """
    return next((number for number, last in enumerate(last_steps) if step <= last), len(last_steps) - 1)
