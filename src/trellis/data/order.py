"""Numbers in a random order, without a list of them where that would be long."""

import numpy as np
from numpy.typing import NDArray

_MOST_LISTED = 1 << 24
_N_ROUNDS = 6
_STEP = np.uint64(0x9E3779B97F4A7C15)
"""How far apart the states of a SplitMix64 are: two to the 64 by the golden ratio."""


class Order:
    """The numbers below `n`, each once, in an order that follows from a key.

    Up to 2**24 numbers are shuffled as a list. Of more, no list is kept: each place is turned into its number by a
    cipher (a Feistel network), which maps the numbers below a power of four onto themselves; one that is not below
    `n` is turned again.

    Example:
        >>> Order(4, key=[0, 1]).between(1, 4).tolist()
        [3, 1, 2]

    Args:
        key: One or two numbers below 2**64.
    """

    def __init__(self, n: int, *, key: int | list[int]) -> None:
        self._n = n
        generator = np.random.Generator(np.random.Philox(key=key))
        self._list = generator.permutation(n) if n <= _MOST_LISTED else None
        self._keys = generator.integers(0, 2**64, _N_ROUNDS, dtype=np.uint64)
        # Half of the bits of the largest number, rounded up.
        self._n_bits = np.uint64((n.bit_length() + 1) // 2)

    def between(self, start: int, stop: int) -> NDArray[np.int64]:
        """The numbers at the places from `start` up to `stop`, or up to the last."""
        if self._list is not None:
            return self._list[start:stop]
        numbers = self._turned(np.arange(start, min(stop, self._n), dtype=np.uint64))
        while (is_outside := numbers >= self._n).any():
            numbers[is_outside] = self._turned(numbers[is_outside])
        return numbers.astype(np.int64)

    def _turned(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        mask = (np.uint64(1) << self._n_bits) - np.uint64(1)
        left, right = numbers >> self._n_bits, numbers & mask
        for key in self._keys:
            left, right = right, left ^ (_hash(right + key) & mask)
        return (left << self._n_bits) | right


def keys_of(numbers: NDArray[np.integer], *, seed: int, epoch: int) -> NDArray[np.uint32]:
    """A random key for each number, `[n, 2]`, that follows from (seed, epoch, number) alone."""
    root = np.array([seed % 2**64, epoch], np.uint64)
    root = _hash(_hash(root[:1] + _STEP) + root[1:])
    return _hash(root + numbers.astype(np.uint64) * _STEP).view(np.uint32).reshape(-1, 2)


def _hash(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The last part of S. Vigna's SplitMix64.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
