"""Random keys: sequences for scripts, and keys that are a function of (seed, step, name) for loops."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Array, Key
from trellis.errors import ArgumentError, shown
from trellis.runtime.quick_keys import quick_key


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


def checked_key(key: Any) -> Key:
    """The key itself; an error if it is none."""
    if isinstance(key, jax.Array | np.ndarray):
        # Keys of the old kind are two or four words.
        is_old = key.dtype == np.uint32 and key.ndim == 1
        if is_old or jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            return jnp.asarray(key)
    seed = key if isinstance(key, int) else 0
    raise ArgumentError(f"rnkey is {shown(key)}, which is no random key. Make one of a number: jax.random.key({seed})")


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
