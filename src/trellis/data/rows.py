"""Files read row by row: JSONL, TSV, CSV, plain text and Parquet."""

import contextlib
import csv
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from trellis.data.files import Format, format_of, open_file
from trellis.errors import ArgumentError, DataError
from trellis.json_text import parse_json
from trellis.remote import fetched

RowFormat = Literal["jsonl", "tsv", "csv", "text", "parquet"]

_BLOCK_ROWS = 4096
_PARQUET = b"PAR1"


class Row(NamedTuple):
    """One row of a file, with the number of the line that it starts on, counted from 1; in Parquet that of the row."""

    line: int
    values: dict[str, object]
    problem: str = ""
    """Why it has no values, if it cannot be read."""


def read_rows(
    path: str | os.PathLike[str],
    *,
    format: RowFormat | None = None,
    names: Sequence[str] | None = None,
    keep_bad: bool = False,
) -> Iterator[Row]:
    r"""Yields the rows of a file in UTF-8, gzip'd or not.

    JSONL has an object on each line. TSV has no quoting: cells lie between tabs. CSV is quoted. Cells of both are text;
    their first line names the columns, unless `names` does. Plain text has one column, "text", and keeps empty lines.
    Only \n ends a line. Parquet has cells of any kind.

    Example:
        for row in read_rows("CoLA/train.tsv", names=["source", "label", "mark", "sentence"]):
            print(row.line, row.values["sentence"])

    Args:
        keep_bad: Whether a row that cannot be read is yielded with its problem; else the first one is an error.
    """
    path = fetched(path, name="path")
    known = format_of(path) if format is None else format
    if known not in get_args(RowFormat):
        formats = ", ".join(get_args(RowFormat))
        raise ArgumentError(f"{path} has format {known}, none of {formats}. Use read_columns, or give format=.")
    if names is not None and known not in ("tsv", "csv"):
        raise ArgumentError(f"names= is for TSV and CSV files without a header, but {path} has format {known}.")
    if known == "parquet":
        rows = _read_parquet(path)
    elif known == "jsonl":
        rows = _read_jsonl(path)
    elif known == "text":
        rows = (Row(line, {"text": text}, problem) for line, text, problem in _read_lines(path))
    else:
        rows = _read_table(path, table_cells(path, format=known), names)
    return rows if keep_bad else map(_checked, rows)


def first_names(path: Path, *, format: RowFormat) -> list[str]:
    """The cells of the first line of a table, or the names in the first object; these may be names of columns."""
    if format == "parquet":
        with _open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if format in ("jsonl", "text"):
        return next((list(row.values) for row in read_rows(path, format=format, keep_bad=True) if row.values), [])
    return _header(table_cells(path, format=format))


def _checked(row: Row) -> Row:
    if row.problem:
        raise DataError(row.problem)
    return row


class _Line(NamedTuple):
    number: int
    text: str
    problem: str = ""


class Cells(NamedTuple):
    """The cells of a row of a table, with the line that it starts on; none if there is a problem."""

    line: int
    cells: list[str]
    problem: str = ""


def _read_lines(path: Path) -> Iterator[_Line]:
    with open_file(path) as file:
        for number, data in enumerate(file, start=1):
            try:
                text = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield _Line(number, "", f"{path}:{number}: not UTF-8 ({error}). Convert the file to UTF-8.")
            else:
                yield _Line(number, text.removesuffix("\n").removesuffix("\r"))


def _read_jsonl(path: Path) -> Iterator[Row]:
    for line, text, problem in _read_lines(path):
        if problem:
            yield Row(line, {}, problem)
            continue
        if not text.strip():
            continue
        try:
            values = parse_json(text)
        except json.JSONDecodeError as error:
            problem = f"not JSON ({error.msg} at column {error.colno})"
            yield Row(line, {}, f"{path}:{line}: {problem}. Put one object on each line.")
            continue
        except ValueError as error:
            yield Row(line, {}, f"{path}:{line}: not read ({error}). Correct the line, or leave it out.")
            continue
        if isinstance(values, dict):
            yield Row(line, values)
        else:
            kind = type(values).__name__
            yield Row(line, {}, f"{path}:{line}: {kind}, not an object. Put one object on each line.")


def _read_parquet(path: Path) -> Iterator[Row]:
    with _open_parquet(path) as file:
        rows = (row for batch in file.iter_batches(_BLOCK_ROWS) for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield Row(number, row)


def class_names_in(path: Path, *, column: str) -> list[str]:
    """The names of the classes whose numbers a column has, if `datasets` of Hugging Face wrote the file as Parquet."""
    with open_file(path) as start:
        if not start.read(len(_PARQUET)).startswith(_PARQUET):
            return []
    with _open_parquet(path) as file:
        metadata = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        feature = parse_json(metadata)["info"]["features"][column]
        # That of a list is inside of the list's own.
        names = feature.get("feature", feature).get("names", [])
    except (ValueError, LookupError, TypeError, AttributeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a Parquet file, or damaged ({error}). Write it again.") from error


def _read_table(path: Path, rows: Iterator[Cells], names: Sequence[str] | None) -> Iterator[Row]:
    header = list(names) if names is not None else _header(rows)
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None:
        raise DataError(
            f"{path}: two columns have the name {repeated!r}. Rename one or, if there is no header, name the columns."
        )
    for line, cells, problem in rows:
        if problem:
            yield Row(line, {}, problem)
        elif len(cells) == len(header):
            yield Row(line, dict(zip(header, cells, strict=True)))
        elif any(cells):
            problem = f"{path}:{line}: {len(cells)} cells, but {len(header)} columns: {', '.join(header)}. "
            yield Row(line, {}, problem + "Correct the line or, if there is no header, name the columns.")


def _header(rows: Iterator[Cells]) -> list[str]:
    first = next((row for row in rows if row.problem or any(row.cells)), Cells(1, []))
    if first.problem:
        raise DataError(first.problem)
    return first.cells


def table_cells(path: Path, *, format: Format) -> Iterator[Cells]:
    """Yields the cells of each row of a TSV or CSV file, the header included."""
    if format == "csv":
        return _quoted_cells(path)
    return (Cells(line, [] if problem else text.split("\t"), problem) for line, text, problem in _read_lines(path))


def _quoted_cells(path: Path) -> Iterator[Cells]:
    reader = csv.reader((f"{line.text}\n" for line in map(_checked_line, _read_lines(path))), strict=True)
    line = 1
    while True:
        try:
            yield Cells(line, next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            way_out = "Quote the cell, or give format='tsv' for tabs without quotes."
            yield Cells(line, [], f"{path}:{line}: not CSV ({error}). {way_out}")
        line = reader.line_num + 1


def _checked_line(line: _Line) -> _Line:
    # A quoted cell may go on over many lines: what a bad one belongs to cannot be told.
    if line.problem:
        raise DataError(line.problem)
    return line
