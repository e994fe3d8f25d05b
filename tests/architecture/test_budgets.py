"""How much may be in one place. Each check is a function from a folder to its faults; each is shown to find one."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.architecture.source import PACKAGE, REPOSITORY, Function, assert_none, functions, parsed_files, python_files

# Files that may have up to 400 lines, each with the reason: {"nlp/models/mobilebert.py": "why"}.
LONG_FILES: dict[str, str] = {}
# Functions that may have more than eight parameters, each with the reason.
MANY_PARAMETERS = {"TrainLoop.__init__": "ten of them are published; all are keywords, and most calls give five"}

_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


def n_lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def long_files(root: Path, *, allowed: Mapping[str, str]) -> list[str]:
    found = []
    for file in python_files(root):
        name = file.relative_to(root).as_posix()
        limit = 400 if name in allowed else 300
        if n_lines(file) > limit:
            found.append(f"{name}: {n_lines(file)} lines, more than {limit}")
    return found


def needless_allowances(root: Path, *, allowed: Mapping[str, str]) -> list[str]:
    return [name for name in allowed if not (root / name).is_file() or n_lines(root / name) <= 300]


def long_functions(root: Path) -> list[str]:
    return [
        f"{name}:{function.lineno}: {function.name} has {length} lines, more than 50"
        for name, tree in parsed_files(root)
        for function in functions(tree)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > 50
    ]


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


def functions_with_many_parameters(root: Path, *, allowed: Mapping[str, str]) -> list[str]:
    """Counts what a caller may write: all parameters but `self` and `cls`, those of constructors too."""
    return [
        f"{file}: {name} has {n} parameters, more than 8"
        for file, tree in parsed_files(root)
        for name, function in _named_functions(tree)
        if name not in allowed and (n := _n_parameters(function.args)) > 8
    ]


def _named_functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}{child.name}" if isinstance(child, ast.ClassDef | Function) else ""
        if isinstance(child, Function):
            yield name, child
        yield from _named_functions(child, f"{name}." if name else prefix)


def _n_parameters(arguments: ast.arguments) -> int:
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return sum(argument is not None and argument.arg not in ("self", "cls") for argument in listed)


def oversized_loops(folder: Path) -> list[str]:
    """Counts what there is to read: the door is a list of names."""
    modules = [file for file in python_files(folder) if file.name != "__init__.py"]
    total = sum(map(n_lines, modules))
    found = [f"{len(modules)} modules, more than 4"] if len(modules) > 4 else []
    return found + ([f"{total} lines, more than 600"] if total > 600 else [])


def readme_faults(readme: Path) -> list[str]:
    text = readme.read_text() if readme.is_file() else ""
    found = [f"does not mention `{command}`" for command in ("make train", "make test") if command not in text]
    return found + ([f"{n_lines(readme)} lines, more than 150"] if text and n_lines(readme) > 150 else [])


def test_no_file_is_longer_than_300_lines_without_a_reason() -> None:
    assert_none(long_files(PACKAGE, allowed=LONG_FILES))
    assert_none(needless_allowances(PACKAGE, allowed=LONG_FILES))


def test_no_function_is_longer_than_50_lines() -> None:
    assert_none(long_functions(PACKAGE))


def test_no_block_is_nested_deeper_than_three() -> None:
    assert_none(deep_blocks(PACKAGE))


def test_no_function_has_more_than_eight_parameters() -> None:
    assert_none(functions_with_many_parameters(PACKAGE, allowed=MANY_PARAMETERS))


def test_a_batch_is_followed_from_the_command_to_the_screen_in_13_files_and_2000_lines() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text()
    section = text[text.index("## Following a batch") :]
    files = re.findall(r"^\d+\. `([\w/]+\.py)`", section[: section.index("\n## ", 3)], re.MULTILINE)
    assert 10 <= len(files) <= 13
    assert sum(n_lines(PACKAGE / file) for file in files) <= 2000


def test_the_loops_are_four_modules_and_600_lines_at_most() -> None:
    assert_none(oversized_loops(PACKAGE / "loops"))


def test_the_readme_has_150_lines_at_most_and_both_commands() -> None:
    assert_none(readme_faults(REPOSITORY / "README.md"))


def test_a_long_file_is_found_and_a_listed_one_may_have_400_lines(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * 301)
    assert long_files(tmp_path, allowed={}) == ["long.py: 301 lines, more than 300"]
    assert long_files(tmp_path, allowed={"long.py": "a table"}) == []
    (tmp_path / "long.py").write_text("x = 1\n" * 401)
    assert long_files(tmp_path, allowed={"long.py": "a table"}) == ["long.py: 401 lines, more than 400"]


def test_an_allowance_that_is_not_needed_is_found(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("x = 1\n")
    allowed = {"short.py": "was long once", "gone.py": "was there once"}
    assert needless_allowances(tmp_path, allowed=allowed) == ["short.py", "gone.py"]


def test_a_long_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("def fifty():\n" + "    x = 1\n" * 49 + "def more():\n" + "    x = 1\n" * 50)
    assert long_functions(tmp_path) == ["long.py:51: more has 51 lines, more than 50"]


def test_a_fourth_level_is_found_and_elif_is_no_level(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(
        "def f(x):\n for y in x:\n  with y:\n   while y:\n    if y:\n     pass\n"
        "def g(x):\n if x == 1:\n  pass\n elif x == 2:\n  pass\n elif x == 3:\n  pass\n elif x == 4:\n  pass\n"
    )
    assert deep_blocks(tmp_path) == ["deep.py:5: nested more than 3 deep"]


def test_a_ninth_parameter_is_found(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(
        "def f(a, *, b, c, d, e, f, g, h, **i): ...\nclass C:\n def f(self, a, *, b, c, d, e, f, g, h): ...\n"
    )
    assert functions_with_many_parameters(tmp_path, allowed={}) == ["many.py: f has 9 parameters, more than 8"]
    assert functions_with_many_parameters(tmp_path, allowed={"f": "published so"}) == []


def test_loops_that_outgrow_their_budget_are_found(tmp_path: Path) -> None:
    for name in ("__init__", "a", "b", "c", "d"):
        (tmp_path / f"{name}.py").write_text("x = 1\n" * 150)
    assert oversized_loops(tmp_path) == []
    (tmp_path / "e.py").write_text("x = 1\n")
    assert oversized_loops(tmp_path) == ["5 modules, more than 4", "601 lines, more than 600"]


def test_a_long_readme_or_one_without_the_commands_is_found(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    assert readme_faults(readme) == ["does not mention `make train`", "does not mention `make test`"]
    readme.write_text("make train\nmake test\n" + "\n" * 149)
    assert readme_faults(readme) == ["151 lines, more than 150"]
