"""Layers that all encoders and heads are made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.errors import ArgumentError
from trellis.spelling import nearest

Initializer = Callable[..., Any]
AxisNames = tuple[str | None, ...]

FROM_EMBED, TO_EMBED = ("embed", None), (None, "embed")
"""The axes of kernels from the encoder's width to another, and back."""

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
    "linear": lambda x: x,
}
"""The functions that `Activation` names."""


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the function of a name."""
    if name not in ACTIVATIONS:
        close = nearest(name, ACTIVATIONS)
        meant = f" Did you mean {close!r}?" if close else ""
        raise ArgumentError(f"There is no activation {name!r}.{meant} There are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def kernel_init(initializer_range: float, axes: AxisNames) -> Initializer:
    """Returns the initializer of kernels and embeddings: normal, cut off at two standard deviations."""
    return named(nn.initializers.truncated_normal(stddev=initializer_range), axes)


def named(init: Initializer, axes: AxisNames) -> Initializer:
    """Returns an initializer whose arrays tell the names of their axes, by which a mesh shares them out.

    The names are `vocab`, `embed`, `heads`, `kv` and `mlp`; None is an axis without a name.
    """
    return nn.with_logical_partitioning(init, axes)


def dense(features: int | Sequence[int], *, initializer_range: float, axes: AxisNames) -> nn.DenseGeneral:
    """Returns a dense layer over the last axes.

    Args:
        features: The new axes.
        axes: The names of all axes of the kernel: those that are taken, and the new ones in their place.
    """
    n_taken = len(axes) - (1 if isinstance(features, int) else len(features))
    return nn.DenseGeneral(
        features,
        axis=tuple(range(-n_taken, 0)),
        kernel_init=kernel_init(initializer_range, axes),
        bias_init=named(nn.initializers.zeros_init(), axes[n_taken:]),
    )


def layer_norm(epsilon: float) -> nn.LayerNorm:
    """Returns a layer norm, whose statistics are in float32 whatever goes in."""
    # The quick formula of the variance cancels to nothing where the mean is large, and epsilon is tiny here.
    return nn.LayerNorm(epsilon=epsilon, use_fast_variance=False)


class NoNorm(nn.Module):
    """A scale and a bias for each channel, in the place of a norm."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The channels, scaled and moved."""
        scale = self.param("scale", nn.initializers.ones_init(), x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros_init(), x.shape[-1:])
        return x * scale.reshape((1,) * (x.ndim - 1) + (-1,)) + bias.reshape((1,) * (x.ndim - 1) + (-1,))
