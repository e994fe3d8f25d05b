"""Arguments that are bound from outside the library, without the library knowing by whom."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar, cast

Target = TypeVar("Target", bound=Callable[..., Any])

_stand_ins: ContextVar[Mapping[Callable[..., Any], Callable[..., Any]]] = ContextVar(
    "stand_ins", default=MappingProxyType({})
)


def bound(target: Target) -> Target:
    """Returns what to call in the place of a function or class: itself, unless something else stands in for it.

    Example:
        encoder = bound(build_encoder)(config)
    """
    return cast(Target, _stand_ins.get().get(target, target))


@contextmanager
def standing_in(stand_ins: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Replaces functions and classes, wherever they are called through `bound`, for the length of a block.

    Example:
        >>> with standing_in({abs: round}):
        ...     bound(abs)(1.7)
        2
    """
    token = _stand_ins.set({**_stand_ins.get(), **stand_ins})
    try:
        yield
    finally:
        _stand_ins.reset(token)
