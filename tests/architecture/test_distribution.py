"""What is installed: the wheel, as pip gets it."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trellis
from tests.architecture.source import PACKAGE, REPOSITORY, assert_none
from trellis.errors import MissingPackageError


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built offline in a copy, because building writes beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(PACKAGE.parent, folder / "src", ignore=unwanted)
    program = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return next((folder / "dist").iterdir())


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert_none(sorted({file.relative_to(PACKAGE.parent).as_posix() for file in files} - names))
    assert not [name for name in names if not name.startswith(("trellis/", "trellis_jax-"))]


def test_the_wheel_is_called_trellis_jax_and_says_what_it_needs(wheel: Path) -> None:
    assert wheel.name == f"trellis_jax-{trellis.__version__}-py3-none-any.whl"
    archive = zipfile.ZipFile(wheel)
    info = f"trellis_jax-{trellis.__version__}.dist-info"
    metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
    assert (metadata["Name"], metadata["Version"]) == ("trellis-jax", trellis.__version__)
    assert archive.read(f"{info}/entry_points.txt").decode().strip() == (
        "[console_scripts]\ntrellis = trellis.cli.main:command"
    )
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"nlp", "serving", "gin", "keras", "grain", "tensorflow"} <= extras
    required = metadata.get_all("Requires-Dist", [])
    assert not [text for text in required if re.match(r"trellis\b(?!-jax)", text)]


def test_every_message_about_a_missing_package_names_an_extra_that_there_is() -> None:
    named = set()
    for file in PACKAGE.rglob("*.py"):
        named |= set(re.findall(r"MissingPackageError\([^()]*, \"(\w+)\"\)", file.read_text()))
    extras = (REPOSITORY / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert named
    assert not [extra for extra in sorted(named) if not re.search(rf"^{extra} = \[", extras, re.MULTILINE)]
    assert str(MissingPackageError("tokenizers", "nlp")).endswith("pip install 'trellis-jax[nlp]'")


def test_no_page_tells_to_install_the_other_distribution() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]
    other = re.compile(r"pip install '?trellis(?!-jax)|'trellis\[")
    assert_none([str(page.relative_to(REPOSITORY)) for page in pages if other.search(page.read_text())])
