"""Attention in a window: a query sees the keys near it, at a cost that grows with the length and not its square."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from trellis.nlp.models.layers import EncoderInputs
from trellis.nlp.models.transformer import attend

Drop = Callable[[jax.Array], jax.Array]

_LEAST_BLOCK = 128
_LEAST_GAIN = 1.5
"""How many times as many keys a row has to have as are looked at for a block; with fewer, blocks are not quicker."""


def attend_locally(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    tokens: EncoderInputs,
    *,
    reach: int,
    drop: Drop | None = None,
) -> jax.Array:
    """What each query takes from the values of the keys that are at most `reach` tokens away, as `attend` computes it.

    Long rows are cut into blocks, each of which sees itself and what is beside it.

    Args:
        tokens: Those of the rows; none sees one of another packed sequence, or padding.
        drop: Dropout of the scores; None is none.
    """
    length = query.shape[1]
    size = max(_LEAST_BLOCK, reach)
    if length < _LEAST_GAIN * (size + 2 * reach):
        return attend_in_whole_rows(query, key, value, tokens, reach=reach, drop=drop)
    return attend_in_blocks(query, key, value, tokens, reach=reach, size=size, drop=drop)


def attend_in_whole_rows(
    query: jax.Array, key: jax.Array, value: jax.Array, tokens: EncoderInputs, *, reach: int, drop: Drop | None = None
) -> jax.Array:
    """The plain formula: all keys are looked at, and those far away are masked."""
    places = np.arange(query.shape[1])
    is_near = np.abs(places[:, None] - places) <= reach
    return attend(query, key, value, tokens.attention_mask() & is_near[None, None], drop=drop)


def attend_in_blocks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    tokens: EncoderInputs,
    *,
    reach: int,
    size: int,
    drop: Drop | None = None,
) -> jax.Array:
    """The same by blocks of `size` queries, at least `reach`, with the keys of a block and of `reach` on both sides."""
    n_rows, length = query.shape[:2]
    n_blocks = -(-length // size)

    def blocks(array: jax.Array) -> jax.Array:
        padded = jnp.pad(array, ((0, 0), (0, n_blocks * size - length), *((0, 0),) * (array.ndim - 2)))
        return padded.reshape(n_rows, n_blocks, size, *array.shape[2:])

    def with_sides(array: jax.Array) -> jax.Array:
        own = blocks(array)
        nothing = jnp.zeros_like(own[:, :1, :reach])
        before = jnp.concatenate([nothing, own[:, :-1, size - reach :]], axis=1)
        after = jnp.concatenate([own[:, 1:, :reach], nothing], axis=1)
        return jnp.concatenate([before, own, after], axis=2)

    def rows(array: jax.Array) -> jax.Array:
        return array.reshape(n_rows * n_blocks, *array.shape[2:])

    is_near = np.abs(np.arange(size)[:, None] + reach - np.arange(size + 2 * reach)) <= reach
    mask = with_sides(tokens.mask)[:, :, None, None, :] & is_near[None, None, None]
    if tokens.segment_ids is not None:
        mine, theirs = blocks(tokens.segment_ids), with_sides(tokens.segment_ids)
        mask = mask & (mine[:, :, None, :, None] == theirs[:, :, None, None, :])
    taken = attend(rows(blocks(query)), rows(with_sides(key)), rows(with_sides(value)), rows(mask), drop=drop)
    return taken.reshape(n_rows, n_blocks * size, *taken.shape[2:])[:, :length]
