"""What may import what, and when. Each check is a function from a folder to its faults; each is shown to find one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import trellis
from tests.architecture.source import PACKAGE, REPOSITORY, assert_none


def imports_against_the_arrows(repository: Path) -> list[str]:
    """Runs import-linter with the contracts of `pyproject.toml` on `src`; returns what it says of broken ones."""
    program = "from importlinter.cli import lint_imports as lint; exit(lint('../pyproject.toml', no_cache=True))"
    done = _python(program, repository / "src")
    report = done.stdout.partition("Broken contracts")[2] or done.stderr or done.stdout
    return report.splitlines() if done.returncode else []


def packages_loaded_by(statement: str, source: Path) -> set[str]:
    """Returns the top-level packages, beyond the standard library, that a fresh Python loads for a statement."""
    program = (
        f"import sys; before = set(sys.modules)\n{statement}\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded - sys.stdlib_module_names))"
    )
    done = _python(program, source)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def _python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # The folder is put first on the path, before any installed Trellis.
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_imports_point_one_way() -> None:
    assert_none(imports_against_the_arrows(REPOSITORY))


def test_importing_trellis_loads_nothing_but_trellis() -> None:
    assert packages_loaded_by("import trellis", REPOSITORY / "src") == {"trellis"}


def test_built_in_experiments_and_all_packages_are_there_after_import_trellis_alone() -> None:
    program = (
        "import sys, trellis\n"
        "for name in ('bert/local', 'bert/squad', 'digits/classifier'): trellis.get_exp_config(name)\n"
        "print(trellis.experiments.find_config_file('albert_base.yaml') != 'albert_base.yaml', 'jax' in sys.modules)\n"
        "trellis.data.read_columns, trellis.tasks.export_task, trellis.serving.export_model, trellis.errors.DataError\n"
        "print(type(trellis.get_task(trellis.get_exp_config('bert/local').task)).__name__)\n"
    )
    done = _python(program, REPOSITORY / "src")
    assert done.stdout == "True False\nLocalMaskedLMTask\n", done.stderr


def test_every_package_but_the_command_is_an_attribute_of_the_root() -> None:
    packages = {file.parent.name for file in PACKAGE.glob("*/__init__.py")} - {"cli"}
    assert packages <= set(trellis.__all__)


def test_a_loop_loads_little_of_trellis_and_no_config() -> None:
    program = "import sys; from trellis import TrainLoop; print(*(m for m in sys.modules if m.startswith('trellis')))"
    modules = _python(program, REPOSITORY / "src").stdout.split()
    assert "trellis.loops.train_loop" in modules
    assert len(modules) <= 35
    assert not [name for name in modules if name.startswith(("trellis.config", "trellis.extensions"))]


def test_an_import_against_the_arrows_is_found(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    names = ("tasks", "executor", "errors", "doors", ".")
    for name, text in {"loops": "import trellis.tasks", **dict.fromkeys(names, "")}.items():
        package = tmp_path / "src" / "trellis" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(text)
    assert "- trellis.loops -> trellis.tasks (l.1)" in imports_against_the_arrows(tmp_path)
    (tmp_path / "src" / "trellis" / "loops" / "__init__.py").write_text("import trellis.errors")
    assert imports_against_the_arrows(tmp_path) == []
    (tmp_path / "src" / "trellis" / "unplanned.py").touch()
    assert "- trellis.unplanned" in imports_against_the_arrows(tmp_path)


def test_a_package_that_is_loaded_at_once_is_found(tmp_path: Path) -> None:
    (tmp_path / "trellis.py").write_text("import numpy\n")
    assert packages_loaded_by("import trellis", tmp_path) == {"numpy", "trellis"}
