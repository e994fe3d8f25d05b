"""Batches: their size, their two sides, and the one shape that a loop's batches have."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Batch
from trellis.errors import DataError, ModelError, shown

_NO_NUMBERS = "SUOMm"
"""The kinds of NumPy's dtypes that JAX does not compute with: text, objects, times."""


def batch_size(batch: Batch) -> int:
    """The length of the leading axis, which all leaves share."""
    sizes = {
        jax.tree_util.keystr(path): np.shape(leaf)[0] if np.ndim(leaf) else None
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if not is_array(leaf) and not isinstance(leaf, str | bytes):
            raise DataError(
                f"batch{jax.tree_util.keystr(path)} is {shown(leaf)}, but a batch is made of arrays. Yield "
                f"(inputs, targets) or a mapping of arrays."
            )
        kind = getattr(np.result_type(leaf) if not isinstance(leaf, jax.Array) else leaf.dtype, "kind", "")
        if kind in _NO_NUMBERS:
            what = "text" if kind in "SU" else "objects"
            raise DataError(
                f"batch{jax.tree_util.keystr(path)} holds {what} ({np.result_type(leaf)}), but a batch has numbers. "
                f"Turn classes into numbers (np.unique(names, return_inverse=True)), or leave the column out."
            )
    if not sizes:
        raise DataError(f"A batch holds no array: {shown(batch)}. Yield (inputs, targets) or a mapping of arrays.")
    if len(set(sizes.values())) != 1 or None in sizes.values():
        listed = ", ".join(f"batch{path}: {size}" for path, size in sizes.items())
        raise DataError(
            f"The arrays of a batch differ in their leading axis ({listed}). All need the same batch size; if these "
            f"are of a single example, the data is not cut into batches yet."
        )
    return int(next(iter(sizes.values())) or 0)


def is_array(leaf: object) -> bool:
    """Whether it is an array or a number, of NumPy, JAX or anybody who says its dtype."""
    return isinstance(leaf, bool | int | float | complex) or getattr(leaf, "dtype", None) is not None


def check_divisible(batch: Batch, n_parts: int) -> None:
    """Raises an error if a batch cannot be split evenly over so many devices."""
    size = batch_size(batch)
    if size % n_parts:
        lower, upper = size - size % n_parts, size + n_parts - size % n_parts
        fits = f"{upper}" if lower == 0 else f"{lower} or {upper}"
        raise DataError(
            f"A batch of {size} examples cannot be split over {n_parts} devices. "
            f"Use a batch size of {fits}, or give the loop fewer devices (devices=jax.devices()[:1])."
        )


def batch_sides(batch: Batch) -> tuple[Any, Any]:
    """The inputs of a batch and its labels: a pair, or a mapping that plays both roles."""
    return batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, batch)


def split_batch(batch: Batch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """A batch as the arguments of a model and those of a loss: `((x, …), (y, …))`.

    A pair is (inputs, targets), each one array or a tuple of them. A mapping is given whole to both.
    """
    if isinstance(batch, tuple) and len(batch) == 2:
        inputs, targets = (side if isinstance(side, tuple) else (side,) for side in batch)
        return inputs, targets
    if isinstance(batch, Mapping):
        return (batch,), (batch,)
    raise ModelError(
        f"A batch is a {type(batch).__name__}, but a pair (inputs, targets) or a mapping is needed. "
        f"Without targets yield (inputs, ())."
    )


def as_outputs(outputs: Any) -> tuple[Any, ...]:
    """A model's outputs as the first arguments of a loss: a tuple is several, anything else is one."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


class ShapeCheck:
    """Every batch has the structure, shapes and dtypes of the first: a step is compiled for one kind of batch.

    Args:
        short_batch: What to write to leave out a last batch that is short, where that is known.
    """

    def __init__(self, place: str, *, short_batch: str = "") -> None:
        self.place = place
        self._way_out = f"Drop it ({short_batch})" if short_batch else "Pad or drop it"
        self._expected: list[tuple[Any, Any]] | None = None
        self._structure: Any = None

    def __call__(self, batch: Batch, step: int) -> None:
        leaves, structure = jax.tree.flatten(batch)
        try:
            signature = [(leaf.shape, leaf.dtype) for leaf in leaves]
        except AttributeError:
            signature = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
        if self._expected is None:
            self._expected = signature
            self._structure = structure
        elif signature != self._expected or structure != self._structure:
            raise DataError(
                f"{self.place}: the batch of step {step + 1} is {_describe(signature, structure)}, but those before "
                f"were {_describe(self._expected, self._structure)}. {self._way_out}: a step is compiled for one shape."
            )


def _describe(signature: list[tuple[Any, Any]], structure: Any) -> str:
    parts = [f"{dtype}{list(shape)}" for shape, dtype in signature]
    return str(jax.tree.unflatten(structure, parts)).replace("'", "")


def stacked(batches: list[Batch]) -> Batch:
    """The batches as one, with a new first axis."""
    # Arrays that are on a device already are stacked there.
    return jax.tree.map(lambda *all: (jnp if isinstance(all[0], jax.Array) else np).stack(all), *batches)
