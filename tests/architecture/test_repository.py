"""What holds for the repository. Each check is a function from a folder to its faults; each is shown to find one."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import PACKAGE, REPOSITORY, assert_none, python_files

# In pieces, so that this file does not hold what it looks for.
_HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "anaconda" + ".org",
    "npmjs" + ".com",
    "docker" + ".io",
    "ghcr" + ".io",
]
_REGISTRY = re.compile("|".join([*map(re.escape, _HOSTS), r"index[-_]url\s*[=:]", "://[^ /]+/[^ ]*" + "simple/?"]))
_MADE_BY_TOOLS = re.compile(r"\.(?!ci$|github$).*|__pycache__|build|dist|runs|.*\.egg-info")


def undescribed_folders(package: Path, description: Path) -> list[str]:
    """Finds folders with code that the description of the tree does not name as `folder/`."""
    text = description.read_text() if description.is_file() else ""
    folders = {file.parent.relative_to(package).as_posix() for file in python_files(package)} - {"."}
    return sorted(folder for folder in folders if not re.search(rf"(?<![\w/]){re.escape(folder)}/", text))


def mentions_of_registries(repository: Path) -> list[str]:
    """Finds addresses that packages are fetched from: those are a matter of each machine's settings."""
    return [
        f"{file.relative_to(repository).as_posix()}:{number}"
        for file in _own_files(repository)
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if _REGISTRY.search(line)
    ]


def readme_faults(readme: Path) -> list[str]:
    text = readme.read_text() if readme.is_file() else ""
    faults = [f"does not mention `{command}`" for command in ("make train", "make test") if command not in text]
    n_lines = len(text.splitlines())
    return faults + ([f"{n_lines} lines, more than 150"] if n_lines > 150 else [])


def missing_files(page: Path, *folders: Path) -> list[str]:
    """Finds Python files that a page names and none of the folders has."""
    names = set(re.findall(r"[\w/]+\.py\b", page.read_text()))
    return sorted(name for name in names if not any((folder / name).is_file() for folder in folders))


def _own_files(repository: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(repository):
        folders[:] = sorted(name for name in folders if not _MADE_BY_TOOLS.fullmatch(name))
        yield from (Path(folder, name) for name in sorted(files))


def test_every_folder_is_described() -> None:
    assert_none(undescribed_folders(PACKAGE, REPOSITORY / "docs" / "architecture.md"))


def test_no_file_mentions_a_registry() -> None:
    assert_none(mentions_of_registries(REPOSITORY))


def test_the_readme_has_150_lines_at_most_and_both_commands() -> None:
    assert_none(readme_faults(REPOSITORY / "README.md"))


def test_the_page_on_the_architecture_names_files_that_are_there() -> None:
    assert_none(missing_files(REPOSITORY / "docs" / "architecture.md", PACKAGE, REPOSITORY))


def test_a_file_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    (tmp_path / "page.md").write_text("See `there.py` and `folder/gone.py`.")
    assert missing_files(tmp_path / "page.md", tmp_path) == ["folder/gone.py"]


def test_a_readme_that_is_too_long_or_lacks_a_command_is_found(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    assert len(readme_faults(readme)) == 2
    readme.write_text("make train\n" * 151)
    assert readme_faults(readme) == ["does not mention `make test`", "151 lines, more than 150"]


def test_a_folder_that_is_not_described_is_found(tmp_path: Path) -> None:
    for folder in ("loops", "nlp/data", "data"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    description = tmp_path / "architecture.md"
    assert undescribed_folders(tmp_path, description) == ["data", "loops", "nlp/data"]
    description.write_text("loops/  batches to checkpoints\nnlp/data/  tokens\n")
    assert undescribed_folders(tmp_path, description) == ["data"]


def test_a_registry_is_found_but_not_in_what_tools_have_made(tmp_path: Path) -> None:
    for folder in (".ci", ".venv"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes").write_text("Fetched from files." + _HOSTS[1] + "\n")
    (tmp_path / "options").write_text("--index-" + "url=somewhere\n\nhttps://mirror/api/" + "simple\nA simple line.\n")
    assert mentions_of_registries(tmp_path) == ["options:1", "options:3", ".ci/notes:1"]
