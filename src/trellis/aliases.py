"""Types that several folders name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import jax

    Array: TypeAlias = jax.Array
    Key: TypeAlias = jax.Array
else:
    # These modules are also loaded where JAX is not.
    Array = Key = Any

PyTree: TypeAlias = Any
"""Nested tuples, lists, dicts and dataclasses with arrays as leaves."""

Batch: TypeAlias = PyTree
"""Arrays with a leading batch axis: a mapping, or a pair `(inputs, targets)` of arrays or tuples of arrays."""

Variables: TypeAlias = Mapping[str, PyTree]
"""What a model's `init` returns: its collections by name, `params` among them."""

Metrics: TypeAlias = Mapping[str, float]
"""Metric values by name."""

JSON: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
"""What a JSON text can hold."""

ComputeDtype: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""What a model can compute in."""


class Init(Protocol):
    """Makes a model's variables, as the `init` of a linen module does."""

    # To a type checker, the last two stand for any inputs and options: those of the function that is given.
    def __call__(self, rngs: dict[str, Any], /, *inputs: Any, **options: Any) -> Variables:
        """The variables for inputs of such shapes; it is traced, not run, if a checkpoint is restored."""


class Apply(Protocol):
    """Runs a model, as the `apply` of a linen module does."""

    def __call__(self, variables: Variables, /, *inputs: Any, **options: Any) -> Any:
        """The outputs; with `mutable` (a list of collections) a pair of them and the changed collections.

        Args:
            options: `rngs`, a dict of keys by name, and `mutable`.
        """
