"""What a loop holds and computes, known by abstract evaluation: shapes and dtypes in the place of arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trellis.aliases import Batch, PyTree
from trellis.loops.state import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A loop before its first step."""

    checkpoint: Checkpoint
    """What its checkpoints hold: shapes and dtypes, each with the sharding that it has on the devices."""
    data: Any
    batch: Batch
    """The first one."""
    metrics: tuple[str, ...]
    """The names of what a step measures on the devices; those of a training step have the loss among them."""
    flops: float
    """About how many floating-point operations a step takes."""


@contextmanager
def tracing(what: str, batch: Batch) -> Iterator[None]:
    """Adds to an error what was being traced, and with what batch."""
    try:
        yield
    except Exception as error:
        error.add_note(f"That was while tracing {what} with a batch of {describe_arrays(batch)}.")
        raise


def describe_arrays(tree: PyTree) -> str:
    """The dtypes and shapes of a tree, such as `(float32[32,64], int32[32])`."""

    def describe(leaf: Any) -> str:
        array = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
        return f"{array.dtype}[{','.join(map(str, array.shape))}]"

    return str(jax.tree.map(describe, tree)).replace("'", "")
