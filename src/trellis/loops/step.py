"""One step of a task: forward, loss and metrics as sums, gradients, update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import optax

from trellis.aliases import Array, Batch, PyTree
from trellis.errors import ArgumentError
from trellis.metrics import HostMetrics, Metric, MetricFunction
from trellis.model import Apply, Forward, StepOutput as StepOutput, TrainState
from trellis.optimizers import update_state
from trellis.runtime import StepKeys


class TrainStep(Protocol):
    """A whole training step, to be traced and compiled."""

    def __call__(self, state: TrainState, batch: Batch, keys: StepKeys) -> tuple[TrainState, StepOutput]:
        """The state after one update; `state.step` is counted by the loop. `keys["dropout"]` is this step's key."""


@dataclass(frozen=True, kw_only=True)
class TrainTask:
    """What is trained on what: a model, an optimizer and a loss, or a whole `train_step`; and the data.

    Example:
        TrainTask(apply=model.apply, optimizer=optax.adamw(1e-3), loss=cross_entropy, data=stream)
    """

    data: Any
    """A stream (`batch(step)`), an iterator of batches, or a data set whose iterators know their position."""
    apply: Apply | None = None
    optimizer: optax.GradientTransformation | None = None
    loss: MetricFunction | None = None
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)
    """Computed on the training batches, before the update."""
    n_microbatches: int = 1
    """Gradient accumulation: a batch is cut into so many parts, and the update is that of the whole batch."""
    train_step: TrainStep | None = None
    """Stands in for `apply`, `loss`, `metrics` and `n_microbatches`."""

    def __post_init__(self) -> None:
        is_whole = self.train_step is not None
        is_in_parts = self.apply is not None and self.loss is not None and self.optimizer is not None
        if is_whole == is_in_parts or (is_whole and (self.apply or self.loss)):
            raise ArgumentError("A TrainTask needs apply, optimizer and loss, or in their place a whole train_step.")
        if self.n_microbatches < 1:
            raise ArgumentError(f"n_microbatches is {self.n_microbatches}, but a batch has at least one part.")


class ValidationStep(Protocol):
    """A whole validation step, to be traced and compiled."""

    def __call__(
        self, params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys
    ) -> tuple[Mapping[str, Metric], PyTree]:
        """The metrics of a batch, and arrays for `EvalTask.host_metrics`."""


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """What is measured on what: a model and metrics, or a whole `validation_step`; and the data.

    Example:
        EvalTask(apply=model.apply, metrics={"accuracy": accuracy}, data=stream)
    """

    data: Any
    apply: Apply | None = None
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)
    validation_step: ValidationStep | None = None
    """Stands in for `apply` and `metrics`."""
    host_metrics: HostMetrics | None = None
    """Measures what the validation step returns beside its metrics."""

    def __post_init__(self) -> None:
        if (self.validation_step is None) == (self.apply is None):
            raise ArgumentError("An EvalTask needs apply and metrics, or in their place a whole validation_step.")


def supervised_step(
    task: TrainTask, rng_names: Sequence[str], mutable: Sequence[str], around: Callable[[Apply], Apply]
) -> TrainStep:
    """The training step of a task that is given by its model, loss and optimizer; `around` it what devices need."""
    assert task.apply is not None and task.loss is not None and task.optimizer is not None
    forward = Forward(around(task.apply), {"loss": task.loss, **task.metrics}, mutable)
    optimizer = task.optimizer

    def step(state: TrainState, batch: Batch, keys: StepKeys) -> tuple[TrainState, StepOutput]:
        def measure(params: PyTree, model_state: PyTree, part: Batch, index: Array | None) -> Any:
            part_keys = keys if index is None else StepKeys(keys["part"], index)
            return forward(params, model_state, part, part_keys.rngs(rng_names))

        return update_state(state, forward=measure, optimizer=optimizer, batch=batch, n_parts=task.n_microbatches)

    return step


def measuring_step(task: EvalTask, rng_names: Sequence[str]) -> ValidationStep:
    """The validation step of a task that is given by its model and metrics."""
    assert task.apply is not None
    forward = Forward(task.apply, task.metrics)
    return lambda params, model_state, batch, keys: (forward(params, model_state, batch, keys.rngs(rng_names))[1], ())
