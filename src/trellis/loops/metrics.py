"""Metrics as sums and weights until the very end, so that any split of the data gives the same number."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from trellis.aliases import Array, PyTree
from trellis.errors import ModelError, shown
from trellis.loops.batch import is_array


@runtime_checkable
class Metric(Protocol):
    """The state of a metric: a tree of arrays in which all zeros stand for "nothing seen yet"."""

    def merge(self, other: Self) -> Self:
        """The state after what both have seen."""

    def compute(self) -> Array:
        """The value, a scalar."""


class MetricFunction(Protocol):
    """Called with a model's outputs, then a batch's targets."""

    # To a type checker, both together stand for any arguments: those of the function that is given.
    def __call__(self, *outputs_and_targets: Any, **options: Any) -> Array | Metric:
        """A scalar that is a mean over the examples of the batch, or a `Metric` such as `Mean(total, weight)`."""


class HostMetrics(Protocol):
    """Metrics that are computed on the host, from the arrays that validation steps return."""

    def aggregate_logs(self, state: Any, step_outputs: PyTree) -> Any:
        """The state after one more batch: whole NumPy arrays, without padding; None is the state before the first."""

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> Mapping[str, Any]:
        """The metrics, from the state after all batches, nested or not; not called if that is None."""


@struct.dataclass
class Mean:
    """A weighted mean: the total, and the weight that it is to be divided by.

    Example:
        def token_loss(logits, targets):
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            mask = targets > 0
            return Mean(total=jnp.sum(losses * mask), weight=jnp.sum(mask))
    """

    total: Array
    weight: Array

    def merge(self, other: "Mean") -> "Mean":
        """The mean over what both have seen."""
        return Mean(self.total + other.total, self.weight + other.weight)

    def compute(self) -> Array:
        """The mean; NaN if nothing was seen."""
        return self.total / self.weight


def weighted_mean(values: Array, weights: Array | None = None) -> Mean:
    """The mean of values, each with its weight; by default all weigh the same."""
    values = jnp.asarray(values, jnp.float32)
    weights = jnp.ones_like(values) if weights is None else jnp.broadcast_to(weights, values.shape).astype(jnp.float32)
    return Mean(jnp.sum(values * weights), jnp.sum(weights))


@struct.dataclass
class FirstStep:
    """The first step at which something happened; 0 if it has not."""

    step: Array
    """As float32, which is exact up to sixteen million."""

    def merge(self, other: "FirstStep") -> "FirstStep":
        """The earlier one: this one, if there is one."""
        return FirstStep(jnp.where(self.step == 0, other.step, self.step))

    def compute(self) -> Array:
        """The step."""
        return self.step


def is_metric_class(function: Any) -> bool:
    """Whether this is a class in the place of one of its metric functions: `F1` for `F1()`."""
    return isinstance(function, type) and any("__call__" in vars(base) for base in function.__mro__)


@struct.dataclass
class Total:
    """A sum over all that was seen."""

    total: Array

    def merge(self, other: "Total") -> "Total":
        """The sum over what both have seen."""
        return Total(self.total + other.total)

    def compute(self) -> Array:
        """The sum."""
        return self.total


def as_metric(value: Any, n_examples: int, name: str) -> Metric:
    """Turns what a loss or metric function returned into a metric state.

    Args:
        n_examples: The weight of a plain scalar.
        name: What to call the function in an error.
    """
    if isinstance(value, Mean):
        return Mean(jnp.asarray(value.total, jnp.float32), jnp.asarray(value.weight, jnp.float32))
    if isinstance(value, Metric):
        return value
    if value is None:
        raise ModelError(f"{name} returned None, but a scalar is needed. Does the function end without `return`?")
    if not is_array(value):
        raise ModelError(
            f"{name} returned {shown(value)}, but a scalar is needed. Return a number, or trellis.Mean(total, weight)."
        )
    shape = jnp.shape(value)
    if shape != ():
        raise ModelError(
            f"{name} returned an array of shape {shape}, but a scalar is needed. "
            f"Take its mean (jnp.mean), or return trellis.Mean(total, weight)."
        )
    weight = jnp.float32(n_examples)
    return Mean(jnp.asarray(value, jnp.float32) * weight, weight)


def merge(totals: Mapping[str, Metric], metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Adds what was seen to the totals, name by name."""
    return {name: totals[name].merge(metric) for name, metric in metrics.items()}


def zeros(shapes: PyTree) -> PyTree:
    """The state in which nothing was seen yet."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def pack(totals: Mapping[str, Metric]) -> "tuple[PyTree, Packing]":
    """The totals as one array, if all are float32, and the way back: one array passes a call quicker than several."""
    names = tuple(sorted(totals))
    if all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(totals)):
        packed, unpack = ravel_pytree(dict(totals))
        return packed, Packing(names, jax.jit(unpack))
    return totals, Packing(names, lambda packed: packed)


class Packing:
    """How totals were packed, and what becomes of them."""

    def __init__(self, names: Sequence[str], unpack: Callable[[Any], dict[str, Metric]]) -> None:
        self._names = names
        self._values = jax.jit(lambda packed: _stacked(unpack(packed)))
        self._values_of_each = jax.jit(jax.vmap(lambda packed: _stacked(unpack(packed))))
        self.unpack = unpack

    def start_compute(self, packed: PyTree) -> Callable[[], dict[str, float]]:
        """Starts to compute the values of all metrics; the function that is returned waits for them."""
        values = self._values(packed)
        return lambda: dict(zip(self._names, values.tolist(), strict=True))

    def start_compute_each(self, packed: PyTree) -> Callable[[], list[dict[str, float]]]:
        """The same for the totals of several replicas, which have an axis for that."""
        values = self._values_of_each(packed)
        return lambda: [dict(zip(self._names, row, strict=True)) for row in values.tolist()]


def compute(totals: Mapping[str, Metric]) -> dict[str, float]:
    """The values of all metrics, fetched from the device."""
    return dict(zip(sorted(totals), _stacked(dict(totals)).tolist(), strict=True)) if totals else {}


@jax.jit
def _stacked(totals: dict[str, Metric]) -> Array:
    # One array is fetched quicker than several.
    return jnp.stack([totals[name].compute() for name in sorted(totals)])
