"""What a run holds and computes, known by abstract evaluation: shapes and dtypes in the place of arrays."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from trellis.aliases import Batch, PyTree
from trellis.loops import Checkpoint, Metric, StepOutput, TrainState, as_metric, batch_size, split_batch
from trellis.runtime import Placement, StepKeys
from trellis.tasks import BoundModel, Model, Task

Peeked = tuple[Batch, Any]
"""The first batch of some data, and the data."""


@dataclass(frozen=True)
class Side:
    """One side of a task in a run."""

    data: Any
    batch: Batch
    """The first one."""
    metrics: tuple[str, ...]
    """The names of what a step measures on the devices, the loss among them."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A run before its first step; a side that it does without is None."""

    model: Model
    checkpoint: Checkpoint
    """What a checkpoint file will hold."""
    trace_outputs: Callable[[], PyTree]
    train: Side | None
    validation: Side | None
    n_steps: int
    """The step at which it ends; in a progressive training, its stage."""
    placement: Placement

    @cached_property
    def outputs(self) -> PyTree:
        """Of the model; None if the task calls its model in a way of its own."""
        return self.trace_outputs()


@dataclass(frozen=True)
class Tracer:
    """Evaluates the parts of a run abstractly; an error says what was being traced, and on what batch."""

    state: TrainState
    """Its shapes."""
    keys: StepKeys

    def trace_model(self, model: Model, peeked: Peeked | None, *, task: Task) -> PyTree:
        """The model's outputs; None if the task calls its model in a way of its own."""
        if peeked is None or type(task).train_step is not Task.train_step:
            return None
        batch, _ = peeked

        def outputs(params: PyTree, model_state: PyTree) -> PyTree:
            return BoundModel(model, params=params, model_state=model_state)(split_batch(batch)[0])

        with _tracing("the model", batch):
            return jax.eval_shape(outputs, self.state.params, self.state.model_state)

    def trace_train_step(
        self, step: Callable[[TrainState, Batch, StepKeys], tuple[TrainState, StepOutput]], peeked: Peeked | None
    ) -> Side | None:
        """The training side; an error if the loss is no scalar."""
        if peeked is None:
            return None
        batch, data = peeked

        def measured(state: TrainState) -> dict[str, Metric]:
            _, output = step(state, batch, StepKeys(self.keys.root, state.step))
            return {"loss": as_metric(output.loss, batch_size(batch), "The loss"), **output.metrics}

        with _tracing("a training step", batch):
            return Side(data, batch, tuple(jax.eval_shape(measured, self.state)))

    def trace_validation_step(
        self,
        step: Callable[[PyTree, PyTree, Batch, StepKeys], tuple[dict[str, Metric], dict[str, Any]]],
        peeked: Peeked | None,
    ) -> Side | None:
        """The validation side."""
        if peeked is None:
            return None
        batch, data = peeked

        def measured(params: PyTree, model_state: PyTree) -> dict[str, Metric]:
            return step(params, model_state, batch, self.keys)[0]

        with _tracing("a validation step", batch):
            names = jax.eval_shape(measured, self.state.params, self.state.model_state)
            return Side(data, batch, tuple(names))


def describe_arrays(tree: PyTree) -> str:
    """The dtypes and shapes of a tree, such as `(float32[32,64], int32[32])`."""

    def described(leaf: Any) -> str:
        array = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
        return f"{array.dtype}[{','.join(map(str, array.shape))}]"

    return str(jax.tree.map(described, tree)).replace("'", "")


@contextmanager
def _tracing(what: str, batch: Batch) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"That was while tracing {what} with a batch of {describe_arrays(batch)}.")
        raise
