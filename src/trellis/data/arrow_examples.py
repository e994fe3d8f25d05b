"""Examples of tables, JSON lines, text and Parquet, read by Arrow a block at a time."""

import bisect
import itertools
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, csv, json, parquet, types

from trellis.data.features import Cells, ExampleBlock
from trellis.data.files import open_file
from trellis.data.ragged import TEXT_DTYPES, Ragged, offsets_of, row_at
from trellis.data.rows import Row, RowFormat, read_rows, table_cells
from trellis.errors import DataError
from trellis.json_text import DEEPEST

_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 4096
# A cell counts as a number only if the number would be written the same again: 007 and 1_000 are text.
_LOOKS_LIKE = {
    "int64": "^-?(0|[1-9][0-9]{0,17})$",
    "float64": r"^(-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?|nan|-?inf)$",
}
# What stands for no value in a column of numbers; in one of text it is a text.
_NOT_AVAILABLE = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "NaN")
_BOOLS = {"0": False, "1": True, "false": False, "true": True}
# By the kind of a NumPy dtype; all others are whole numbers.
_PARSERS: dict[str, Callable[[str], float]] = {"b": lambda cell: _BOOLS[cell.lower()], "f": float}
# What Arrow says of a file; bytes in names that are no UTF-8 come out when Python asks for the names.
_REFUSED = (
    pyarrow.ArrowInvalid,
    pyarrow.ArrowNotImplementedError,
    pyarrow.ArrowKeyError,
    pyarrow.ArrowTypeError,
    UnicodeDecodeError,
)
_LARGEST_EXACT_FLOAT = 2**53
_WAY_OUT = "Convert it, or leave it out of features."


class RowSource(NamedTuple):
    """A file of rows, and how to read it."""

    path: Path
    format: RowFormat
    names: Sequence[str] | None = None

    def rows(self, *, first: int = 0) -> Iterator[Row]:
        """Yields the rows from a number on, by the reader that is slower than Arrow and names the line of each."""
        return itertools.islice(read_rows(self.path, format=self.format, names=self.names), first, None)


def read_row_examples(source: RowSource) -> Iterator["ArrowExamples"]:
    """Yields the examples of a file of rows in blocks."""
    first = 0
    try:
        for batch in _arrow_blocks(source):
            columns = {name: batch.column(name) for name in batch.column_names}
            yield ArrowExamples(source.path, columns, first=first, n_examples=batch.num_rows, source=source)
            first += batch.num_rows
    except _REFUSED:
        # Arrow does not say on which line; the reader below does, or reads what Arrow could not.
        pass
    else:
        return
    rows = source.rows(first=first)
    while block := [row.values for row in itertools.islice(rows, _BLOCK_ROWS)]:
        names = dict.fromkeys(itertools.chain.from_iterable(block))
        lists = {name: [row.get(name) for row in block] for name in names}
        yield ArrowExamples(source.path, lists, first=first, n_examples=len(block), source=source)
        first += len(block)


def read_parquet_examples(path: Path, *, names: Collection[str] | None = None) -> Iterator["ArrowExamples"]:
    """Yields the examples of a Parquet file in blocks; with `names`, only those columns are read."""
    try:
        with parquet.ParquetFile(path) as file:
            selected = [name for name in file.schema_arrow.names if names is None or name in names]
            first = 0
            for batch in file.iter_batches(_BLOCK_ROWS, columns=selected):
                columns = {name: batch.column(name) for name in batch.schema.names}
                yield ArrowExamples(path, columns, first=first, n_examples=batch.num_rows)
                first += batch.num_rows
    except (*_REFUSED, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or damaged ({error}). Write it again.") from error


class ArrowExamples(ExampleBlock):
    """Examples in arrays of Arrow, or in lists that become such.

    Args:
        columns: By name. In a table every cell is text, which is parsed as the dtype that is asked for.
        source: Where the lines are, so that an error can name one; None for files without lines.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, Any],
        *,
        first: int,
        n_examples: int,
        source: RowSource | None = None,
    ) -> None:
        super().__init__(path, unit="row", first=first, n_examples=n_examples)
        self._columns = columns
        self._source = source

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def place(self, index: int) -> str:
        if self._source is None:
            return super().place(index)
        return f"line {next(self._source.rows(first=self._first + index)).line}"

    def cells(self, name: str, *, dtype: str | None) -> Cells:
        if name not in self._columns:
            # No cell is empty, there is none: a name that is misspelt is not a column of NaN.
            return replace(self._number_cells(name, pyarrow.nulls(len(self))), is_single=False)
        array = self._columns[name]
        is_table = self._source is not None and self._source.format in ("tsv", "csv")
        if is_table:
            array = self._parsed(name, array, dtype)
        elif isinstance(array, list):
            array = self._array(name, array)
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_string(array.type) or types.is_large_string(array.type):
            return replace(_text_cells(array, "str"), is_single=is_table)
        if types.is_binary(array.type) or types.is_large_binary(array.type):
            return _text_cells(array, "bytes")
        return self._number_cells(name, array)

    def _array(self, name: str, values: list[Any]) -> Any:
        """Returns values as an array of Arrow; raises DataError for the first that does not fit those before it."""
        # Arrow guesses int64 for whole numbers, but not uint64 for those that need it; and it cuts floats to fit.
        for kind in (None, pyarrow.uint64(), pyarrow.list_(pyarrow.uint64())):
            array = _arrow_array(values, kind)
            if array is not None and (kind is None or array.to_pylist() == values):
                return array
        index = bisect.bisect_left(range(len(values)), True, key=lambda last: _arrow_array(values[: last + 1]) is None)
        allowed = "A column holds numbers of up to 64 bits, lists of them, or one text, and the same on all lines."
        raise self.error(f"it holds {reprlib.repr(values[index])}. {allowed} {_WAY_OUT}", index=index, name=name)

    def _parsed(self, name: str, cells: Any, dtype: str | None) -> Any:
        """Returns the cells of a table as values of a dtype; None is the dtype that they look like."""
        if isinstance(cells, list):
            cells = pyarrow.array([cell or None for cell in cells], pyarrow.string())
        is_available = compute.invert(compute.is_in(cells, pyarrow.array(_NOT_AVAILABLE)))
        number_cells = compute.if_else(is_available, cells, pyarrow.scalar(None, cells.type))
        if dtype is None and number_cells.null_count < len(cells):
            fitting = (
                candidate
                for candidate, pattern in _LOOKS_LIKE.items()
                if compute.all(compute.match_substring_regex(number_cells, pattern)).as_py()
            )
            dtype = next(fitting, None)
        if dtype is None or dtype in TEXT_DTYPES:
            return cells.fill_null("")
        cells = number_cells
        kind = np.dtype(dtype).kind
        try:
            return cells.cast({"b": "bool", "f": "float64"}.get(kind, "int64"))
        except pyarrow.ArrowInvalid:
            # Python reads more than Arrow, such as +5, and what it cannot read is named.
            parse = _PARSERS.get(kind, int)
        numbers: list[Any] = []
        for index, cell in enumerate(cells.to_pylist()):
            try:
                numbers.append(None if cell is None else parse(cell))
            except (ValueError, KeyError) as error:
                way_out = f"Correct it, or ask for features={{{name!r}: (str, ()), ...}}."
                raise self.error(f"the cell {cell!r} is no {dtype}. {way_out}", index=index, name=name) from error
        return self._array(name, numbers)

    def _number_cells(self, name: str, array: Any) -> Cells:
        """Returns numbers, or lists of numbers, or lists of lists that have one length."""
        sizes = (~_is_null(array)).astype(np.int64)
        item_shape: tuple[int, ...] | None = None
        kind = array.type
        while _is_list(array.type):
            lengths = array.value_lengths().fill_null(0).to_numpy()
            if item_shape is None:
                sizes, item_shape = lengths, ()
            else:
                length = self._equal_length(name, lengths, offsets_of(sizes))
                sizes, item_shape = sizes * length, (*item_shape, length)
            array = array.flatten()
        if types.is_null(array.type):
            array = array.cast("float64")
        if not (types.is_boolean(array.type) or types.is_integer(array.type) or types.is_floating(array.type)):
            problem = f"it is {kind}, but a column holds numbers, lists of them, or one text. {_WAY_OUT}"
            raise self.error(problem, index=0, name=name)
        offsets = offsets_of(sizes)
        if item_shape is not None and array.null_count:
            index = row_at(offsets, place=int(np.argmax(_is_null(array))))
            raise self.error("its list holds a null. Fill it in, or leave it out of features.", index=index, name=name)
        numbers = array.drop_null().to_numpy(zero_copy_only=False)
        return Cells(Ragged(numbers, offsets=offsets), sizes > 0, item_shape, is_single=item_shape is None)

    def _equal_length(self, name: str, lengths: NDArray[Any], offsets: NDArray[np.int64]) -> int:
        is_other = lengths != lengths[:1]
        if is_other.any():
            place = int(np.argmax(is_other))
            problem = f"the lists in its list have {lengths[0]} items, but one has {lengths[place]}. {_WAY_OUT}"
            raise self.error(problem, index=row_at(offsets, place=place), name=name)
        return int(lengths[0]) if len(lengths) else 1


def _arrow_blocks(source: RowSource) -> Iterator[Any]:
    """Yields rows as tables of Arrow; raises ArrowInvalid where Arrow fails, or reads what others would not."""
    if source.format == "jsonl" and source.names is None:
        return _json_blocks(source.path)
    if source.format in ("tsv", "csv"):
        return _table_blocks(source)
    raise pyarrow.ArrowInvalid("nothing that Arrow reads")


def _json_blocks(path: Path) -> Iterator[Any]:
    with open_file(path) as file:
        while lines := file.readlines(_BLOCK_BYTES):
            if any(map(_may_be_deep, lines)):
                raise pyarrow.ArrowInvalid("more levels than Arrow reads in a reasonable time")
            data = b"".join(lines)
            # One block of Arrow's, so that a column has one type in all of it.
            table = json.read_json(
                pyarrow.BufferReader(data), json.ReadOptions(use_threads=False, block_size=len(data))
            ).combine_chunks()
            table.validate(full=True)
            if table.num_rows != sum(1 for line in lines if line.strip()):
                raise pyarrow.ArrowInvalid("a line without an object, or with two of them")
            if any(_is_guess(column.combine_chunks()) for column in table.columns):
                raise pyarrow.ArrowInvalid("a text or an integer that Arrow takes for something else")
            yield from table.to_batches()


def _may_be_deep(line: bytes) -> bool:
    """Whether JSON may have more levels than are read; brackets in its texts are taken for levels, too."""
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return False
    letters = np.frombuffer(line, np.uint8)
    steps = np.isin(letters, np.frombuffer(b"[{", np.uint8)).astype(np.int64)
    steps -= np.isin(letters, np.frombuffer(b"]}", np.uint8))
    return bool(np.cumsum(steps).max() > DEEPEST)


def _is_guess(array: Any) -> bool:
    """Whether Arrow may have taken text for a time, or an integer beyond 64 bits for a float."""
    while _is_list(array.type):
        array = array.flatten()
    if types.is_floating(array.type):
        return bool((np.abs(array.to_numpy(zero_copy_only=False)) >= _LARGEST_EXACT_FLOAT).any())
    return bool(types.is_timestamp(array.type))


def _table_blocks(source: RowSource) -> Iterator[Any]:
    names = source.names
    if names is None:
        first = next(table_cells(source.path, format=source.format), None)
        names = [] if first is None else first.cells
    if len(set(names)) != len(names) or len(names) < 2:
        raise pyarrow.ArrowInvalid("columns of one name, or one column, whose empty lines Arrow would skip")
    with open_file(source.path) as file:
        yield from csv.open_csv(
            file,
            csv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                column_names=names,
                skip_rows_after_names=0 if source.names is not None else 1,
            ),
            csv.ParseOptions(
                delimiter="," if source.format == "csv" else "\t",
                quote_char='"' if source.format == "csv" else False,
                newlines_in_values=source.format == "csv",
            ),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )


def _arrow_array(values: list[Any], kind: Any = None) -> Any | None:
    """Returns values as an array of Arrow, or None if one array cannot hold them all."""
    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, OverflowError, ValueError, TypeError):
        return None


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_null(array: Any) -> NDArray[np.bool_]:
    is_null: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return is_null


def _text_cells(array: Any, dtype: str) -> Cells:
    filled = array.cast(pyarrow.large_binary()).fill_null(b"")
    _, offsets, data = filled.buffers()
    starts = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
    values = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]] if data else np.zeros(0, np.uint8)
    return Cells(Ragged(values, offsets=starts - starts[0], dtype=dtype), ~_is_null(array))
