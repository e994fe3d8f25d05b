"""The dtype that a model computes in, while its parameters stay float32."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Apply, Array, ComputeDtype, PyTree, Variables
from trellis.errors import ArgumentError, shown


@dataclass(frozen=True)
class Precision:
    """Has a model compute in a low precision, and leaves all that adds up over steps in float32.

    At each call parameters and inputs are cast down, and outputs, with what layers have sown, back to float32. So the
    loss, metrics, gradients, optimizer state and checkpoint files are float32. The model's state, such as batch
    statistics, is given as it is and comes back in its own dtype. Whole numbers are never cast.

    Example:
        TrainTask(apply=Precision("bfloat16").applied_to(model.apply), …)
    """

    dtype: ComputeDtype = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in get_args(ComputeDtype):
            raise ArgumentError(f"A precision is one of {', '.join(get_args(ComputeDtype))}, not {shown(self.dtype)}.")

    def applied_to(self, apply: Apply) -> Apply:
        """The same model, computing in this precision."""
        if self.dtype == "float32":
            return apply

        def low(variables: Variables, *inputs: Any, mutable: Any = False, **options: Any) -> Any:
            lowered = {**variables, "params": self._lowered(variables.get("params", {}))}
            returned = apply(lowered, *self._lowered(inputs), mutable=mutable, **options)
            if mutable is False:
                return _raised(returned)
            outputs, changes = returned
            return _raised(outputs), {name: _as_given(change, variables, name) for name, change in changes.items()}

        return low

    def _lowered(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.astype(self.dtype) if _is_floating(leaf) else leaf, tree)


def _raised(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.astype(_at_least_float32(leaf)) if _is_floating(leaf) else leaf, tree)


def _as_given(change: PyTree, variables: Mapping[str, PyTree], name: str) -> PyTree:
    if name not in variables:
        return _raised(change)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), change, variables[name])


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _at_least_float32(leaf: Array) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)
