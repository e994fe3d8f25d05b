"""How the code reads. Each check is a function from a folder to its faults; each is shown to find one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import PACKAGE, Function, assert_none, is_public, parsed_files, python_files

_BANNED = re.compile(
    "util(s|ity|ities)?|commons?|cores?|bases?|libs?|misc|helpers?|impls?|managers?|handlers?|factor(y|ies)|abstract"
)
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
# A method without a docstring of its own may have its contract from a base class, but these have none to give.
_BASES_WITHOUT_CONTRACT = {"ABC", "Generic", "Protocol"}


def banned_names(root: Path) -> list[str]:
    """Finds words that say nothing in the names of files, folders and classes."""
    names = {part: name for name, _ in parsed_files(root) for part in name.removesuffix(".py").split("/")}
    for name, tree in parsed_files(root):
        names |= {node.name: name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return [f"{place}: {name}" for name, place in names.items() if any(map(_is_banned, _WORD.findall(name)))]


def _is_banned(word: str) -> bool:
    return _BANNED.fullmatch(word.lower()) is not None


def deep_blocks(root: Path) -> list[str]:
    return [
        f"{name}:{line}: nested more than 3 deep" for name, tree in parsed_files(root) for line in _deep_lines(tree, 0)
    ]


def _deep_lines(node: ast.AST, depth: int) -> Iterator[int]:
    """Yields the lines of blocks inside three others. `elif` is no deeper than its `if`; a function starts anew."""
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        inner = 0 if isinstance(child, Function) else depth + (isinstance(child, _BLOCKS) and not is_elif)
        if inner > 3:
            yield child.lineno  # type: ignore[attr-defined]
        else:
            yield from _deep_lines(child, inner)


def uses_of_hasattr(root: Path) -> list[str]:
    return [
        f"{name}:{node.lineno}"
        for name, tree in parsed_files(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "hasattr"
    ]


def unfinished_lines(root: Path) -> list[str]:
    return [
        f"{file.relative_to(root).as_posix()}:{number}"
        for file in python_files(root)
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME|XXX)\b", line)
    ]


def missing_docstrings(root: Path) -> list[str]:
    """Finds modules, and public classes, functions and methods, that do not state their contract.

    Overloads and setters share the docstring of what they belong to. A method of a class with a base may fulfil a
    contract that is stated there.
    """
    return [
        f"{name}: {where}"
        for name, tree in parsed_files(root)
        for where, node in _contracts(tree)
        if ast.get_docstring(node) is None
    ]


def _contracts(tree: ast.Module) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    yield "module", tree
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function) and is_public(node.name) and not _shares_a_docstring(node):
            yield node.name, node
        if isinstance(node, ast.ClassDef) and is_public(node.name) and not _inherits_contracts(node):
            for method in node.body:
                if isinstance(method, Function) and is_public(method.name) and not _shares_a_docstring(method):
                    yield f"{node.name}.{method.name}", method


def _shares_a_docstring(node: ast.ClassDef | Function) -> bool:
    return any(ast.unparse(decorator).endswith(("overload", ".setter")) for decorator in node.decorator_list)


def _inherits_contracts(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).split("[")[0] not in _BASES_WITHOUT_CONTRACT for base in node.bases)


def test_files_and_classes_have_telling_names() -> None:
    assert_none(banned_names(PACKAGE))


def test_no_block_is_nested_deeper_than_three() -> None:
    assert_none(deep_blocks(PACKAGE))


def test_nothing_asks_hasattr() -> None:
    assert_none(uses_of_hasattr(PACKAGE))


def test_nothing_is_left_to_do_in_the_code() -> None:
    assert_none(unfinished_lines(PACKAGE))


def test_all_that_is_public_states_its_contract() -> None:
    assert_none(missing_docstrings(PACKAGE))


def test_a_banned_word_is_found_in_files_folders_and_classes(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "data_utils.py").write_text("class HTTPHandler: ...\nclass Database: ...\n")
    assert banned_names(tmp_path) == [
        "core/data_utils.py: core",
        "core/data_utils.py: data_utils",
        "core/data_utils.py: HTTPHandler",
    ]


def test_hasattr_is_found(tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text("def f(x):\n    return hasattr(x, 'y')\n")
    assert uses_of_hasattr(tmp_path) == ["asking.py:2"]


def test_a_mark_of_unfinished_work_is_found(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text("x = 1\ny = 2  # FIXME: why?\n")
    assert unfinished_lines(tmp_path) == ["later.py:2"]


def test_missing_docstrings_are_found_where_a_contract_is_due(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(
        "def f(): ...\n"
        "def _g(): ...\n"
        "class C:\n '''C.'''\n def method(self): ...\n def _private(self): ...\n def __len__(self): ...\n"
        "class D(C):\n def method(self): ...\n"
    )
    assert missing_docstrings(tmp_path) == ["silent.py: module", "silent.py: f", "silent.py: C.method", "silent.py: D"]


def test_a_fourth_level_is_found_and_elif_is_no_level(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(
        "def f(x):\n for y in x:\n  with y:\n   while y:\n    if y:\n     pass\n"
        "def g(x):\n if x == 1:\n  pass\n elif x == 2:\n  pass\n elif x == 3:\n  pass\n elif x == 4:\n  pass\n"
    )
    assert deep_blocks(tmp_path) == ["deep.py:5: nested more than 3 deep"]
