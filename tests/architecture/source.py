"""The repository as a tree of parsed files, for the checks of this folder."""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "trellis"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def parsed_files(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yields each Python file's path below `root`, and its syntax tree."""
    for file in python_files(root):
        yield file.relative_to(root).as_posix(), ast.parse(file.read_text(), file)


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def is_public(name: str) -> bool:
    return not name.startswith("_")


def door_exports(file: Path) -> dict[str, str]:
    """Returns what a package exports (`from a.b import C as C` under `if TYPE_CHECKING`): each name with its module."""
    return {
        alias.name: statement.module or ""
        for block in (ast.parse(file.read_text(), file).body if file.is_file() else [])
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def home(source: Path, *, module: str, name: str) -> str:
    """Returns the module that a name comes from in the end, behind all doors; a submodule's home is its package."""
    target = door_exports(source.joinpath(*module.split("."), "__init__.py")).get(name, module)
    return module if target == module else home(source, module=target, name=name)


def assert_none(faults: list[str]) -> None:
    """Fails with all faults, one a line: pytest would cut a list short."""
    assert not faults, "\n" + "\n".join(faults)
