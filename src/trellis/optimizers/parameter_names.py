"""Parameters chosen by their names, which are paths such as `encoder/layer_0/attention/bias`."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from trellis.aliases import PyTree

Patterns = Sequence[str] | None
Mask = Callable[[PyTree], PyTree]
"""From parameters to a tree of the same structure that says which are meant."""


def named_mask(*, include: Patterns = None, exclude: Patterns = None) -> Mask:
    """Returns a mask of all parameters but those that a pattern of `exclude` and none of `include` is found in."""
    included, excluded = _search(include), _search(exclude)

    def mask(params: PyTree) -> PyTree:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: included(name := parameter_name(path)) or not excluded(name), params
        )

    return mask


def parameter_name(path: tuple[Any, ...]) -> str:
    """Returns the keys on a leaf's way, joined by slashes."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _search(patterns: Patterns) -> Callable[[str], bool]:
    compiled = [re.compile(pattern) for pattern in patterns or ()]
    return lambda name: any(pattern.search(name) for pattern in compiled)
