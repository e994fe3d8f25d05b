"""Questions that a served model was asked when it was written, with its answers, to tell if it still has them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from trellis.aliases import PyTree
from trellis.serving.manifest import ArraySpec, SignatureSpec

QUESTIONS = "questions.safetensors"
N_QUESTIONS = 3
"""How many are asked of each function that takes batches of any size; of others, one batch."""
_SEED = 721
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
"""How far apart answers may be, as a part of the greatest one, by the coarsest type of number that a model computes in.

Another JAX, or another machine, adds up in another order. Whole numbers have to be the same.
"""


@dataclass(frozen=True)
class Difference:
    """An answer that is not as it was."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


def draw_questions(shapes: PyTree, example: PyTree, *, batch_size: int | None) -> PyTree:
    """Draws inputs at random, between the least and the greatest value of each array of an example.

    Nothing else of the example is in them, so that a model which goes elsewhere takes no data along. The numbers are
    the same each time.

    Args:
        shapes: What the inputs are like.
        example: The same with values, or again with shapes alone.
    """
    rng = np.random.default_rng(_SEED)

    def draw(shape: jax.ShapeDtypeStruct, values: Any) -> np.ndarray:
        size = (batch_size or N_QUESTIONS, *shape.shape[1:])
        low, high = _limits(shape.dtype, values)
        if jnp.issubdtype(shape.dtype, jnp.integer) or shape.dtype.name == "bool":
            return rng.integers(int(low), int(high), size=size, endpoint=True).astype(shape.dtype)
        return rng.uniform(low, high, size=size).astype(shape.dtype)

    return jax.tree.map(draw, shapes, example)


def _limits(dtype: Any, values: Any) -> tuple[float, float]:
    """The least and the greatest value of an array; of one that has a single value, or only a shape, a step of one."""
    if dtype.name == "bool":
        return 0.0, 1.0
    known = np.zeros(1) if isinstance(values, jax.ShapeDtypeStruct) else np.asarray(values).astype(np.float64)
    finite = known[np.isfinite(known)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if low < high:
        return low, high
    return (low, low + 1) if jnp.issubdtype(dtype, jnp.integer) else (low - 1, low + 1)


def ask(exported: export.Exported, arrays: Mapping[str, Any], inputs: PyTree) -> PyTree:
    """The answers of a function, in the memory of this process."""
    return jax.tree.map(np.asarray, jax.jit(exported.call)(dict(arrays), inputs))


def as_arrays(name: str, spec: SignatureSpec, *, inputs: PyTree, outputs: PyTree) -> dict[str, np.ndarray]:
    """Questions and answers by names of their own, as they are stored."""
    sides = (("inputs", spec.inputs, inputs), ("outputs", spec.outputs, outputs))
    return {
        _stored(name, side, each): np.asarray(leaf)
        for side, specs, tree in sides
        for each, leaf in zip(specs, jax.tree.leaves(tree), strict=True)
    }


def stored_inputs(name: str, spec: SignatureSpec, stored: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The questions of a function, in the order of its inputs."""
    return [stored[_stored(name, "inputs", each)] for each in spec.inputs]


def differences(
    name: str, spec: SignatureSpec, *, stored: Mapping[str, np.ndarray], outputs: PyTree, tolerance: float
) -> Iterator[Difference]:
    """Yields the answers that are further from those that are stored than a tolerance allows."""
    for each, leaf in zip(spec.outputs, jax.tree.leaves(outputs), strict=True):
        problem = _problem(stored[_stored(name, "outputs", each)], np.asarray(leaf), tolerance=tolerance)
        if problem:
            yield Difference(f"{name}: {each.name}", problem)


def tolerance_of(dtypes: Iterator[str]) -> tuple[str, float]:
    """The coarsest of some types of numbers, and how far apart answers of it may be."""
    known = [dtype for dtype in dtypes if dtype in _TOLERANCES]
    coarsest = max(known, key=lambda dtype: _TOLERANCES[dtype], default="float32")
    return coarsest, _TOLERANCES[coarsest]


def _stored(name: str, side: str, spec: ArraySpec) -> str:
    return f"{name}/{side}/{spec.name}"


def _problem(before: np.ndarray, now: np.ndarray, *, tolerance: float) -> str:
    if before.shape != now.shape or before.dtype != now.dtype:
        return f"was {before.dtype}{list(before.shape)}, and is {now.dtype}{list(now.shape)}"
    if not jnp.issubdtype(before.dtype, jnp.floating):
        n_others = int(np.sum(before != now))
        return f"differs in {n_others} of {before.size} values" if n_others else ""
    old, new = before.astype(np.float64), now.astype(np.float64)
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True) or not np.isfinite(new[finite]).all():
        return "has values that are not finite elsewhere than before"
    if not finite.any():
        return ""
    scale = max(float(np.abs(old[finite]).max()), float(np.finfo(np.float32).tiny))
    distance = float(np.abs(old[finite] - new[finite]).max()) / scale
    return f"differs by {distance:.2g} of its greatest value; {tolerance:g} is allowed" if distance > tolerance else ""
