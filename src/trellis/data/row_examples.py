"""Rows of JSONL, TSV, CSV and text files as examples, a block at a time."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data.features import Cells, ExampleBlock
from trellis.data.ragged import TEXT_DTYPES, Ragged, offsets_of, row_at
from trellis.data.rows import Row, RowFormat, read_rows

_BLOCK_ROWS = 4096
_NUMBERS = {int, float, bool}
_BOOLS = {"0": False, "1": True, "false": False, "true": True}
# Only what would be written the same again is taken for a number unasked: 007 and 1_000 are text.
_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?|nan|-?inf")
_WAY_OUT = (
    "A column holds numbers of up to 64 bits, lists of them, or one text, and the same on all lines. "
    "Convert it, or leave it out of features."
)


def read_row_examples(path: Path, *, format: RowFormat, names: Sequence[str] | None = None) -> Iterator["RowExamples"]:
    """Yields the examples of a file of rows in blocks."""
    rows = read_rows(path, format=format, names=names)
    while block := list(itertools.islice(rows, _BLOCK_ROWS)):
        yield RowExamples(path, rows=block, is_table=format in ("tsv", "csv"))


class RowExamples(ExampleBlock):
    """The examples in a block of rows; in a table every cell is text, parsed as what is asked for."""

    def __init__(self, path: Path, *, rows: Sequence[Row], is_table: bool) -> None:
        super().__init__(path, numbers=[row.line for row in rows], unit="line")
        self._rows = [row.values for row in rows]
        self._is_table = is_table
        self._names = list(dict.fromkeys(itertools.chain.from_iterable(self._rows)))

    @property
    def names(self) -> list[str]:
        return self._names

    def cells(self, name: str, *, dtype: str | None) -> Cells:
        values: list[Any] = [row.get(name) for row in self._rows]
        if self._is_table and dtype not in TEXT_DTYPES:
            values = self._parsed(name, values, dtype)
        is_absent = np.array([value is None for value in values])
        kinds = {type(value) for value in values if value is not None}
        if kinds == {str}:
            texts = Ragged.from_rows(["" if value is None else value for value in values], dtype="str")
            return Cells(texts, is_absent=is_absent)
        if kinds == {list}:
            return self._lists(name, [[] if value is None else value for value in values])
        # Not only numbers: then the error names the first that is none.
        offsets = offsets_of(~is_absent)
        return Cells(Ragged(self._numbers(name, [v for v in values if v is not None], offsets), offsets=offsets))

    def _lists(self, name: str, rows: list[list[Any]]) -> Cells:
        sizes = np.array([len(row) for row in rows])
        items: list[Any] = list(itertools.chain.from_iterable(rows))
        item_shape: tuple[int, ...] = ()
        while items and all(type(item) is list for item in items):
            lengths = np.array([len(item) for item in items])
            is_other = lengths != lengths[0]
            if is_other.any():
                place = int(np.argmax(is_other))
                problem = f"the lists in its list have {lengths[0]} items, but one has {lengths[place]}. {_WAY_OUT}"
                raise self.error(problem, index=row_at(offsets_of(sizes), place=place), name=name)
            item_shape += (int(lengths[0]),)
            sizes = sizes * lengths[0]
            items = list(itertools.chain.from_iterable(items))
        offsets = offsets_of(sizes)
        return Cells(Ragged(self._numbers(name, items, offsets), offsets=offsets), item_shape=item_shape)

    def _numbers(self, name: str, items: list[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
        kinds = {type(item) for item in items}
        if kinds <= _NUMBERS:
            numbers = np.array(items, None if items else np.float64)
            # Integers that fit no dtype become objects or floats.
            if numbers.dtype.kind in "biu" or (numbers.dtype.kind == "f" and (float in kinds or not items)):
                return numbers
        is_number = [type(item) in _NUMBERS and abs(item) < 2**63 for item in items]
        place = is_number.index(not is_number[0]) if len(set(is_number)) > 1 else 0
        raise self.error(f"it holds {items[place]!r}. {_WAY_OUT}", index=row_at(offsets, place=place), name=name)

    def _parsed(self, name: str, cells: list[str], dtype: str | None) -> list[Any]:
        if dtype is None:
            filled = [cell for cell in cells if cell]
            if not filled or not all(_FLOAT.fullmatch(cell) for cell in filled):
                return cells
            dtype = "int64" if all(_INT.fullmatch(cell) for cell in filled) else "float64"
        parsed: list[Any] = []
        for index, cell in enumerate(cells):
            try:
                parsed.append(_parsed_cell(cell, dtype) if cell else None)
            except (ValueError, KeyError) as error:
                way_out = f"Correct it, or ask for features={{{name!r}: (str, ()), ...}}."
                raise self.error(f"the cell {cell!r} is no {dtype}. {way_out}", index=index, name=name) from error
        return parsed


def _parsed_cell(cell: str, dtype: str) -> bool | int | float:
    if dtype == "bool":
        return _BOOLS[cell.lower()]
    return float(cell) if dtype.startswith("float") else int(cell)
