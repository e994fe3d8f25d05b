"""Examples decoded by a schema, shuffled and batched."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import decode_example, read_records
from trellis.errors import ArgumentError, DataError
from trellis.executor.data_accessor import BatchOptions
from trellis.executor.example_schema import ExampleFeature, ExampleSchema
from trellis.spelling import nearest

_DTYPES: dict[str, np.dtype[Any]] = {
    "INT": np.dtype(np.int64),
    "FLOAT": np.dtype(np.float32),
    "BYTES": np.dtype(object),
}

Example = Mapping[str, Any]
NumpyBatch = dict[str, NDArray[Any]]


def read_batches(
    file_patterns: str | Sequence[str], *, options: BatchOptions, schema: ExampleSchema | None
) -> Iterator[NumpyBatch]:
    """Yields batches of the examples of files."""
    files = _files(file_patterns)
    if options.batch_size < 1:
        raise ArgumentError(f"batch_size is {options.batch_size}, but a batch has at least one example.")
    return _batches(files, options, schema)


def as_lists(values: NDArray[Any]) -> tuple[list[list[Any]], np.dtype[Any]]:
    """Returns a column as one flat list of values for each example, and the dtype of the values: object is bytes."""
    rows = [np.ravel(np.asarray(row)) for row in values]
    return [row.tolist() for row in rows], next((row.dtype for row in rows if len(row)), rows[0].dtype)


def named_feature(batch: NumpyBatch, name: str) -> NDArray[Any]:
    """Returns a feature of a batch; an error names those that there are."""
    if name not in batch:
        close = nearest(name, batch)
        meant = f" Did you mean {close!r}?" if close else ""
        raise ArgumentError(f"label_key: there is no feature {name!r}.{meant} The features are {', '.join(batch)}.")
    return batch[name]


def _files(file_patterns: str | Sequence[str]) -> list[str]:
    patterns = [file_patterns] if isinstance(file_patterns, str) else list(file_patterns)
    files = sorted({path for pattern in patterns for path in glob.glob(pattern)})
    if not files:
        raise DataError(
            f"No file matches {', '.join(patterns) or 'an empty list of patterns'}. Give fn_args.train_files."
        )
    return files


def _batches(files: list[str], options: BatchOptions, schema: ExampleSchema | None) -> Iterator[NumpyBatch]:
    waiting: list[tuple[str, bytes]] = []
    n_epochs = options.num_epochs
    for epoch in count() if n_epochs is None else range(n_epochs):
        n_records = 0
        for record in _records(files, options, epoch):
            n_records += 1
            waiting.append(record)
            if len(waiting) == options.batch_size:
                yield _stacked(waiting, schema)
                waiting = []
        if not n_records:
            raise DataError(f"There are no examples in {', '.join(files)}. Write them again.")
    if waiting and not options.drop_final_batch:
        yield _stacked(waiting, schema)


def _records(files: list[str], options: BatchOptions, epoch: int) -> Iterator[tuple[str, bytes]]:
    """Yields the records of an epoch, each with its file; in an order that is a function of (seed, epoch)."""
    if not options.shuffle:
        yield from ((path, record) for path in files for record in read_records(path))
        return
    generator = np.random.default_rng([options.shuffle_seed or 0, epoch])
    shuffled = [files[index] for index in generator.permutation(len(files))]
    kept: list[tuple[str, bytes]] = []
    for path in shuffled:
        for record in read_records(path):
            kept.append((path, record))
            if len(kept) >= max(options.shuffle_buffer_size, 1):
                index = int(generator.integers(len(kept)))
                kept[index], kept[-1] = kept[-1], kept[index]
                yield kept.pop()
    yield from (kept[index] for index in generator.permutation(len(kept)))


def _stacked(records: Sequence[tuple[str, bytes]], schema: ExampleSchema | None) -> NumpyBatch:
    examples = [decode_example(record) for _, record in records]
    if schema is None:
        names = sorted({name for example in examples for name in example})
        return {name: _found_column([example.get(name, []) for example in examples]) for name in names}
    places = [path for path, _ in records]
    return {
        each.name: _column(each, [example.get(each.name, []) for example in examples], places)
        for each in schema.feature
    }


def _found_column(rows: list[Any]) -> NDArray[Any]:
    """A column of whatever was found: an array if all have as many values, else one array for each."""
    arrays = [_as_array(row) for row in rows]
    if len({(array.shape, array.dtype) for array in arrays}) == 1:
        return np.stack(arrays)
    return _ragged(arrays)


def _column(feature: ExampleFeature, rows: list[Any], places: Sequence[str]) -> NDArray[Any]:
    arrays = [_as_array(row) for row in rows]
    dtype = _DTYPES.get(feature.type)
    for array, place in zip(arrays, places, strict=True):
        if dtype is not None and len(array) and array.dtype != dtype:
            found = "bytes" if array.dtype == object else array.dtype.name
            raise DataError(
                f"{place}: feature {feature.name!r} holds {found}, but its type in the schema is {feature.type}."
            )
        n_values = None if feature.shape is None else int(np.prod(feature.shape))
        if n_values is not None and len(array) != n_values:
            raise DataError(
                f"{place}: feature {feature.name!r} has {len(array)} values, but its shape in the schema asks for "
                f"{n_values}. Leave the shape out of the schema if examples differ."
            )
    arrays = [array.astype(dtype) if dtype is not None else array for array in arrays]
    return _ragged(arrays) if feature.shape is None else np.stack(arrays).reshape(len(rows), *feature.shape)


def _as_array(row: Any) -> NDArray[Any]:
    if isinstance(row, np.ndarray):
        return row
    array = np.empty(len(row), object)
    array[:] = row
    return array


def _ragged(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    column = np.empty(len(arrays), object)
    for index, array in enumerate(arrays):
        column[index] = array
    return column
