"""Columns in memory and on disk: the same examples, in any order."""

import json
from pathlib import Path

import numpy as np
import pytest

from trellis.data.columns import Columns, ColumnsWriter
from trellis.data.features import Feature
from trellis.data.ragged import Padding, Ragged
from trellis.errors import ArgumentError, DataError

ARRAYS = {
    "label": np.array([3, 1, 2], np.int32),
    "image": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
    "ids": Ragged.from_rows([[1, 2, 3], [], [4]]),
    "text": ["ä", "", "abc"],
    "raw": [b"\xff\0", b"a", b""],
}
FEATURES = {
    "label": Feature("int32", ()),
    "image": Feature("float32", (2, 2)),
    "ids": Feature("int64", (None,)),
    "text": Feature("str", ()),
    "raw": Feature("bytes", ()),
}


def write(directory: str, n_batches: int = 1, source: str = "") -> Columns:
    with ColumnsWriter(directory, source=source) as writer:
        for _ in range(n_batches):
            writer.append(ARRAYS)
    return Columns.open(directory)


def columns_in(place: str) -> Columns:
    return Columns.from_arrays(ARRAYS) if place == "memory" else write("columns")


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_examples_are_taken_in_any_order(place: str) -> None:
    columns = columns_in(place)
    batch = columns.take([2, 0, 2])
    assert len(columns) == 3
    assert columns.features == FEATURES
    assert {name: array.tolist() for name, array in batch.items()} == {
        "label": [2, 3, 2],
        "image": [[[8, 9], [10, 11]], [[0, 1], [2, 3]], [[8, 9], [10, 11]]],
        "ids": [[4, 0, 0], [1, 2, 3], [4, 0, 0]],
        "text": ["abc", "ä", "abc"],
        "raw": [[0, 0], [255, 0], [0, 0]],
    }
    assert batch["label"].dtype == np.int32


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_columns_are_had_by_name(place: str) -> None:
    columns = columns_in(place)
    assert columns["label"].tolist() == [3, 1, 2]
    assert columns["text"][2] == "abc"
    assert columns["ids"].lengths.tolist() == [3, 0, 1]
    with pytest.raises(ArgumentError, match=r"There is no column 'x'. The columns are: label, image, ids, text, raw"):
        columns["x"]


def test_a_column_of_rows_that_do_not_differ_in_length_is_not_ragged() -> None:
    columns = columns_in("memory")
    assert columns.ragged("ids") is columns["ids"]
    with pytest.raises(ArgumentError, match=r"The rows of column 'image' all have the shape \(2, 2\)"):
        columns.ragged("image")


def test_the_columns_are_mapped_not_read() -> None:
    label = write("columns")["label"]
    assert isinstance(label.base, np.memmap)
    assert type(label) is np.ndarray
    assert not label.flags.writeable


def test_some_columns_can_be_selected_and_padded() -> None:
    columns = Columns.from_arrays(ARRAYS).padded({"ids": Padding(length=4, value=-1), "raw": Padding(length=2)})
    assert columns.select(["ids"]).take([1, 2]).keys() == {"ids"}
    assert columns.select(["ids"]).take([1, 2])["ids"].tolist() == [[-1] * 4, [4, -1, -1, -1]]
    assert columns.take([0])["raw"].tolist() == [[255, 0]]


def test_indices_may_be_of_any_integer_dtype_or_none_at_all() -> None:
    columns = Columns.from_arrays({"ids": Ragged.from_rows([[index] for index in range(128)])})
    assert columns.take(np.array([127], np.int8))["ids"].tolist() == [[127]]
    assert columns.take(np.array([5], np.uint64))["ids"].tolist() == [[5]]
    assert columns.take([])["ids"].shape == (0, 1)


def test_floats_can_be_padded_with_nan() -> None:
    columns = Columns.from_arrays({"x": Ragged.from_rows([[0.1], []])}).padded({"x": Padding(value=np.nan)})
    np.testing.assert_array_equal(columns.take([0, 1])["x"], [[0.1], [np.nan]])


def test_a_row_too_long_for_its_padding_is_named_with_its_column() -> None:
    columns = Columns.from_arrays(ARRAYS).padded({"ids": Padding(length=2)})
    with pytest.raises(DataError, match="Row 0 has 3 values, more than the length 2") as caught:
        columns.take([0])
    assert caught.value.__notes__ == ["in column 'ids'"]


@pytest.mark.parametrize(
    ("name", "padding", "message"),
    [
        ("label", Padding(), "Column 'label' is no ragged column of numbers or bytes, so it cannot be padded"),
        ("text", Padding(), "Column 'text' is no ragged column of numbers or bytes, so it cannot be padded"),
        ("ids", Padding(length=0), "Column 'ids' is to be padded to length 0; it takes at least 1"),
        ("ids", Padding(value=0.5), r"Column 'ids' of int64 cannot be padded with 0.5"),
        ("raw", Padding(value=-1), r"Column 'raw' of uint8 cannot be padded with -1"),
    ],
)
def test_paddings_that_cannot_work_are_refused(name: str, padding: Padding, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Columns.from_arrays(ARRAYS).padded({name: padding})


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 3], "There is no example 3: the 3 examples are numbered from 0"),
        ([-1], "There is no example -1: the 3 examples are numbered from 0"),
        ([0.5], "Examples are taken by their numbers, not by float64"),
        ([True], "Examples are taken by their numbers, not by bool"),
    ],
)
def test_indices_that_name_no_example_are_refused(indices: list[float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Columns.from_arrays(ARRAYS).take(indices)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": [1, 2], "b": [1]}, r"The lengths of the columns are {'a': 2, 'b': 1}. Give columns of one length"),
        ({}, r"The lengths of the columns are {}"),
        ({"a": [[1], [1, 2]]}, r"Column 'a' has rows of differing length. Give Ragged.from_rows\(rows\)"),
        ({"a": [None]}, r"Column 'a' has dtype object and shape \(1,\). A column has numbers or text"),
        ({"a": 5}, r"Column 'a' has dtype int64 and shape \(\)"),
    ],
)
def test_arrays_that_are_no_columns_are_refused(arrays: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Columns.from_arrays(arrays)


def test_a_damaged_file_is_named() -> None:
    write("columns")
    path = Path("columns/label.npy")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"label.npy has 136 bytes, but 140 were written. Delete columns and write the"):
        Columns.open("columns")
    path.unlink()
    with pytest.raises(DataError, match=r"label.npy has 0 bytes, but 140 were written"):
        Columns.open("columns")


def test_a_damaged_or_newer_manifest_is_named() -> None:
    write("columns")
    Path("columns/columns.json").write_text('{"version": 99}')
    with pytest.raises(
        DataError, match=r"columns.json has version 99, but this Trellis reads 2. Write the columns again"
    ):
        Columns.open("columns")
    Path("columns/columns.json").write_text("{")
    with pytest.raises(DataError, match=r"columns.json is damaged \(.*\). Delete columns and write the columns again"):
        Columns.open("columns")


def test_a_flipped_bit_is_found_and_its_place_is_told() -> None:
    write("columns")
    for file in Path("columns").glob("*.npy"):
        content = file.read_bytes()
        for place in (0, 60, len(content) - 1):
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(DataError, match=rf"{file} is not as it was written \(bytes 0 to 4194304\)\. Del"):
                Columns.open("columns")
        file.write_bytes(content)
    assert Columns.open("columns")["label"].tolist() == [3, 1, 2]


def test_a_manifest_of_other_columns_is_told_so() -> None:
    write("columns")
    file = Path("columns/columns.json")
    file.write_text(file.read_text().replace('"label": {', '"lable": {'))
    with pytest.raises(DataError, match=r"columns.json does not fit its files \(.*No such file.*lable.npy"):
        Columns.open("columns")


def test_of_large_columns_some_blocks_are_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.data.columns._BLOCK_BYTES", 64)
    monkeypatch.setattr("trellis.data.columns._MOST_CHECKED_BLOCKS", 2)
    write("columns", n_batches=20)
    file = Path("columns/image.npy")
    content = bytearray(file.read_bytes())
    content[300] ^= 1
    file.write_bytes(content)
    n_opened = 0
    with pytest.raises(DataError, match=r"image.npy is not as it was written \(bytes 256 to 320\)"):
        while n_opened < 10_000:
            Columns.open("columns")
            n_opened += 1


def test_columns_without_checksums_are_read_as_before() -> None:
    write("columns")
    file = Path("columns/columns.json")
    manifest = json.loads(file.read_text())
    manifest |= {"version": 1, "files": {name: entry["size"] for name, entry in manifest["files"].items()}}
    file.write_text(json.dumps(manifest))
    assert Columns.open("columns")["label"].tolist() == [3, 1, 2]
