"""What packages export. Each check is a function from a folder to its faults; each is shown to find one."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.architecture.source import PACKAGE, Function, assert_none, door_exports, home, is_public, parsed_files

# What may take more than one argument by position, each with the reason: {"Task.build_losses": "why"}.
MANY_POSITIONAL = {
    f"Task.{name}": "published so; users override it"
    for name in ("build_inputs", "build_losses", "process_metrics", "validation_step", "inference_step")
} | {"ProgressivePolicy.get_model": "published so; users override it"}


def disagreeing_doors(package: Path) -> list[str]:
    """Finds exports that differ between `door`, which a program uses, and `TYPE_CHECKING`, which type checkers read."""
    source, found = package.parent, []
    for file in sorted(package.rglob("__init__.py")):
        place = file.relative_to(package).as_posix()
        dotted = ".".join(file.parent.relative_to(source).parts)
        loaded = {name: home(source, module=dotted, name=name) for name in door_exports(file)}
        checked = {
            name: home(source, module=module, name=name) for name, module in _names_for_type_checkers(file).items()
        }
        found += [f"{place}: {name} is in one of the two lists" for name in sorted(loaded.keys() ^ checked.keys())]
        found += [
            f"{place}: {name} is loaded from {loaded[name]}, but checked as from {checked[name]}"
            for name in sorted(loaded.keys() & checked.keys())
            if loaded[name] != checked[name]
        ]
    return found


def _names_for_type_checkers(file: Path) -> dict[str, str]:
    """Returns what is re-exported (`from a.b import C as C`) under `if TYPE_CHECKING`: name to module."""
    return {
        alias.name: statement.module or ""
        for block in ast.parse(file.read_text(), file).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.name == alias.asname
    }


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


def test_type_checkers_see_what_the_doors_load() -> None:
    assert_none(disagreeing_doors(PACKAGE))


def test_public_calls_name_all_arguments_but_the_first() -> None:
    assert_none(calls_that_read_badly(PACKAGE, allowed=MANY_POSITIONAL))


def test_a_door_that_says_two_things_is_found(tmp_path: Path) -> None:
    loops = tmp_path / "trellis" / "loops"
    loops.mkdir(parents=True)
    (loops.parent / "__init__.py").write_text(
        "if TYPE_CHECKING:\n"
        "    from trellis.loops import Both as Both\n"
        "    from trellis.loops.b import Moved as Moved\n"
        "door(__name__, {'Both': 'loops', 'Moved': 'loops'})\n"
    )
    (loops / "__init__.py").write_text(
        "if TYPE_CHECKING:\n"
        "    from trellis.loops import random as random\n"
        "    from trellis.loops.a import Both as Both\n"
        "    from trellis.loops.a import Checked as Checked\n"
        "    from trellis.loops.a import Hidden\n"
        "    from trellis.loops.a import Moved as Moved\n"
        "door(__name__, {'Both': 'a', 'Loaded': 'a', 'Hidden': 'a', 'Moved': 'b', 'random': 'random'})\n"
    )
    assert disagreeing_doors(tmp_path / "trellis") == [
        "loops/__init__.py: Checked is in one of the two lists",
        "loops/__init__.py: Hidden is in one of the two lists",
        "loops/__init__.py: Loaded is in one of the two lists",
        "loops/__init__.py: Moved is loaded from trellis.loops.b, but checked as from trellis.loops.a",
    ]


def test_a_public_call_with_two_positional_arguments_is_found(tmp_path: Path) -> None:
    package = tmp_path / "trellis"
    (package / "loops").mkdir(parents=True)
    (package / "__init__.py").write_text("door(__name__, {'f': 'loops', 'C': 'loops', 'P': 'loops'})")
    (package / "loops" / "__init__.py").write_text("door(__name__, {'f': 'a', 'C': 'a', 'P': 'a', 'g': 'a'})")
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
