"""What packages export. Each check is a function from a folder to its faults; each is shown to find one."""

import ast
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, Function, assert_none, door_exports, home, is_public, parsed_files

# What may take more than one argument by position, each with the reason: {"Task.build_losses": "why"}.
MANY_POSITIONAL = {
    f"Task.{name}": "published so; users override it"
    for name in ("build_inputs", "build_losses", "process_metrics", "validation_step", "inference_step")
} | {
    "Task.__init__": "published so; users call it from theirs",
    "Task.create_optimizer": "published so; users call it from theirs",
    "ProgressivePolicy.get_model": "published so; users override it",
    "Executor.Do": "published so",
}


def exports_that_do_not_load(package: Path) -> list[str]:
    """Finds what a package says that it exports, and what its module does not have."""
    found = []
    for file in sorted(package.rglob("__init__.py")):
        door = importlib.import_module(".".join(file.parent.relative_to(package.parent).parts))
        found += [f"{door.__name__}: {name}" for name in door_exports(file) if getattr(door, name, None) is None]
    return found


def calls_that_read_badly(package: Path, *, allowed: Mapping[str, str]) -> list[str]:
    """Finds what the root exports and what takes more than one argument by position.

    That is what users call: functions, constructors and methods. Other special methods are not meant, nor the fields of
    dataclasses, nor Protocols and what fulfils one: its shape is that of the callables which it describes.
    """
    shaped = set(_names_of_protocol_methods(package))
    return [
        f"{called} takes {n} arguments by position"
        for name in door_exports(package / "__init__.py")
        for function in _callables(package, name)
        if (n := _n_positional(function)) > 1 and function.name not in shaped
        if (called := name if function.name == name else f"{name}.{function.name}") not in allowed
    ]


def _names_of_protocol_methods(package: Path) -> Iterator[str]:
    for _, tree in parsed_files(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and _is_protocol(node):
                yield from (method.name for method in node.body if isinstance(method, Function))


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases)


def _n_positional(function: Function) -> int:
    arguments = [*function.args.posonlyargs, *function.args.args]
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def _callables(package: Path, name: str) -> Iterator[Function]:
    module = package.parent.joinpath(*home(package.parent, module=package.name, name=name).split("."))
    file = module.with_suffix(".py")
    for node in ast.parse(file.read_text(), file).body if file.is_file() else []:
        if isinstance(node, Function) and node.name == name:
            yield node
        if isinstance(node, ast.ClassDef) and node.name == name:
            methods = (method for method in node.body if isinstance(method, Function))
            yield from (method for method in methods if is_public(method.name) or method.name == "__init__")


def test_every_export_loads() -> None:
    assert_none(exports_that_do_not_load(PACKAGE))


def test_public_calls_name_all_arguments_but_the_first() -> None:
    assert_none(calls_that_read_badly(PACKAGE, allowed=MANY_POSITIONAL))


def test_a_door_loads_a_name_on_first_use_and_refuses_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "quiet"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from trellis.doors import door\n"
        "if TYPE_CHECKING:\n"
        "    from quiet import b as b\n"
        "    from quiet.a import A as A, C as C\n"
        "__getattr__, __dir__, __all__ = door(__name__)\n"
    )
    (package / "a.py").write_text("A = 1\n")
    (package / "b.py").write_text("B = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    quiet = importlib.import_module("quiet")
    assert quiet.__all__ == ["b", "A", "C"]
    assert dir(quiet) == ["A", "C", "b"]
    assert "quiet.a" not in sys.modules
    assert quiet.A == 1 and quiet.b.B == 2
    with pytest.raises(AttributeError, match="module 'quiet' has no attribute 'D'"):
        _ = quiet.D
    assert exports_that_do_not_load(package) == ["quiet: C"]


def test_a_public_call_with_two_positional_arguments_is_found(tmp_path: Path) -> None:
    package = tmp_path / "trellis"
    (package / "loops").mkdir(parents=True)
    (package / "__init__.py").write_text("if TYPE_CHECKING:\n    from trellis.loops import f as f, C as C, P as P\n")
    (package / "loops" / "__init__.py").write_text(
        "if TYPE_CHECKING:\n    from trellis.loops.a import f as f, C as C, P as P, g as g\n"
    )
    (package / "loops" / "a.py").write_text(
        "def f(x, y): ...\n"
        "def g(x, y): ...\n"
        "class C:\n"
        " def __init__(self, x, *, y): ...\n"
        " def __call__(self, x, y): ...\n"
        " def method(self, x, y=1): ...\n"
        " def shaped(self, x, y): ...\n"
        "class P(Protocol):\n"
        " def shaped(self, x, y): ...\n"
    )
    assert calls_that_read_badly(package, allowed={}) == [
        "f takes 2 arguments by position",
        "C.method takes 2 arguments by position",
    ]
    assert calls_that_read_badly(package, allowed={"f": "published so", "C.method": "published so"}) == []
