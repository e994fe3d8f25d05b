"""What Arrow reads, what it is not left to guess, and what no column can hold."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.written import parquet, pyarrow, write_jsonl
from trellis.data import arrow_examples
from trellis.data.column_files import read_columns
from trellis.data.features import Feature
from trellis.data.ragged import Ragged
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
        "gap": Feature("float64"),
        "pair": Feature("int32", (2,)),
        "holes": Feature("int64", (None,)),
    }
    assert found["flag"].tolist() == [True, False, True]
    assert [found["word"][index] for index in range(3)] == ["a", "b", "a"]
    assert [found["raw"][index] for index in range(3)] == [b"\0", b"", b"x"]
    np.testing.assert_array_equal(found["gap"], [1.5, np.nan, 2.5])
    assert found["pair"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found["holes"].lengths.tolist() == [1, 0, 0]


def test_a_damaged_parquet_file_is_named() -> None:
    Path("a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"a.parquet: not a Parquet file, or damaged \(.*\). Write it again"):
        read_columns("a.parquet")


# Some thousand of these are more than Arrow reads at once.
LONG = "long " * 100


def texts(column: Ragged) -> list[object]:
    return [column[index] for index in range(len(column))]


def test_text_in_json_that_looks_like_a_time_is_text() -> None:
    Path("a.jsonl").write_text('{"day": "2020-01-01"}\n{"day": "2021-02-03"}\n')
    assert texts(read_columns("a.jsonl")["day"]) == ["2020-01-01", "2021-02-03"]


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ("18446744073709551615 1", Feature("uint64")),
        ("9007199254740993 1", Feature("int64")),
        ("[18446744073709551615] [1]", Feature("uint64", (1,))),
    ],
)
def test_integers_in_json_stay_exact(values: str, feature: Feature) -> None:
    Path("a.jsonl").write_text("".join(f'{{"x": {value}}}\n' for value in values.split()))
    columns = read_columns("a.jsonl")
    assert columns.features == {"x": feature}
    assert columns["x"].tolist() == [json.loads(value) for value in values.split()]


@pytest.mark.parametrize("values", [[9007199254740993, 0.5], [2**63, 0.5], [True, 1]])
def test_json_that_would_lose_something_is_named(values: list[object]) -> None:
    write_jsonl("a.jsonl", [{"x": value} for value in values])
    with pytest.raises(DataError, match=r"a.jsonl, line [12], feature 'x': it holds .*and the same on all lines"):
        read_columns("a.jsonl")


def test_a_feature_that_comes_late_is_read() -> None:
    Path("a.jsonl").write_text(f'{{"x": "{LONG}"}}\n' * 3000 + '{"x": "", "ids": [5]}\n')
    ids = read_columns("a.jsonl", features={"ids": (int, (None,))})["ids"]
    assert ids[3000].tolist() == [5]


def test_rows_after_one_that_arrow_cannot_read_are_read() -> None:
    lines = [*(f"{index}\t{LONG}" for index in range(3000)), "3000\ta\rb", "3001\tc"]
    Path("a.tsv").write_text("n\ttext\n" + "\n".join(lines), newline="")
    columns = read_columns("a.tsv")
    assert columns["n"].tolist() == list(range(3002))
    assert columns["text"][3000] == "a\rb"


def test_a_line_is_named_across_blocks_empty_lines_and_cells_of_two_lines() -> None:
    Path("a.csv").write_text('n,text\n\n1,"two\nlines"\n' + f"1,{LONG}\n" * 3000 + "x,b\n")
    with pytest.raises(DataError, match=r"a.csv, line 3005, feature 'n': the cell 'x' is no int64"):
        read_columns("a.csv")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.jsonl", b'{"x": "a"}\n{"x": "\xe9"}\n', 2),
        ("a.jsonl", b'{"x": 1}\n\n{"x": 1} {"x": 2}\n', 3),
        ("a.csv", b"x,y\n1,\xe9\n", 2),
        ("a.csv", b"x,y\n1,2\n1\n", 3),
        ("a.tsv", b"x\ty\n1\t2\t3\n", 2),
        ("a.txt", b"fine\n\xe9\n", 2),
    ],
)
def test_a_line_that_cannot_be_read_is_named(name: str, content: bytes, line: int) -> None:
    Path(name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}:{line}: "):
        read_columns(name)


def test_numbers_as_python_writes_them_are_read_if_asked_for() -> None:
    Path("a.csv").write_text("n,x\n+5, 1.5\n1_000,2\n,3\n")
    columns = read_columns("a.csv", features={"n": (int, (None,)), "x": (float, ())})
    assert columns.take(np.arange(3))["n"].tolist() == [[5], [1000], [0]]
    assert columns["x"].tolist() == [1.5, 2.0, 3.0]


def test_a_column_that_a_table_lacks_is_missing() -> None:
    Path("a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(
        DataError, match=r"a.csv, line 2, feature 'z': it is missing. Fill it in, say what .*, or leave it out"
    ):
        read_columns("a.csv", features={"z": (str, ())})
    assert read_columns("a.csv", features={"z": (int, (None,))})["z"][0].tolist() == []


def test_empty_cells_are_absent_whichever_reader_reads_them() -> None:
    Path("a.tsv").write_text("n\tempty\ttext\n1\t\ta\rb\n\t\t\n", newline="")
    columns = read_columns("a.tsv")
    assert columns.features == {"n": Feature("float64"), "empty": Feature("str"), "text": Feature("str")}
    np.testing.assert_array_equal(columns["n"], [1, np.nan])
    assert texts(columns["text"]) == ["a\rb", ""]


def test_compressed_rows_that_are_cut_short_are_named() -> None:
    rows = "".join(f"{index},{index}\n" for index in range(100_000))
    Path("a.csv.gz").write_bytes(gzip.compress(f"x,y\n{rows}".encode())[:-100])
    with pytest.raises(DataError, match=r"a.csv.gz: gzip data cut short or damaged"):
        read_columns("a.csv.gz")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("format", ["csv", "tsv", "jsonl"])
def test_arrow_reads_what_the_slower_reader_reads(format: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(seed)
    words = ["", "a", "ä b", 'say "hi"', "it's", "1", "007", "true", "null", "nan"]
    rows: list[dict[str, Any]] = [
        {
            "word": words[generator.integers(len(words))],
            "count": int(generator.integers(-(2**40), 2**40)),
            "share": float(generator.normal()),
            "gap": int(generator.integers(9)) if generator.random() < 0.5 else None,
        }
        for _ in range(200)
    ]
    path = Path(f"a.{format}")
    if format == "jsonl":
        write_jsonl(path.name, [row | {"ids": list(range(row["gap"] or 0)), "box": [[1, 2], [3, 4]]} for row in rows])
    elif format == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
        path.write_text("\n".join("\t".join(row) for row in [list(rows[0]), *cells]))
    quick = read_columns(path, cache_dir="quick")

    def refuse(source: object) -> None:
        raise pyarrow.ArrowInvalid("not today")

    monkeypatch.setattr(arrow_examples, "_arrow_blocks", refuse)
    slow = read_columns(path, cache_dir="slow")
    assert quick.features == slow.features
    for name in quick.features:
        np.testing.assert_array_equal(quick.take(np.arange(200))[name], slow.take(np.arange(200))[name])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"x\xff": 1}', r"a.jsonl:1: not UTF-8"),
        (b'{"x": "\\ud800"}', r"a.jsonl:1: not read \(a text has \\ud800"),
        (b'{"x": ' + b"9" * 5000 + b"}", r"a.jsonl:1: not read \(a whole number has more than 4300 digits"),
        (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}", r"a.jsonl:1: not read \(it is nested too deeply"),
    ],
)
def test_lines_that_arrow_does_not_survive_are_named(line: bytes, message: str) -> None:
    Path("a.jsonl").write_bytes(line)
    with pytest.raises(DataError, match=message):
        read_columns("a.jsonl")
