"""Batches of examples: decoded by a schema, shuffled, as NumPy arrays, Arrow or `tf.data`."""

import glob
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import decode_example, read_records
from trellis.errors import ArgumentError, DataError, MissingPackageError
from trellis.executor.data_accessor import RecordBatchesOptions
from trellis.executor.example_schema import ExampleFeature, ExampleSchema, parse_schema, read_schema
from trellis.spelling import nearest

_DTYPES: dict[str, np.dtype[Any]] = {
    "INT": np.dtype(np.int64),
    "FLOAT": np.dtype(np.float32),
    "BYTES": np.dtype(object),
}

Example = Mapping[str, Any]
NumpyBatch = dict[str, NDArray[Any]]


def read_batches(file_patterns: str | Sequence[str], *, options: RecordBatchesOptions, schema: Any) -> Iterator[Any]:
    """Yields batches of the examples of files; pairs of features and labels if the options have a `label_key`."""
    batches = _batches(_find_files(file_patterns), options, _as_schema(schema))
    label_key = getattr(options, "label_key", None)
    return batches if label_key is None else (_split_label(batch, label_key) for batch in batches)


def read_arrow_batches(
    file_patterns: str | Sequence[str], *, options: RecordBatchesOptions, schema: Any
) -> Iterator[Any]:
    """Yields batches as `pyarrow.RecordBatch`es: each column has a list of values for each example."""
    import pyarrow

    for batch in _batches(_find_files(file_patterns), options, _as_schema(schema)):
        columns = {}
        for name, values in batch.items():
            rows = [np.ravel(np.asarray(row)) for row in values]
            dtype = next((row.dtype for row in rows if len(row)), rows[0].dtype)
            arrow_type = pyarrow.binary() if dtype.kind == "O" else pyarrow.from_numpy_dtype(dtype)
            columns[name] = pyarrow.array([row.tolist() for row in rows], pyarrow.list_(arrow_type))
        yield pyarrow.RecordBatch.from_pydict(columns)


def build_tf_dataset(read: Callable[[], Iterator[Any]], *, options: Any) -> Any:
    """Returns a data set of the batches that each call of `read` yields anew."""
    try:
        # By name: Trellis depends on no TensorFlow, and this part does so only where somebody has it.
        tf = importlib.import_module("tensorflow")
    except ImportError:
        raise MissingPackageError("tensorflow", "tensorflow") from None
    signature = _mapped(_spec, next(read()), tf)
    data_set = tf.data.Dataset.from_generator(
        lambda: (_mapped(_tensor, batch, tf) for batch in read()), output_signature=signature
    )
    return data_set.prefetch(getattr(options, "prefetch_buffer_size", -1))


def _as_schema(schema: Any) -> ExampleSchema | None:
    if schema is None or isinstance(schema, ExampleSchema):
        return schema
    if isinstance(schema, str | Path):
        return read_schema(schema)
    # The messages of TensorFlow's metadata print themselves in the very form of a schema file.
    return parse_schema(str(schema))


def _split_label(batch: NumpyBatch, label_key: str) -> tuple[NumpyBatch, NDArray[Any]]:
    if label_key not in batch:
        close = nearest(label_key, batch)
        suggestion = f" Did you mean {close!r}?" if close else ""
        raise ArgumentError(
            f"label_key: there is no feature {label_key!r}.{suggestion} The features are {', '.join(batch)}."
        )
    return {name: values for name, values in batch.items() if name != label_key}, batch[label_key]


def _find_files(file_patterns: str | Sequence[str]) -> list[str]:
    patterns = [file_patterns] if isinstance(file_patterns, str) else list(file_patterns)
    files = sorted({path for pattern in patterns for path in glob.glob(pattern)})
    if not files:
        raise DataError(
            f"No file matches {', '.join(patterns) or 'an empty list of patterns'}. Give fn_args.train_files."
        )
    return files


def _batches(files: list[str], options: RecordBatchesOptions, schema: ExampleSchema | None) -> Iterator[NumpyBatch]:
    if options.batch_size < 1:
        raise ArgumentError(f"batch_size is {options.batch_size}, but a batch has at least one example.")
    return _generate_batches(files, options, schema)


def _generate_batches(
    files: list[str], options: RecordBatchesOptions, schema: ExampleSchema | None
) -> Iterator[NumpyBatch]:
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


def _records(files: list[str], options: RecordBatchesOptions, epoch: int) -> Iterator[tuple[str, bytes]]:
    """Yields the records of an epoch, each with its file; in an order that is a function of (seed, epoch)."""
    if not options.shuffle:
        yield from ((path, record) for path in files for record in read_records(path))
        return
    generator = np.random.default_rng([options.shuffle_seed or 0, epoch])
    shuffled = [files[index] for index in generator.permutation(len(files))]
    buffer: list[tuple[str, bytes]] = []
    for path in shuffled:
        for record in read_records(path):
            buffer.append((path, record))
            if len(buffer) >= max(options.shuffle_buffer_size, 1):
                index = int(generator.integers(len(buffer)))
                buffer[index], buffer[-1] = buffer[-1], buffer[index]
                yield buffer.pop()
    yield from (buffer[index] for index in generator.permutation(len(buffer)))


def _stacked(records: Sequence[tuple[str, bytes]], schema: ExampleSchema | None) -> NumpyBatch:
    examples = [decode_example(record) for _, record in records]
    if schema is None:
        names = sorted({name for example in examples for name in example})
        return {name: _stacked_or_ragged([example.get(name, []) for example in examples]) for name in names}
    places = [path for path, _ in records]
    return {
        each.name: _column(each, [example.get(each.name, []) for example in examples], places)
        for each in schema.feature
    }


def _stacked_or_ragged(rows: list[Any]) -> NDArray[Any]:
    """A column without a schema: one array if all rows have as many values, else an array for each row."""
    arrays = [_as_array(row) for row in rows]
    if len({(array.shape, array.dtype) for array in arrays}) == 1:
        return np.stack(arrays)
    return _ragged(arrays)


def _column(feature: ExampleFeature, rows: list[Any], places: Sequence[str]) -> NDArray[Any]:
    arrays = [_as_array(row) for row in rows]
    dtype = _DTYPES.get(feature.type)
    for array, place in zip(arrays, places, strict=True):
        if dtype is not None and len(array) and array.dtype != dtype:
            dtype_name = "bytes" if array.dtype == object else array.dtype.name
            raise DataError(
                f"{place}: feature {feature.name!r} holds {dtype_name}, but its type in the schema is {feature.type}."
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


def _mapped(function: Callable[[Any, Any], Any], batch: Any, tf: Any) -> Any:
    features, *labels = batch if isinstance(batch, tuple) else (batch,)
    mapped = {name: function(values, tf) for name, values in features.items()}
    return (mapped, function(labels[0], tf)) if labels else mapped


def _is_ragged(values: Any) -> bool:
    return values.dtype == object and isinstance(values.flat[0], np.ndarray)


def _dtype(values: Any, tf: Any) -> Any:
    return tf.string if values.dtype == object else tf.dtypes.as_dtype(values.dtype)


def _spec(values: Any, tf: Any) -> Any:
    if _is_ragged(values):
        return tf.RaggedTensorSpec([None, None], dtype=_dtype(values.flat[0], tf))
    return tf.TensorSpec([None, *values.shape[1:]], dtype=_dtype(values, tf))


def _tensor(values: Any, tf: Any) -> Any:
    if _is_ragged(values):
        return tf.ragged.constant([row.tolist() for row in values], dtype=_dtype(values.flat[0], tf), ragged_rank=1)
    return tf.constant(values.tolist() if values.dtype == object else values, dtype=_dtype(values, tf))
