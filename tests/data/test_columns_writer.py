"""Columns on disk: whole or not at all."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_columns import ARRAYS, write
from trellis.data.columns import Columns, ColumnsWriter
from trellis.data.ragged import Ragged
from trellis.errors import ArgumentError, DataError


def test_batches_that_are_appended_are_one_after_the_other() -> None:
    columns = write("columns", n_batches=3)
    assert len(columns) == 9
    assert columns.take([8, 1])["ids"].tolist() == [[4, 0, 0], [0, 0, 0]]
    assert [columns["text"][index] for index in (3, 5)] == ["ä", "abc"]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_in_random_batches_is_read_back(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = [generator.standard_normal(size) for size in generator.integers(0, 6, 40)]
    numbers = generator.standard_normal((40, 3))
    cuts = [0, *sorted(generator.integers(0, 40, 4).tolist()), 40]
    with ColumnsWriter("columns") as writer:
        for start, stop in pairwise(cuts):
            batch = {"rows": Ragged.from_rows(rows[start:stop], dtype="float64"), "numbers": numbers[start:stop]}
            writer.append(batch)
    columns = Columns.open("columns")
    indices = generator.permutation(40)
    expected = Columns.from_arrays({"rows": Ragged.from_rows(rows), "numbers": numbers}).take(indices)
    for name, array in columns.take(indices).items():
        np.testing.assert_array_equal(array, expected[name])


def test_columns_without_examples_are_opened() -> None:
    with ColumnsWriter("columns") as writer:
        writer.append({"x": np.zeros((0, 2)), "ids": Ragged.from_rows([], dtype="int64")})
    columns = Columns.open("columns")
    assert len(columns) == 0
    assert columns.take(np.zeros(0, np.int64))["x"].shape == (0, 2)


def test_columns_on_disk_are_plain_arrays_that_numpy_loads() -> None:
    write("columns", source="a fingerprint")
    assert np.load("columns/label.npy").tolist() == [3, 1, 2]
    assert np.load("columns/ids.values.npy").tolist() == [1, 2, 3, 4]
    assert np.load("columns/ids.offsets.npy").tolist() == [0, 3, 3, 4]
    manifest = json.loads(Path("columns/columns.json").read_text())
    assert manifest["count"] == 3
    assert manifest["source"] == "a fingerprint"
    assert manifest["columns"]["image"] == {"dtype": "float32", "shape": [2, 2], "longest": None}
    assert manifest["columns"]["ids"] == {"dtype": "int64", "shape": [None], "longest": 3}


def test_names_may_hold_slashes_and_dots() -> None:
    arrays = {
        "image/encoded": [b"x"],
        "../up": np.array([1]),
        "ids": Ragged.from_rows([[5]]),
        "ids.values": np.array([2]),
    }
    with ColumnsWriter("columns") as writer:
        writer.append(arrays)
    columns = Columns.open("columns")
    assert columns["image/encoded"][0] == b"x"
    assert [columns[name][0] for name in ("../up", "ids.values")] == [1, 2]
    assert [path.name for path in Path().iterdir()] == ["columns"]


def test_names_may_be_longer_than_those_of_files() -> None:
    names = ["x" * 300 + end for end in "ab"]
    with ColumnsWriter("columns") as writer:
        writer.append({name: np.array([number]) for number, name in enumerate(names)})
    columns = Columns.open("columns")
    assert [columns[name][0] for name in names] == [0, 1]


def append_and_fail(directory: str) -> None:
    with ColumnsWriter(directory) as writer:
        writer.append(ARRAYS)
        raise KeyError


def append_and_be_killed(directory: str) -> Path:
    program = f"""
import os
from trellis.data import ColumnsWriter
with ColumnsWriter({directory!r}) as writer:
    writer.append({{"x": [1, 2]}})
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    return next(path for path in Path().iterdir() if path.name.startswith("."))


def test_a_writer_that_fails_leaves_nothing() -> None:
    with pytest.raises(KeyError):
        append_and_fail("columns")
    assert list(Path().iterdir()) == []


def test_what_a_killed_writer_leaves_is_not_taken_for_columns() -> None:
    left = append_and_be_killed("columns")
    assert not Path("columns").exists()
    message = r"holds no whole columns: columns.json, which is written last, is not there. Write the columns again"
    for directory in ("columns", left):
        with pytest.raises(DataError, match=message):
            Columns.open(directory)


def test_what_a_killed_writer_left_is_removed_by_the_next() -> None:
    left = append_and_be_killed("columns")
    assert left.exists()
    write("columns")
    assert not left.exists()


def write_while_another_writes(directory: str, source: str, other: str) -> None:
    with ColumnsWriter(directory, source=source) as slow:
        slow.append(ARRAYS)
        write(directory, source=other)


def test_two_writers_of_the_same_source_agree() -> None:
    write_while_another_writes("columns", "same", "same")
    assert [path.name for path in Path().iterdir()] == ["columns"]
    assert len(Columns.open("columns")) == 3


def test_a_writer_that_comes_late_agrees_with_the_same_source() -> None:
    write("columns", source="same")
    assert len(write("columns", source="same")) == 3


def test_two_writers_of_different_sources_do_not() -> None:
    with pytest.raises(OSError, match="not empty"):
        write_while_another_writes("columns", "mine", "yours")
    assert [path.name for path in Path().iterdir()] == ["columns"]


def test_a_directory_in_use_is_refused() -> None:
    write("columns")
    with pytest.raises(
        ArgumentError, match=r"columns exists and is not empty. Delete it, or write to another directory"
    ):
        ColumnsWriter("columns")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": np.zeros(2)}, "The columns of this batch are .*float64.*, but those of the first .*int64"),
        ({"y": np.array([1])}, "The columns of this batch are {'y'.*, but those of the first {'x'"),
        ({"x": np.zeros((2, 2), np.int64)}, r"shape=\(2,\).*, but those of the first .*shape=\(\)"),
        (
            {"x": np.array([1]), "y": np.zeros(2)},
            "The columns of a batch need one length, but theirs are {'x': 1, 'y': 2}",
        ),
    ],
)
def test_a_batch_unlike_the_first_is_refused(batch: dict[str, np.ndarray], message: str) -> None:
    with ColumnsWriter("columns") as writer:
        writer.append({"x": np.array([1])})
        with pytest.raises(ArgumentError, match=message):
            writer.append(batch)


def test_a_writer_that_was_given_nothing_says_so() -> None:
    message = r"No examples were written to columns. Append at least one batch"
    with pytest.raises(DataError, match=message), ColumnsWriter("columns"):
        pass
