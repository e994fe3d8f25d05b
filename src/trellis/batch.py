"""Batches: their size, and their two sides."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from trellis.aliases import Batch
from trellis.errors import DataError, ModelError


def batch_size(batch: Batch) -> int:
    """The length of the leading axis, which all leaves share."""
    sizes = {
        jax.tree_util.keystr(path): np.shape(leaf)[0] if np.ndim(leaf) else None
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
    }
    if not sizes:
        raise DataError(f"A batch holds no array: {batch!r}. Yield (inputs, targets) or a mapping of arrays.")
    if len(set(sizes.values())) != 1 or None in sizes.values():
        listed = ", ".join(f"batch{path}: {size}" for path, size in sizes.items())
        raise DataError(f"The arrays of a batch differ in their leading axis ({listed}). All need the same batch size.")
    return int(next(iter(sizes.values())) or 0)


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
