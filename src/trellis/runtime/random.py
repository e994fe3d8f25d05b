"""Random keys: sequences for scripts, functions of (seed, step, name) for loops, and quick ones for dropout."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from trellis.aliases import Array, Key


def sequence(seed: int, num: int = 1) -> Iterator[Key] | list[Iterator[Key]]:
    """Returns an endless sequence of keys, or a list of `num` independent ones.

    Example:
        keys = sequence(seed=0)
        model_key, data_key = next(keys), next(keys)
    """
    key = jax.random.key(seed)
    if num == 1:
        return into_sequence(key)
    return [into_sequence(part) for part in jax.random.split(key, num)]


def into_sequence(key: Key) -> Iterator[Key]:
    """Yields fresh keys for ever, all of them derived from one."""
    while True:
        key, fresh = jax.random.split(key)
        yield fresh


def into_collection(key: Key, labels: Sequence[str]) -> dict[str, Key]:
    """Splits a key into one for each label, in their order."""
    return dict(zip(labels, jax.random.split(key, len(labels)), strict=True)) if labels else {}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepKeys:
    """The keys of one step: `keys[name]` depends on the root key, the step and the name, and on nothing else."""

    root: Key
    step: int | Array

    def __getitem__(self, name: str) -> Key:
        return jax.random.fold_in(jax.random.fold_in(self.root, self.step), zlib.crc32(name.encode()))

    def rngs(self, names: Sequence[str], *, prefix: str = "") -> dict[str, Key]:
        """The keys by name, as a Flax module takes them; that of `dropout` is a `quick_key`.

        Args:
            prefix: What parts these keys from those of the same names that serve another purpose.
        """
        keys = {name: self[f"{prefix}{name}"] for name in names}
        return {name: quick_key(key) if name == "dropout" else key for name, key in keys.items()}


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
