"""Parquet files as examples, a block at a time."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data.features import Cells, ExampleBlock
from trellis.data.ragged import Ragged, offsets_of, row_at
from trellis.errors import DataError, MissingPackageError

_BLOCK_ROWS = 4096


def read_parquet_examples(path: Path, *, names: Collection[str] | None = None) -> Iterator["ParquetExamples"]:
    """Yields the examples of a Parquet file in blocks; with `names`, only those columns are read."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError("pyarrow", "parquet") from error
    try:
        with parquet.ParquetFile(path) as file:
            wanted = [name for name in file.schema_arrow.names if names is None or name in names]
            first_row = 0
            for batch in file.iter_batches(_BLOCK_ROWS, columns=wanted):
                yield ParquetExamples(path, batch=batch, first_row=first_row)
                first_row += batch.num_rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or damaged ({error}). Write it again.") from error


class ParquetExamples(ExampleBlock):
    """The examples in a record batch of Arrow."""

    def __init__(self, path: Path, *, batch: Any, first_row: int) -> None:
        super().__init__(path, numbers=range(first_row, first_row + batch.num_rows), unit="row")
        self._batch = batch

    @property
    def names(self) -> list[str]:
        return list(self._batch.schema.names)

    def cells(self, name: str, *, dtype: str | None) -> Cells:
        from pyarrow import types

        array = self._batch.column(name)
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_string(array.type) or types.is_large_string(array.type):
            return _text_cells(array, "str")
        if types.is_binary(array.type) or types.is_large_binary(array.type):
            return _text_cells(array, "bytes")
        if _is_number(array.type):
            is_there = ~array.is_null().to_numpy(zero_copy_only=False)
            return Cells(Ragged(array.drop_null().to_numpy(zero_copy_only=False), offsets=offsets_of(is_there)))
        return self._list_cells(name, array)

    def _list_cells(self, name: str, array: Any) -> Cells:
        from pyarrow import types

        sizes, inner_sizes = np.ones(len(array), np.int64), list[int]()
        is_list = types.is_list, types.is_large_list, types.is_fixed_size_list
        depth = 0
        while any(is_kind(array.type) for is_kind in is_list):
            lengths = array.value_lengths().fill_null(0).to_numpy()
            if depth:
                inner_sizes.append(self._equal_length(name, lengths, offsets_of(sizes)))
            sizes = sizes * (inner_sizes[-1] if depth else lengths)
            array, depth = array.flatten(), depth + 1
        if not _is_number(array.type):
            problem = f"it is {self._batch.column(name).type}, but a column holds numbers, lists of them, or one text."
            raise self.error(f"{problem} Convert it, or leave it out of features.", index=0, name=name)
        offsets = offsets_of(sizes)
        if array.null_count:
            place = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            problem = "its list holds a null. Fill it in, or leave it out of features."
            raise self.error(problem, index=row_at(offsets, place=place), name=name)
        return Cells(Ragged(array.to_numpy(zero_copy_only=False), offsets=offsets), item_shape=tuple(inner_sizes))

    def _equal_length(self, name: str, lengths: NDArray[Any], offsets: NDArray[np.int64]) -> int:
        is_other = lengths != lengths[:1]
        if is_other.any():
            place = int(np.argmax(is_other))
            problem = f"the lists in its list have {lengths[0]} items, but one has {lengths[place]}."
            way_out = "Convert it, or leave it out of features."
            raise self.error(f"{problem} {way_out}", index=row_at(offsets, place=place), name=name)
        return int(lengths[0]) if len(lengths) else 1


def _is_number(arrow_type: Any) -> bool:
    from pyarrow import types

    return bool(types.is_boolean(arrow_type) or types.is_integer(arrow_type) or types.is_floating(arrow_type))


def _text_cells(array: Any, dtype: str) -> Cells:
    import pyarrow

    is_absent = array.is_null().to_numpy(zero_copy_only=False)
    filled = array.cast(pyarrow.large_binary()).fill_null(b"")
    _, offsets, data = filled.buffers()
    starts = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
    values = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]] if data else np.zeros(0, np.uint8)
    return Cells(Ragged(values, offsets=starts - starts[0], dtype=dtype), is_absent=is_absent)
