"""How the code reads. Each check is a function from a folder to its faults; each is shown to find one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import PACKAGE, Function, assert_none, is_public, parsed_files, python_files

_BANNED = re.compile(
    "util(s|ity|ities)?|commons?|cores?|bases?|libs?|misc|helpers?|impls?|managers?|handlers?|factor(y|ies)|abstract"
)
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
