"""Features unlike what was asked for: each named by file, place and feature, with the way out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.written import ROWS, WRITERS, write_jsonl, write_tfrecord
from trellis.data.column_files import read_columns
from trellis.errors import ArgumentError, DataError


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (
            (np.int64, ()),
            r"record 1, feature 'x': it is missing. Fill it in, say .*, ask for .*\(np.int64, \(None,\)\)",
        ),
        (
            (str, ()),
            r"record 0, feature 'x': it holds int64 \(\[1\]\), but str was asked for. Ask for features={'x': \(np.int",
        ),
        ((np.int8, (None,)), r"record 2, feature 'x': the value 300 does not fit int8. Ask for a wider dtype"),
        ((np.uint64, (None,)), r"record 3, feature 'x': the value -1 does not fit uint64"),
        ((bool, (None,)), r"record 2, feature 'x': the value 300 does not fit bool"),
    ],
)
def test_a_feature_unlike_what_was_asked_for_is_named(feature: Any, message: str) -> None:
    write_tfrecord("a.tfrecord", [{"x": 1}, {"y": 1}, {"x": 300}, {"x": -1}])
    with pytest.raises(DataError, match=f"a.tfrecord, {message}"):
        read_columns("a.tfrecord", features={"x": feature})


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (
            (np.int64, ()),
            r"line 1, feature 'f': it holds float64 \(\[0.5\]\), but int64 was asked for. Ask for .*np.float64",
        ),
        ((np.float16, ()), r"line 2, feature 'f': the value 1e\+30 does not fit float16"),
        (
            (np.float32, (2,)),
            r"line 1, feature 'f': it has 1 values, but shape \(2,\) asks for 2. If lengths differ, ask for",
        ),
    ],
)
def test_a_float_unlike_what_was_asked_for_is_named(feature: Any, message: str) -> None:
    write_jsonl("a.jsonl", [{"f": 0.5}, {"f": 1e30}])
    with pytest.raises(DataError, match=message):
        read_columns("a.jsonl", features={"f": feature})


def test_a_text_asked_for_as_numbers_or_as_utf_8_that_it_is_not_is_named() -> None:
    write_tfrecord("a", [{"t": b"a"}, {"t": b"\xe4"}])
    with pytest.raises(
        DataError, match=r"record 0, feature 't': it holds bytes \(b'a'\), but int64 was asked for. Ask for .*bytes"
    ):
        read_columns("a", features={"t": (np.int64, ())})
    with pytest.raises(
        DataError, match=r"record 1, feature 't': its bytes are not UTF-8. Ask for features={'t': \(bytes, \(\)"
    ):
        read_columns("a", features={"t": (str, ())})


def test_a_character_cut_between_two_texts_is_not_utf_8() -> None:
    write_tfrecord("a", [{"t": "ä".encode()[:1]}, {"t": "ä".encode()[1:]}])
    with pytest.raises(DataError, match=r"feature 't': its bytes are not UTF-8"):
        read_columns("a", features={"t": (str, ())})


@pytest.mark.parametrize("format", WRITERS)
def test_a_missing_text_is_named(format: str) -> None:
    path = WRITERS[format](f"a.{format}", [{"t": "a", "x": 1}, {"x": 2}])
    with pytest.raises(
        DataError,
        match=r"a.\w+, \w+ [12], feature 't': it is missing. Fill it in, say what .*missing={'t': ''}.*or leave",
    ):
        read_columns(path)
    with pytest.raises(DataError, match=r"feature 'never': it is missing. Fill it in, say what .*or leave"):
        read_columns(path, features={"never": (str, ())})


def test_a_later_example_unlike_the_first_ones_is_named() -> None:
    usual = {"ids": [1, 2], "text": "long" * 100}
    write_jsonl("a.jsonl", [usual] * 5000 + [usual | {"ids": [1, 2, 3]}])
    with pytest.raises(
        DataError, match=r"a.jsonl, line 5001, feature 'ids': it has 3 values, but shape \(2,\) asks for 2"
    ):
        read_columns("a.jsonl")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [1, "a"],
            r"line 2, feature 'x': it holds 'a'. A column holds numbers of up to 64 bits, lists of them, or one text",
        ),
        (["a", 1], r"line 2, feature 'x': it holds 1. A column"),
        ([1, 2**70], r"line 2, feature 'x': it holds 1180591620717411303424"),
        ([-1, 2**63], r"line 2, feature 'x': it holds 9223372036854775808"),
        ([{"a": 1}], r"line 1, feature 'x': it is struct<a: int64>, but a column holds numbers, lists of them, or one"),
        ([[1], ["a"]], r"line 2, feature 'x': it holds \['a'\]"),
        ([[[1, 2]], [[1], [2]]], r"line 2, feature 'x': the lists in its list have 2 items, but one has 1"),
    ],
)
def test_json_that_no_column_can_hold_is_named(values: list[object], message: str) -> None:
    write_jsonl("a.jsonl", [{"x": value} for value in values])
    with pytest.raises(DataError, match=message):
        read_columns("a.jsonl")


def test_lists_of_lists_that_differ_in_length_are_named() -> None:
    write_jsonl("a.jsonl", [{"x": [[1, 2]]}, {"x": [[1, 2], [3, 4]]}])
    with pytest.raises(
        DataError, match=r"feature 'x': it holds lists of items of shape \(2,\), but only plain lists may"
    ):
        read_columns("a.jsonl")


def test_lists_of_another_shape_are_named() -> None:
    write_jsonl("a.jsonl", [{"x": [[1, 2, 3], [4, 5, 6]]}])
    with pytest.raises(
        DataError,
        match=r"it has shape \(2, 3\), but \(3, 2\) was asked for. Ask for features={'x': \(np.int64, \(2, 3\)",
    ):
        read_columns("a.jsonl", features={"x": (np.int64, (3, 2))})


@pytest.mark.parametrize(("dtype", "cell"), [(np.int64, "1.5"), (np.float32, "x"), (bool, "2")])
def test_a_cell_that_is_no_number_is_named(dtype: Any, cell: str) -> None:
    Path("a.csv").write_text(f"x\n1\n{cell}\n")
    with pytest.raises(
        DataError, match=rf"a.csv, line 3, feature 'x': the cell '{cell}' is no \w+. Correct it, or ask for"
    ):
        read_columns("a.csv", features={"x": (dtype, ())})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": {}}, "features is empty. Name at least one feature, or give None for all"),
        (
            {"features": {"x": np.int64}},
            r"Feature 'x' is .*int64.*. Give a pair of \(dtype, shape\), such as \(np.int64, \(\)\)",
        ),
        ({"features": {"x": (None, ())}}, r"Feature 'x' is \(None, \(\)\). Give a pair"),
        ({"features": {"x": ("inte", ())}}, r"Feature 'x' is \('inte', \(\)\). Give a pair"),
        (
            {"features": {"x": (complex, ())}},
            "Feature 'x' is of complex128. A column holds bools, numbers, str or bytes",
        ),
        ({"features": {"x": (str, (3,))}}, r"Feature 'x' of str has shape \(3,\). A text has shape \(\); numbers have"),
        ({"features": {"x": (int, (None, 3))}}, r"Feature 'x' of int64 has shape \(None, 3\)"),
        ({"features": {"x": (int, (0,))}}, r"Feature 'x' of int64 has shape \(0,\)"),
        ({"format": "xml"}, "format is 'xml'; it can be one of tfrecord, jsonl, tsv, csv, parquet, text"),
        ({"names": ["x"]}, r"names= is for TSV and CSV files without a header, but a.jsonl has format jsonl"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    path = write_jsonl("a.jsonl", ROWS)
    with pytest.raises(ArgumentError, match=message):
        read_columns(path, **settings)
