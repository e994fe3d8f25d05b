"""Files of lines, read row by row: JSONL, TSV, CSV and plain text."""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from trellis.data.files import Format, format_of, open_file
from trellis.errors import ArgumentError, DataError

RowFormat = Literal["jsonl", "tsv", "csv", "text"]


class Row(NamedTuple):
    """One row of a file, with the number of the line that it starts on, counted from 1."""

    line: int
    values: dict[str, object]


def read_rows(
    path: str | os.PathLike[str], *, format: RowFormat | None = None, names: Sequence[str] | None = None
) -> Iterator[Row]:
    r"""Yields the rows of a file in UTF-8, gzip'd or not.

    JSONL has an object on each line. TSV has no quoting: cells lie between tabs. CSV is quoted. Cells of both are text;
    their first line names the columns, unless `names` does. Plain text has one column, "text", and keeps empty lines.
    Only \n ends a line.

    Example:
        for row in read_rows("CoLA/train.tsv", names=["source", "label", "mark", "sentence"]):
            print(row.line, row.values["sentence"])
    """
    path = Path(path)
    known = format_of(path) if format is None else format
    if known not in get_args(RowFormat):
        formats = ", ".join(get_args(RowFormat))
        raise ArgumentError(f"{path} has format {known}, none of {formats}. Use read_columns, or give format=.")
    if names is not None and known not in ("tsv", "csv"):
        raise ArgumentError(f"names= is for TSV and CSV files without a header, but {path} has format {known}.")
    if known == "jsonl":
        return _read_jsonl(path)
    if known == "text":
        return (Row(line, {"text": text}) for line, text in _read_lines(path))
    return _read_table(path, table_cells(path, format=known), names)


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    with open_file(path) as file:
        for line, data in enumerate(file, start=1):
            try:
                text = data.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{line}: not UTF-8 ({error}). Convert the file to UTF-8.") from error
            yield line, text.removesuffix("\n").removesuffix("\r")


def _read_jsonl(path: Path) -> Iterator[Row]:
    for line, text in _read_lines(path):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            problem = f"not JSON ({error.msg} at column {error.colno})"
            raise DataError(f"{path}:{line}: {problem}. Put one object on each line.") from error
        if not isinstance(values, dict):
            raise DataError(f"{path}:{line}: {type(values).__name__}, not an object. Put one object on each line.")
        yield Row(line, values)


def _read_table(path: Path, rows: Iterator[tuple[int, list[str]]], names: Sequence[str] | None) -> Iterator[Row]:
    header = list(names) if names is not None else next(rows, (1, list[str]()))[1]
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None:
        raise DataError(
            f"{path}: two columns have the name {repeated!r}. Give names= that differ if there is no header."
        )
    for line, cells in rows:
        if len(cells) == len(header):
            yield Row(line, dict(zip(header, cells, strict=True)))
        elif any(cells):
            raise DataError(
                f"{path}:{line}: {len(cells)} cells, but {len(header)} columns: {', '.join(header)}. "
                "Correct the line, or give names= if the file has no header."
            )


def table_cells(path: Path, *, format: Format) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row of a TSV or CSV file, the header included, with the line that it starts on."""
    if format == "csv":
        return _quoted_cells(path)
    return ((line, text.split("\t")) for line, text in _read_lines(path))


def _quoted_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{text}\n" for _, text in _read_lines(path)), strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        way_out = "Quote the cell, or give format='tsv' for tabs without quotes."
        raise DataError(f"{path}:{line}: not CSV ({error}). {way_out}") from error
