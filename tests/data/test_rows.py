"""Rows of text files, with the lines that they stand on."""

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from trellis.data.rows import Row, class_names_in, first_names, read_rows
from trellis.errors import ArgumentError, DataError


def write(name: str, content: str | bytes) -> Path:
    path = Path(name)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_jsonl_has_an_object_on_each_line_and_may_have_empty_lines() -> None:
    path = write("a.jsonl", '{"x": 1, "y": [1, 2]}\n\n{"x": "ä"}')
    assert list(read_rows(path)) == [Row(1, {"x": 1, "y": [1, 2]}), Row(3, {"x": "ä"})]


def test_tsv_has_no_quoting() -> None:
    path = write("a.tsv", 'label\tsentence\n1\t"he said\n0\tit\'s "fine"\n')
    assert list(read_rows(path)) == [
        Row(2, {"label": "1", "sentence": '"he said'}),
        Row(3, {"label": "0", "sentence": 'it\'s "fine"'}),
    ]


def test_csv_is_quoted_and_a_row_is_named_by_its_first_line() -> None:
    path = write("a.csv", 'a,b\r\n"x,1","two\nlines"\r\ny,"say ""hi"""\r\n')
    assert list(read_rows(path)) == [
        Row(2, {"a": "x,1", "b": "two\nlines"}),
        Row(4, {"a": "y", "b": 'say "hi"'}),
    ]


def test_names_stand_in_for_a_header() -> None:
    path = write("cola.tsv", "gj04\t1\t\tA sentence.\n")
    rows = list(read_rows(path, names=["source", "label", "mark", "sentence"]))
    assert rows == [Row(1, {"source": "gj04", "label": "1", "mark": "", "sentence": "A sentence."})]


def test_text_keeps_empty_lines_and_splits_at_line_feeds_only() -> None:
    path = write("a.txt", "one\n\nthree\x85\u2028still three\r\nfour")
    assert [row.values["text"] for row in read_rows(path)] == ["one", "", "three\x85\u2028still three", "four"]


def test_gzip_and_a_byte_order_mark_are_seen_through() -> None:
    path = write("a.csv.gz", gzip.compress(b"\xef\xbb\xbfx\n1\n"))
    assert list(read_rows(path)) == [Row(2, {"x": "1"})]


def test_empty_lines_of_a_table_are_skipped() -> None:
    assert list(read_rows(write("a.csv", "x,y\n\n1,2\n\n"))) == [Row(3, {"x": "1", "y": "2"})]
    assert list(read_rows(write("a.tsv", "x\ty\n\n1\t2\n\n"))) == [Row(3, {"x": "1", "y": "2"})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"x": 1}\n{"x": ',
            r"a.jsonl:2: not JSON \(Expecting value at column 7\). Put one object on each line",
        ),
        ("a.jsonl", "{}\n[1]", "a.jsonl:2: list, not an object. Put one object on each line"),
        (
            "a.tsv",
            "x\ty\n1\t2\n1\n",
            "a.tsv:3: 1 cells, but 2 columns: x, y. Correct the line or, if",
        ),
        (
            "a.jsonl",
            '{}\n{"x": "\\ud800"}',
            r"a.jsonl:2: not read \(a text has \\ud800, which is half of a char",
        ),
        ("a.jsonl", f'{{"x": {"9" * 5000}}}', r"a.jsonl:1: not read \(a whole number has more than 4300 digits\)"),
        ("a.jsonl", f'{{"x": {"[" * 99}{"]" * 99}}}', r"a.jsonl:1: not read \(it is nested too deeply: 64 levels"),
        ("a.jsonl", '{"x":' * 200_000, r"a.jsonl:1: not read \(it is nested too deeply"),
        ("a.csv", "x,y\n1,2,3\n", "a.csv:2: 3 cells, but 2 columns: x, y"),
        ("a.csv", 'x,y\n1,2\n"1"2,3\n', r"a.csv:3: not CSV \(.*\). Quote the cell, or give format='tsv'"),
        ("a.csv", 'x,y\n1,2\n"1,\n', r"a.csv:3: not CSV \(unexpected end of data\)"),
        ("a.csv", "x,x\n1,2\n", "a.csv: two columns have the name 'x'. Rename one or, if there is no header"),
        ("a.txt", b"fine\n\xff\n", r"a.txt:2: not UTF-8 \(.*\). Convert the file to UTF-8"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_rows(write(name, content)))


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert list(read_rows(write("a.jsonl", '{"x": "\\ud83d\\ude00"}'))) == [Row(1, {"x": "\N{GRINNING FACE}"})]


def test_the_format_can_be_given() -> None:
    assert list(read_rows(write("data", "{no json}\n"), format="text")) == [Row(1, {"text": "{no json}"})]


def test_a_format_that_cannot_be_told_is_asked_for() -> None:
    with pytest.raises(
        DataError, match=r"data: neither its content nor its name tells its format. Give format= one of tfrec"
    ):
        read_rows(write("data", "what?\n"))


def test_a_file_without_rows_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a.npz has format npz, none of jsonl, tsv, csv, text, parquet"):
        read_rows(write("a.npz", b"PK"))


def test_names_are_for_tables_only() -> None:
    with pytest.raises(
        ArgumentError, match=r"names= is for TSV and CSV files without a header, but a.txt has format text"
    ):
        read_rows(write("a.txt", "x"), names=["x"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"x": "1"}\n{"x"\n\xff\n[]\n{"x": "5"}\n'),
        ("a.tsv", b"x\n1\n1\t2\n\xff\n1\t2\t3\n5\n"),
        ("a.csv", b'x\n1\n"1"2\n1,2\n1,2\n5\n'),
    ],
)
def test_rows_that_cannot_be_read_are_kept_with_their_problem_when_asked_for(name: str, content: bytes) -> None:
    first, *bad, last = read_rows(write(name, content), keep_bad=True)
    assert (first.values, last.values) == ({"x": "1"}, {"x": "5"})
    assert [row.line for row in bad] == list(range(first.line + 1, last.line))
    assert all(row.problem.startswith(f"{name}:{row.line}: ") and not row.values for row in bad)


def test_rows_of_parquet_have_cells_of_any_kind_and_numbers() -> None:
    rows = [{"text": "a", "tags": [0, 1], "number": None}, {"text": "b", "tags": [], "number": 2}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), "a.parquet")
    assert list(read_rows("a.parquet")) == [Row(1, rows[0]), Row(2, rows[1])]
    assert first_names(Path("a.parquet"), format="parquet") == ["text", "tags", "number"]
    assert class_names_in(Path("a.parquet"), column="tags") == []
    Path("a.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(DataError, match=r"a.parquet: not a Parquet file, or damaged"):
        list(read_rows("a.parquet"))


def test_names_of_classes_are_those_that_datasets_writes() -> None:
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}, "text": {"dtype": "string"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.table({"label": [0], "text": ["a"]}).replace_schema_metadata(metadata)
    parquet.write_table(table, "a.parquet")
    assert class_names_in(Path("a.parquet"), column="label") == ["no", "yes"]
    assert class_names_in(Path("a.parquet"), column="text") == []
    assert class_names_in(write("a.csv", "label\n0\n"), column="label") == []
