"""Metrics as sums and weights until the very end, so that any split of the data gives the same number."""

from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct

from trellis.aliases import Array, PyTree
from trellis.errors import ModelError


@runtime_checkable
class Metric(Protocol):
    """The state of a metric: a tree of arrays in which all zeros stand for "nothing seen yet"."""

    def merge(self, other: Self) -> Self:
        """The state after what both have seen."""

    def compute(self) -> Array:
        """The value, a scalar."""


class MetricFunction(Protocol):
    """Called with a model's outputs, then a batch's targets."""

    def __call__(self, *outputs_and_targets: Any) -> Array | Metric:
        """A scalar that is a mean over the examples of the batch, or a `Metric` such as `Mean(total, weight)`."""


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
    shape = jnp.shape(value)
    if shape != ():
        raise ModelError(
            f"{name} returned an array of shape {shape}, but a scalar is needed. "
            f"Take its mean (jnp.mean), or return trellis.Mean(total, weight)."
        )
    weight = jnp.float32(n_examples)
    return Mean(jnp.asarray(value, jnp.float32) * weight, weight)


def merge(totals: Mapping[str, Metric], seen: Mapping[str, Metric]) -> dict[str, Metric]:
    """Adds what was seen to the totals, name by name."""
    return {name: totals[name].merge(metric) for name, metric in seen.items()}


def zeros(shapes: PyTree) -> PyTree:
    """The state in which nothing was seen yet."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def compute(totals: Mapping[str, Metric]) -> dict[str, float]:
    """The values of all metrics, fetched from the device."""
    return {name: float(value) for name, value in jax.device_get(_values(dict(totals))).items()}


@jax.jit
def _values(totals: dict[str, Metric]) -> dict[str, Array]:
    return {name: metric.compute() for name, metric in totals.items()}
