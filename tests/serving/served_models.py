"""Small models that were exported, whose answers tell what they were asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from trellis.serving import Signature, export_model


def export_doubling(directory: Path, *, offset: float = 0.0, batch_size: int | None = None) -> Path:
    """A model that doubles rows of two numbers: exactly, in a batch of any size."""
    return export_function(
        directory, lambda v, x: 2 * x + v["offset"], np.zeros((2, 2), np.float32), offset=offset, batch_size=batch_size
    )


def export_function(
    directory: Path,
    function: Callable[[Any, Any], Any],
    inputs: Any,
    *,
    offset: float = 0.0,
    batch_size: int | None = None,
) -> Path:
    return export_model(
        directory,
        variables={"offset": jnp.float32(offset)},
        signatures={"inference_step": Signature(function, inputs)},
        metadata={"step": 1},
        batch_size=batch_size,
        platforms=["cpu"],
    )
