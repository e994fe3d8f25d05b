"""Types that several folders name."""

from collections.abc import Mapping
from typing import Any, TypeAlias

PyTree: TypeAlias = Any
"""Nested tuples, lists, dicts and dataclasses with arrays as leaves."""

Array: TypeAlias = Any
"""A JAX or NumPy array."""

Batch: TypeAlias = Any
"""Arrays with a leading batch axis: a mapping, or a pair `(inputs, targets)` of arrays or tuples of arrays."""

Key: TypeAlias = Any
"""A JAX random key, typed or raw."""

Variables: TypeAlias = Mapping[str, Any]
"""What a model's `init` returns: its collections by name, `params` among them."""

Metrics: TypeAlias = Mapping[str, float]
"""Metric values by name."""

JSON: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
"""What a JSON text can hold."""
