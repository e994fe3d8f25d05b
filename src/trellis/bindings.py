"""Arguments that are bound from outside the library, without the library knowing by whom."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

Target = TypeVar("Target", bound=Callable[..., Any])

_stand_ins: dict[Callable[..., Any], Callable[..., Any]] = {}


def bound(target: Target) -> Target:
    """What to call in the place of a function or class: itself, unless something else stands in for it.

    Example:
        encoder = bound(build_encoder)(config)
    """
    return cast(Target, _stand_ins.get(target, target))


@contextmanager
def standing_in(stand_ins: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Has functions and classes replaced, wherever they are called through `bound`, for the length of a block."""
    before = dict(_stand_ins)
    _stand_ins.update(stand_ins)
    try:
        yield
    finally:
        _stand_ins.clear()
        _stand_ins.update(before)
