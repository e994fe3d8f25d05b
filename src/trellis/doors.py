"""Packages that load what they export on first use, so that importing one costs nothing."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def door(package: str, exports: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns a package's `__getattr__`, `__dir__` and `__all__`.

    Args:
        exports: Public name to the submodule that holds it; a name that maps to itself is that submodule.
    """

    def load(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{exports[name]}")
        value = module if exports[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    names = list(exports)
    return load, lambda: names, names
