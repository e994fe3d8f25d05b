"""Random keys for dropout: cheap to draw from, and cheaper to compile."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from trellis.aliases import Array, Key

_CIPHER = "threefry2x32"
# Constants for the two halves of a key: the first pair goes into keys made by `fold_in`, the second into those made by
# `split`. So the two ways to derive a key never give the same one, and neither gives the words that are drawn.
_FOLDED, _PARTS = np.array([[0x9E3779B9, 0x3C6EF372], [0xDAA66D2B, 0x78DDE6E4]], np.uint32)


def quick_key(key: Key) -> Key:
    """Turns one of JAX's default keys into a quick one; a key of a kind that the user chose stays as it is.

    JAX's own keys are those of a cipher, with some 130 operations for each key or word that is drawn. A layer of an
    encoder draws six times, which was a third of what an accelerator's compiler had to do. Dropout needs no cipher:
    here a counter goes twice through an integer hash, with half of the key before each.
    """
    if str(jax.random.key_impl(key)) != _CIPHER:
        return key
    quick: Key = jax.random.wrap_key_data(jax.random.key_data(key), impl=_QUICK)
    return quick


def _hash(x: Array) -> Array:
    # C. Wellons' lowbias32: each bit of the input changes each bit of the output for very nearly half of all inputs.
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _words(key: Array, counter: Array) -> Array:
    return _hash(_hash(counter + key[0]) ^ key[1])


def _counter(shape: tuple[int, ...]) -> Array:
    # Axis by axis, so that devices which share an array each count for their own part.
    counter, stride = jnp.zeros(shape, "uint32"), 1
    for axis in reversed(range(len(shape))):
        counter += jax.lax.broadcasted_iota("uint32", shape, axis) * np.uint32(stride % 2**32)
        stride *= shape[axis]
    return counter


def _seed(seed: Array) -> Array:
    return _fold_in(jnp.zeros(2, "uint32"), jnp.asarray(seed).astype("uint32"))


def _fold_in(key: Array, data: Array | int) -> Array:
    return _hash(_hash(data + key) ^ key[::-1] ^ _FOLDED)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    keys, parts = (jnp.broadcast_to(halves, (*shape, 2)) for halves in (key, _PARTS))
    return _hash(_hash(_counter(keys.shape) + keys) ^ keys[..., ::-1] ^ parts)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width == 64:
        high, low = (_random_bits(half, 32, shape).astype("uint64") for half in _split(key, (2,)))
        return high << 32 | low
    return (_words(key, _counter(shape)) >> (32 - bit_width)).astype(f"uint{bit_width}")


_QUICK: Any = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="quick", tag="quick"
)
