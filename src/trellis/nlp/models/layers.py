"""Layers that all encoders and heads are made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.errors import ArgumentError
from trellis.spelling import nearest

Initializer = Callable[..., Any]

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

_N_LEVELS = 1 << 16


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the function of a name."""
    if name not in ACTIVATIONS:
        close = nearest(name, ACTIVATIONS)
        meant = f" Did you mean {close!r}?" if close else ""
        raise ArgumentError(f"There is no activation {name!r}.{meant} There are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def kernel_init(initializer_range: float) -> Initializer:
    """Returns the initializer of kernels and embeddings: normal, cut off at two standard deviations."""
    return nn.initializers.truncated_normal(stddev=initializer_range)


def dense(features: int | Sequence[int], *, initializer_range: float, n_inputs: int = 1) -> nn.DenseGeneral:
    """Returns a dense layer over the last axes.

    Args:
        features: The new axes.
        n_inputs: How many axes they take the place of.
    """
    axes = tuple(range(-n_inputs, 0))
    return nn.DenseGeneral(features, axis=axes, kernel_init=kernel_init(initializer_range))


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


class Dropout(nn.Module):
    """Sets a share of the elements to zero while training, and scales the rest so that the mean stays.

    The share is rounded to a multiple of 1/65536, because half a random word for each element is enough, and random
    words are most of the cost. Needs the rng collection `dropout`, if there is anything to drop.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, training: bool) -> jax.Array:
        """The elements that are left; all of them, if not `training`."""
        n_dropped = round(self.rate * _N_LEVELS)
        if not training or n_dropped == 0:
            return x
        keep = _random_halves(self.make_rng("dropout"), x.shape) >= n_dropped
        return jnp.where(keep, x * (_N_LEVELS / max(_N_LEVELS - n_dropped, 1)), jnp.zeros_like(x))


def _random_halves(key: Any, shape: tuple[int, ...]) -> jax.Array:
    """Uniform 16-bit numbers: two from each 32-bit word, if the last axis can be halved."""
    if shape[-1] % 2:
        return jax.random.bits(key, shape, "uint16")
    words = jax.random.bits(key, (*shape[:-1], shape[-1] // 2), "uint32")
    return jnp.concatenate([words & 0xFFFF, words >> 16], axis=-1)
