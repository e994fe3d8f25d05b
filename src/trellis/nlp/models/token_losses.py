"""The losses of next tokens, over chunks of positions, so that not all logits are in memory at once."""

from functools import partial

import jax
import jax.numpy as jnp

from trellis.runtime import current_placement

_MOST_LOGITS = 1 << 30
"""How many logits a device keeps for the backward pass: 4 GiB in float32."""


def token_losses(hidden: jax.Array, table: jax.Array, ids: jax.Array, *, most_logits: int | None = None) -> jax.Array:
    """The cross-entropy of each id, in float32, of shape (batch, length).

    The logits of a position are the products of its hidden states with all rows of a table. If there are more of them
    than may be kept, they are computed chunk by chunk, and once more in the backward pass.

    Args:
        hidden: Of shape (batch, length, width).
        table: Of shape (vocabulary, width).
        ids: Of shape (batch, length), from 0 on.
        most_logits: How many a device keeps.
    """
    placement = current_placement()
    n_logits = ids.size * table.shape[0] // (1 if placement is None else placement.n_parts)
    n_chunks = _n_chunks(ids.shape[1], -(-n_logits // (_MOST_LOGITS if most_logits is None else most_logits)))
    if n_chunks == 1:
        return _losses(hidden, table, ids)

    # Positions are cut, not the batch: that is what devices share.
    def cut(array: jax.Array) -> jax.Array:
        parts = array.reshape(array.shape[0], n_chunks, -1, *array.shape[2:])
        return jnp.moveaxis(parts, 1, 0)

    losses = jax.lax.map(lambda part: jax.checkpoint(_losses)(part[0], table, part[1]), (cut(hidden), cut(ids)))
    return jnp.moveaxis(losses, 0, 1).reshape(ids.shape)


def _n_chunks(length: int, at_least: int) -> int:
    """Into how many equal parts a length is cut: as few as can be, but not less than so many if that is possible."""
    return next((n for n in range(max(1, at_least), length) if length % n == 0), length)


def next_logits(hidden: jax.Array, table: jax.Array) -> jax.Array:
    """The logits of all tokens, in float32 whatever the inputs are."""
    return jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _losses(hidden: jax.Array, table: jax.Array, ids: jax.Array) -> jax.Array:
    return _forward(hidden, table, ids)[0]


def _forward(hidden: jax.Array, table: jax.Array, ids: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    logits = next_logits(hidden, table)
    normalizers = jax.nn.logsumexp(logits, axis=-1)
    # A sum instead of a lookup: quick on every device, and also where devices share out the vocabulary.
    losses = normalizers - jnp.sum(jnp.where(_is_one(logits, ids), logits, 0), axis=-1)
    return losses, (hidden, table, ids, logits, normalizers)


def _is_one(logits: jax.Array, ids: jax.Array) -> jax.Array:
    return jax.lax.broadcasted_iota(ids.dtype, logits.shape, logits.ndim - 1) == ids[..., None]


def _backward(kept: tuple[jax.Array, ...], grads: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    hidden, table, ids, logits, normalizers = kept
    shares = jnp.exp(logits - normalizers[..., None])
    # Products in the precision of the inputs, as JAX would multiply these in float32, which is several times slower.
    of_logits = ((shares - _is_one(logits, ids)) * grads[..., None]).astype(hidden.dtype)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    of_hidden = product("blv,vd->bld", of_logits, table).astype(hidden.dtype)
    of_table = product("blv,bld->vd", of_logits, hidden).astype(table.dtype)
    return of_hidden, of_table, None


_losses.defvjp(_forward, _backward)
