"""A stretch of a training: a task's two sides as the two loops that run it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import optax

from trellis.aliases import Batch, Key, PyTree, Variables
from trellis.data import SizedStream, is_stream
from trellis.errors import ArgumentError
from trellis.extensions import CheckpointFileReader, SkippedData, restore_file
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
    is_traceable,
    overlaid,
    split_batch,
    traceable,
)
from trellis.optimizers import build_schedule
from trellis.runtime import Placement, Precision, RuntimeConfig, StepKeys
from trellis.tasks import BoundModel, Model, Task, WrappedModel, lasting_init, refused, results
from trellis.trainer.configs import TrainerConfig
from trellis.trainer.default_extensions import on_averages
from trellis.trainer.task_calls import build_task_metrics, build_task_optimizer, sort_logs


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
        self._reader = CheckpointFileReader(
            dir=self.model_dir, target=lasting_init(self.model), after=self.start_step or -1
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
        """The model with the parameters of a checkpoint, or with their averages if there are some."""
        checkpoint = on_averages(checkpoint)
        return BoundModel(self._computing_model(), params=checkpoint.model_params, model_state=checkpoint.model_state)

    @property
    def shows(self) -> bool:
        """Whether the task shows something of its model at an evaluation."""
        return type(self.task).show_model is not Task.show_model

    def show(self, checkpoint: Checkpoint) -> Mapping[str, Media]:
        """What the task shows of the model of a checkpoint."""
        return self.task.show_model(self.bound_model(checkpoint), step=checkpoint.step)

    def model_with(self, variables: Variables) -> BoundModel:
        """The model with variables from elsewhere, as it answers; no data is looked at."""
        return BoundModel(self._computing_model(), params={}).with_variables(variables)

    def _initialize(self) -> Callable[[Variables], Variables]:
        def initialize(variables: Variables) -> Variables:
            bound = BoundModel(self.model, params={}).with_variables(variables)
            return overlaid(variables, self.initialize(bound), place="Task.initialize")

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
            return computing_model(self.model, runtime=self.runtime)
        shapes = self.train_loop.state_shapes()
        gather = self.placement.gathering({"params": shapes.params, **shapes.model_state})
        lower = Precision(self.runtime.mixed_precision_dtype or "float32").applied_to
        # In this order what is gathered is already small.
        return WrappedModel(self.model, lambda apply: lower(gather(apply)))


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
    checkpoint: Checkpoint
    """What a checkpoint file will hold."""
    train: Outline | None
    validation: Outline | None
    n_steps: int
    """The step at which the stage ends."""
    placement: Placement


def computing_model(model: Model, *, runtime: RuntimeConfig) -> Model:
    """The model in the precision that a run computes in."""
    dtype = runtime.mixed_precision_dtype
    return WrappedModel(model, Precision(dtype).applied_to) if dtype else model


def stage_id_of(step: int, *, last_steps: Sequence[int]) -> int:
    """The stage that a checkpoint of a step comes from: at a border, the stage that ends there.

    Args:
        last_steps: The step at which each stage ends.
    """
    return next((number for number, last in enumerate(last_steps) if step <= last), len(last_steps) - 1)
