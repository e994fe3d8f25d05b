"""Batches of one shape, checked and stacked."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Batch
from trellis.errors import DataError


class ShapeCheck:
    """Every batch has the structure, shapes and dtypes of the first: a step is compiled for one kind of batch."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._expected: list[tuple[Any, Any]] | None = None
        self._structure: Any = None

    def __call__(self, batch: Batch, step: int) -> None:
        leaves, structure = jax.tree.flatten(batch)
        try:
            found = [(leaf.shape, leaf.dtype) for leaf in leaves]
        except AttributeError:
            found = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
        if self._expected is None:
            self._expected, self._structure = found, structure
        elif found != self._expected or structure != self._structure:
            raise DataError(
                f"{self.place}: the batch of step {step + 1} is {_describe(found, structure)}, but those before were "
                f"{_describe(self._expected, self._structure)}. Pad or drop it: a step is compiled for one shape."
            )


def _describe(found: list[tuple[Any, Any]], structure: Any) -> str:
    parts = [f"{dtype}{list(shape)}" for shape, dtype in found]
    return str(jax.tree.unflatten(structure, parts)).replace("'", "")


def stacked(batches: list[Batch]) -> Batch:
    """The batches as one, with a new first axis."""
    # Arrays that are on a device already are stacked there.
    return jax.tree.map(lambda *all: (jnp if isinstance(all[0], jax.Array) else np).stack(all), *batches)
