"""Lookups by index, whose gradients add up in the same order each time on GPUs too.

The gradient of a lookup adds rows to where they came from. A GPU does so in whatever order its threads arrive, so that
two runs differ, and XLA's own cure is slow. Here what is added is brought into order first (docs/decisions/0637). On
other devices, which add in one order anyway, all is as JAX does it.
"""

from functools import partial

import jax
import jax.numpy as jnp

from trellis.aliases import Array
from trellis.runtime.mesh import current_placement

# Tables of at most so many rows are summed by a product, which needs no sorting: positions, types, classes.
_FEW_ROWS = 1024


def look_up(table: Array, ids: Array) -> Array:
    """The rows of a table, of shape (rows, …), for ids of any shape, as `jnp.take(table, ids, axis=0)`."""
    return _look_up(table, ids, table.shape[0]) if _is_on_gpu() else jnp.take(table, ids, axis=0)


def take_places(hidden: Array, places: Array) -> Array:
    """From hidden states of shape (batch, length, width) those at places of shape (batch, n)."""
    return _take_places(hidden, places, hidden.shape[1]) if _is_on_gpu() else _taken(hidden, places)


def pick(scores: Array, labels: Array) -> Array:
    """The score of each label, from scores of shape (…, classes) and labels of shape (…)."""
    return _pick(scores, labels, scores.shape[-1]) if _is_on_gpu() else _picked(scores, labels)


def sum_rows(rows: Array, ids: Array, n_rows: int) -> Array:
    """A table whose rows are the sums of the rows of each id; ids outside of it are left out.

    Args:
        rows: Of the shape of the ids, and more axes after that.
    """
    if _is_on_gpu():
        return _summed(rows, ids.astype(jnp.int32), n_rows)
    table: Array = jnp.zeros((n_rows, *rows.shape[ids.ndim :]), rows.dtype).at[ids].add(rows, mode="drop")
    return table


def _from_the_start(indices: Array, n: int) -> Array:
    """Indices as JAX understands them, one below zero from the end; in a dtype that holds `n`."""
    indices = indices.astype(jnp.int32)
    return jnp.where(indices < 0, indices + n, indices)


def _is_on_gpu() -> bool:
    placement = current_placement()
    return (jax.default_backend() if placement is None else placement.platform) == "gpu"


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _look_up(table: Array, ids: Array, n_rows: int) -> Array:
    return jnp.take(table, ids, axis=0)


def _look_up_back(n_rows: int, ids: Array, grads: Array) -> tuple[Array, None]:
    return _summed(grads, _from_the_start(ids, n_rows), n_rows), None


_look_up.defvjp(lambda table, ids, n_rows: (_look_up(table, ids, n_rows), ids), _look_up_back)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _take_places(hidden: Array, places: Array, length: int) -> Array:
    return _taken(hidden, places)


def _taken(hidden: Array, places: Array) -> Array:
    return jnp.take_along_axis(hidden, places[..., None], axis=1)


def _take_places_back(length: int, places: Array, grads: Array) -> tuple[Array, None]:
    return _product(_from_the_start(places, length), grads, length).astype(grads.dtype), None


_take_places.defvjp(lambda hidden, places, length: (_take_places(hidden, places, length), places), _take_places_back)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _pick(scores: Array, labels: Array, n_classes: int) -> Array:
    return _picked(scores, labels)


def _picked(scores: Array, labels: Array) -> Array:
    return jnp.take_along_axis(scores, jnp.expand_dims(labels, -1), axis=-1)[..., 0]


def _pick_back(n_classes: int, labels: Array, grads: Array) -> tuple[Array, None]:
    # A label is one place of its row: nothing has to be added up.
    classes = jax.lax.broadcasted_iota(jnp.int32, (*labels.shape, n_classes), labels.ndim)
    labels = _from_the_start(labels, n_classes)
    return jnp.where(classes == labels[..., None], grads[..., None], 0), None


_pick.defvjp(lambda scores, labels, n_classes: (_pick(scores, labels, n_classes), labels), _pick_back)


def _summed(rows: Array, ids: Array, n_rows: int) -> Array:
    """The sums of the rows of each id, added in float32 and in an order that follows from the ids alone."""
    placement = current_placement()
    n_parts = placement.n_parts if placement is not None else 1
    # Each device sorts what it has: to sort a batch that is split over devices would bring all of it to each.
    n_parts = n_parts if ids.ndim and ids.shape[0] % n_parts == 0 else 1
    shape = rows.shape[ids.ndim :]
    parts = (rows.reshape(n_parts, ids.size // n_parts, -1), ids.reshape(n_parts, -1))
    if n_rows <= _FEW_ROWS:
        sums = _product(parts[1], parts[0], n_rows)
    else:
        sums = jax.vmap(partial(_summed_in_order, n_rows=n_rows))(*parts)
    return sums.sum(axis=0).astype(rows.dtype).reshape(n_rows, *shape)


def _product(places: Array, rows: Array, n_places: int) -> Array:
    """The sums of the rows of each place, each batch for itself, in float32: a product with zeros and ones."""
    ones = jax.nn.one_hot(places, n_places, dtype=rows.dtype)
    highest = jax.lax.Precision.HIGHEST
    return jnp.einsum("bnp,bnd->bpd", ones, rows, precision=highest, preferred_element_type=jnp.float32)


def _summed_in_order(rows: Array, ids: Array, *, n_rows: int) -> Array:
    """The same for many places: rows with one id are brought together, and added up by a scan that starts anew there.

    The scan adds neighbours, then pairs of them, and so on: what it rounds away grows with the logarithm of how many
    rows there are, and no sum sees the rows of another id.
    """
    ids, order = jax.lax.sort((ids, jax.lax.iota(ids.dtype, ids.size)), num_keys=1, is_stable=True)
    rows = rows.at[order].get(unique_indices=True, mode="promise_in_bounds").astype(jnp.float32)
    is_first = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])
    _, sums = jax.lax.associative_scan(_joined, (is_first[:, None], rows))
    every_id = jnp.arange(n_rows, dtype=ids.dtype)
    # The sum is whole at the last row of an id.
    last = jnp.searchsorted(ids, every_id, side="right", method="scan_unrolled") - 1
    is_there = (last >= 0) & (ids[last] == every_id)
    return jnp.where(is_there[:, None], sums[last], 0)


def _joined(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    (left_is_first, left_sum), (right_is_first, right_sum) = left, right
    return left_is_first | right_is_first, jnp.where(right_is_first, right_sum, left_sum + right_sum)
