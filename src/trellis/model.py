"""Models: an `init` and an `apply`, as a linen module has them, run on batches and measured; what training changes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import flax.errors
import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core.meta import unbox
from flax.core.scope import in_filter

from trellis.aliases import Array, Batch, Key, PyTree, Variables
from trellis.batch import as_outputs, batch_size, split_batch
from trellis.errors import ModelError
from trellis.metrics import Metric, MetricFunction, as_metric


class Init(Protocol):
    """Makes a model's variables, as the `init` of a linen module does."""

    def __call__(self, rngs: Mapping[str, Any], *inputs: Any) -> Variables:
        """The variables for inputs of such shapes; it is traced, not run, if a checkpoint is restored."""


class Apply(Protocol):
    """Runs a model, as the `apply` of a linen module does."""

    def __call__(self, variables: Variables, *inputs: Any, rngs: Mapping[str, Any], mutable: Any) -> Any:
        """The outputs; with `mutable` (a list of collections) a pair of them and the changed collections."""


@struct.dataclass
class TrainState:
    """What a step changes."""

    step: Array
    """How many steps are completed."""
    params: PyTree
    model_state: PyTree
    """The model's other collections, such as batch statistics."""
    optimizer_state: PyTree


@struct.dataclass
class StepOutput:
    """What a training step tells beside the new state."""

    loss: Metric
    metrics: Mapping[str, Metric] = struct.field(default_factory=dict)
    grads: PyTree = None


def state_maker(
    init: Init, *, optimizer: optax.GradientTransformation | None, keep_names: bool = False
) -> jax.stages.Wrapped:
    """A function from the keys of `init` by name, and inputs, to the state before the first step.

    Args:
        keep_names: Whether parameters stay in the boxes that hold the names of their axes, if the model gives some.
    """

    def make(rngs: Mapping[str, Key], *inputs: Any) -> TrainState:
        named = dict(init(rngs, *inputs))
        plain = unbox(named)
        optimizer_state = () if optimizer is None else optimizer.init(plain.get("params", {}))
        variables = named if keep_names else plain
        return TrainState(jnp.int32(0), variables.pop("params", {}), variables, optimizer_state)

    # To learn the shapes and then to make the state takes one trace.
    return jax.jit(make, inline=True)


@dataclass(frozen=True)
class Forward:
    """Runs a model on a batch and measures the outputs."""

    apply: Apply
    functions: Mapping[str, MetricFunction]
    mutable: Sequence[str] = ()
    """The collections of the model's state that change."""

    def __call__(
        self, params: PyTree, model_state: PyTree, batch: Batch, rngs: Mapping[str, Key]
    ) -> tuple[PyTree, dict[str, Metric]]:
        """The new model state and the metrics."""
        inputs, targets = split_batch(batch)
        variables = {"params": params, **model_state}
        changes: Mapping[str, Any] = {}
        try:
            if self.mutable:
                outputs, changes = self.apply(variables, *inputs, rngs=rngs, mutable=list(self.mutable))
            else:
                outputs = self.apply(variables, *inputs, rngs=rngs, mutable=False)
        except flax.errors.InvalidRngError as error:
            found = re.search(r'PRNG for "(\w+)"', str(error))
            name = found[1] if found else "…"
            raise ModelError(
                f"The model asks for the rng collection {name!r}, which the loop does not give. "
                f"Name it: collections={{'init': ['params'], 'apply': {[*rngs, name]}}}."
            ) from error
        seen = {
            name: as_metric(function(*as_outputs(outputs), *targets), batch_size(batch), f"{name!r}")
            for name, function in self.functions.items()
        }
        return {**model_state, **changes}, seen


def mutable_names(model_state: Mapping[str, Any], mutable_collections: Any) -> list[str]:
    """The collections that a step may change, of those that the model has."""
    return [name for name in model_state if in_filter(mutable_collections, name)]
