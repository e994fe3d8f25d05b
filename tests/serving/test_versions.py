"""Versions in a directory: which is served, what is told of those that cannot be, and when an old one ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from trellis.errors import RequestRefusedError, ServedModelError
from trellis.serving.served_directory import check_served, find_versions
from trellis.serving.versions import Versions


class Batches:
    """Stands for what asks a model."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Version:
    """Stands for a version that was loaded."""

    def __init__(self, number: int, directory: Path) -> None:
        if (directory / "manifest.json").read_text() != "whole":
            raise ServedModelError(f"`{directory}` is damaged.")
        self.number, self.directory = number, directory
        self.batcher = Batches()
        self.n_requests = 0
        self.is_replaced = False


class Told(list[str]):
    """The lines that were told."""

    def __call__(self, event: str, text: str, **fields: object) -> None:
        self.append(text)


def write(directory: Path, number: int, content: str = "whole") -> Path:
    folder = directory / str(number)
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(content)
    return folder


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def versions(tmp_path: Path, told: Told) -> Versions:
    opened: Any = Version
    return Versions(tmp_path, open_version=opened, tell=told)


def look(versions: Versions) -> None:
    """Looks once for newer versions."""
    asyncio.run(versions._load_newest(is_first=False))


def number_of(versions: Versions) -> int:
    with versions.lease() as version:
        return version.number


def test_the_newest_whole_version_is_served_and_the_broken_one_is_named(
    tmp_path: Path, versions: Versions, told: Told
) -> None:
    for number, content in ((2, "whole"), (9, "whole"), (10, "half")):
        write(tmp_path, number, content)
    asyncio.run(versions.load())
    assert number_of(versions) == 9
    assert told[1:] == [f"Version 10 is not served, but still 9: `{tmp_path}/10` is damaged."]


def test_a_version_that_is_still_being_copied_is_not_called_broken(
    tmp_path: Path, versions: Versions, told: Told
) -> None:
    write(tmp_path, 1)
    asyncio.run(versions.load())
    told.clear()
    (tmp_path / "2").mkdir()
    look(versions)
    for n_bytes in (1, 2, 3):
        write(tmp_path, 2, "x" * n_bytes)
        look(versions)
    assert told == []
    write(tmp_path, 2)
    look(versions)
    assert told == [f"Version 2 is served in the place of 1, from {tmp_path}/2."]


def test_a_new_version_that_stays_broken_is_told_once_and_the_old_one_goes_on(
    tmp_path: Path, versions: Versions, told: Told
) -> None:
    write(tmp_path, 1)
    asyncio.run(versions.load())
    told.clear()
    write(tmp_path, 2, "broken")
    for _ in range(4):
        look(versions)
    assert told == [f"Version 2 is not served, but still 1: `{tmp_path}/2` is damaged."]
    assert number_of(versions) == 1


def test_a_version_that_was_asked_ends_when_its_last_request_is_answered(tmp_path: Path, versions: Versions) -> None:
    write(tmp_path, 1)
    asyncio.run(versions.load())
    with versions.lease() as old:
        with versions.lease(1):
            write(tmp_path, 2)
            look(versions)
            assert number_of(versions) == 2
        assert old.number == 1 and not old.batcher.is_closed  # type: ignore[attr-defined]
    assert old.batcher.is_closed  # type: ignore[attr-defined]
    with pytest.raises(RequestRefusedError, match="There is no version 1. Served is 2."), versions.lease(1):
        pass


def test_the_version_before_comes_back_when_the_served_one_is_taken_away(tmp_path: Path, versions: Versions) -> None:
    for number in (1, 2):
        write(tmp_path, number)
    asyncio.run(versions.load())
    (tmp_path / "2/manifest.json").unlink()
    look(versions)
    assert number_of(versions) == 1
    (tmp_path / "1/manifest.json").unlink()
    look(versions)
    assert number_of(versions) == 1  # it is in memory


def test_without_a_whole_version_there_is_an_error(tmp_path: Path, versions: Versions) -> None:
    write(tmp_path, 3, "half")
    with pytest.raises(ServedModelError, match="3` is damaged"):
        asyncio.run(versions.load())
    with pytest.raises(RequestRefusedError, match="not loaded yet") as refused, versions.lease():
        pass
    assert refused.value.status == 503


def test_versions_are_found_by_number_also_without_one(tmp_path: Path) -> None:
    for number in (2, 10):
        write(tmp_path, number)
    (tmp_path / "notes").mkdir()
    assert find_versions(tmp_path) == {2: tmp_path / "2", 10: tmp_path / "10"}
    assert find_versions(tmp_path / "10") == {10: tmp_path / "10"}
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/manifest.json").touch()
    assert find_versions(tmp_path / "alone") == {1: tmp_path / "alone"}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ([], "holds nothing, and no manifest.json"),
        (["1/saved_model.pb"], "1` is a SavedModel, which TensorFlow Serving serves"),
        (["params.yaml"], "is a run, and not yet a served model: trellis export --model_dir="),
        (["config.json"], "is a model of Hugging Face's"),
        (["digits/1/manifest.json"], "Did you mean [^ ]*digits?"),
    ],
)
def test_a_directory_of_another_kind_is_refused_with_what_to_do(tmp_path: Path, files: list[str], problem: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ServedModelError, match=problem):
        check_served(tmp_path)
