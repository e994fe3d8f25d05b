"""Packages that load what they export on first use, so that importing one costs nothing."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
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
            value = importlib.import_module(f"{package}.{name}")
        else:
            value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    names = list(modules)
    return load, lambda: names, names


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
