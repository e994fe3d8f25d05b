"""Parquet files, and what no column can hold of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.data.written import parquet, pyarrow
from trellis.data.column_files import read_columns
from trellis.data.features import Feature
from trellis.errors import DataError


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pyarrow.array([{"a": 1}]),
            r"row 0, feature 'x': it is struct<a: int64>, but a column holds numbers, lists of them",
        ),
        (pyarrow.array([[1], [2, None]]), r"row 1, feature 'x': its list holds a null. Fill it in, or leave it out"),
        (pyarrow.array([[[1, 2]], [[1]]]), r"row 1, feature 'x': the lists in its list have 2 items, but one has 1"),
        (pyarrow.array([["a"]]), r"row 0, feature 'x': it is list<\w+: string>, but a column holds"),
    ],
)
def test_parquet_that_no_column_can_hold_is_named(column: Any, message: str) -> None:
    parquet.write_table(pyarrow.table({"x": column}), "a.parquet")
    with pytest.raises(DataError, match=f"a.parquet, {message}"):
        read_columns("a.parquet")


def test_all_sorts_of_parquet_columns_are_read() -> None:
    columns = {
        "flag": pyarrow.array([True, False, True]),
        "small": pyarrow.array([1, 2, 3], pyarrow.int8()),
        "word": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        "raw": pyarrow.array([b"\0", b"", b"x"], pyarrow.large_binary()),
        "gap": pyarrow.array([1.5, None, 2.5]),
        "pair": pyarrow.array([[1, 2], [3, 4], [5, 6]], pyarrow.list_(pyarrow.int32(), 2)),
        "holes": pyarrow.array([[1], None, []]),
    }
    parquet.write_table(pyarrow.table(columns), "a.parquet")
    found = read_columns("a.parquet")
    assert found.features == {
        "flag": Feature("bool", ()),
        "small": Feature("int8", ()),
        "word": Feature("str", ()),
        "raw": Feature("bytes", ()),
        "gap": Feature("float64", (None,)),
        "pair": Feature("int32", (2,)),
        "holes": Feature("int64", (None,)),
    }
    assert found["flag"].tolist() == [True, False, True]
    assert [found["word"][index] for index in range(3)] == ["a", "b", "a"]
    assert [found["raw"][index] for index in range(3)] == [b"\0", b"", b"x"]
    assert [found["gap"][index].tolist() for index in range(3)] == [[1.5], [], [2.5]]
    assert found["pair"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found["holes"].lengths.tolist() == [1, 0, 0]


def test_a_damaged_parquet_file_is_named() -> None:
    Path("a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"a.parquet: not a Parquet file, or damaged \(.*\). Write it again"):
        read_columns("a.parquet")
