"""Packages that load what they export on first use, so that importing one costs nothing."""

import ast
import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns a package's `__getattr__`, `__dir__` and `__all__`.

    The list of exports is written once, for type checkers and for this function: the imports below `if TYPE_CHECKING`
    in the package's `__init__.py`, such as `from trellis.loops.train_loop import TrainLoop as TrainLoop`. It is called
    in the `else` of that: a type checker that saw a `__getattr__` would believe that the package has every name.
    """
    modules = _exports(package)

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            value = import_whole(f"{package}.{name}")
        else:
            value = getattr(import_whole(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    names = list(modules)
    return load, lambda: names, names


def import_whole(name: str) -> Any:
    """Imports a module, and what it needs; a first Ctrl-C is followed when all is there.

    Libraries in C that are cut short while they load crash, drop the error, or raise another one.
    """
    with _followed_later():
        return importlib.import_module(name)


@contextmanager
def _followed_later() -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        # A second one is followed at once.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _exports(package: str) -> dict[str, str]:
    """Returns what a package exports: each name with the module that it comes from."""
    spec: Any = sys.modules[package].__spec__
    tree = ast.parse(spec.loader.get_source(package))
    return {
        alias.name: statement.module or ""
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
