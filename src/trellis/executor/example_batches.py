"""Batches of examples: decoded by a schema, shuffled, as NumPy arrays, Arrow or `tf.data`."""

import glob
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import decode_example, read_records
from trellis.errors import ArgumentError, DataError, MissingPackageError
from trellis.executor.data_accessor import AUTOTUNE, FilePatterns, RecordBatchesOptions
from trellis.executor.example_schema import ExampleFeature, ExampleSchema, parse_schema, read_schema
from trellis.spelling import did_you_mean

_DTYPES: Mapping[str, Any] = {"INT": np.int64, "FLOAT": np.float32, "BYTES": np.object_}

NumpyBatch = dict[str, NDArray[Any]]


def read_batches(file_patterns: FilePatterns, *, options: RecordBatchesOptions, schema: Any) -> Iterator[NumpyBatch]:
    """Yields batches of the examples of files; what is wrong with the arguments is raised at once."""
    batches = _record_batches(file_patterns, options)
    parsed = _as_schema(schema)
    return (_stacked(batch, parsed) for batch in batches)


def _record_batches(file_patterns: FilePatterns, options: RecordBatchesOptions) -> Iterator[list[tuple[str, bytes]]]:
    """Yields the records of batches, each with its file."""
    if options.batch_size < 1:
        raise ArgumentError(f"batch_size is {options.batch_size}, but a batch has at least one example.")
    patterns = [file_patterns] if isinstance(file_patterns, str) else list(file_patterns)
    files = sorted({path for pattern in patterns for path in glob.glob(pattern)})
    if not files:
        raise DataError(
            f"No file matches {', '.join(patterns) or 'an empty list of patterns'}. Give fn_args.train_files."
        )
    return _cut(_records(files, options), options)


def split_label(batch: dict[str, Any], label_key: str) -> tuple[dict[str, Any], Any]:
    """Returns the features of a batch, and its labels."""
    if label_key not in batch:
        suggestion = did_you_mean(label_key, batch)
        raise ArgumentError(
            f"label_key: there is no feature {label_key!r}.{suggestion} The features are {', '.join(batch)}."
        )
    return {name: values for name, values in batch.items() if name != label_key}, batch[label_key]


def as_record_batch(batch: NumpyBatch) -> Any:
    """Returns a batch as a `pyarrow.RecordBatch`: each column has a list of values for each example."""
    import pyarrow

    columns = {}
    for name, values in batch.items():
        rows = [np.ravel(np.asarray(row)) for row in values]
        dtype = next((row.dtype for row in rows if len(row)), rows[0].dtype)
        arrow_type = pyarrow.binary() if dtype.kind == "O" else pyarrow.from_numpy_dtype(dtype)
        columns[name] = pyarrow.array([row.tolist() for row in rows], pyarrow.list_(arrow_type))
    return pyarrow.RecordBatch.from_pydict(columns)


def build_tf_dataset(file_patterns: FilePatterns, *, options: Any, schema: Any) -> Any:
    """Returns a `tf.data.Dataset` of batches, in the order of `read_batches`, which TensorFlow parses."""
    try:
        # Imported by its name, as Trellis does not depend on TensorFlow.
        tf = importlib.import_module("tensorflow")
    except ImportError:
        raise MissingPackageError("tensorflow", "tensorflow") from None
    # What does not fit the schema, and a label that is not there, are told by the first batch.
    first = next(read_batches(file_patterns, options=options, schema=schema))
    parsers = {name: _parser(values, tf) for name, values in first.items()}
    label_key = getattr(options, "label_key", None)
    if label_key is not None:
        split_label(first, label_key)

    def serialized() -> Iterator[list[bytes]]:
        return ([record for _, record in batch] for batch in _record_batches(file_patterns, options))

    def parse(batch: Any) -> Any:
        features = tf.io.parse_example(batch, parsers)
        return features if label_key is None else split_label(features, label_key)

    data_set = tf.data.Dataset.from_generator(serialized, output_signature=tf.TensorSpec([None], tf.string))
    parsed = data_set.map(parse, num_parallel_calls=getattr(options, "parser_num_threads", AUTOTUNE))
    return parsed.prefetch(getattr(options, "prefetch_buffer_size", AUTOTUNE))


def _as_schema(schema: Any) -> ExampleSchema | None:
    if schema is None or isinstance(schema, ExampleSchema):
        return schema
    if isinstance(schema, str | Path):
        return read_schema(schema)
    # The text of a schema message of TensorFlow's is what a schema file holds.
    return parse_schema(str(schema))


def _cut(records: Iterator[tuple[str, bytes]], options: RecordBatchesOptions) -> Iterator[list[tuple[str, bytes]]]:
    while batch := list(islice(records, options.batch_size)):
        if len(batch) == options.batch_size or not options.drop_final_batch:
            yield batch


def _records(files: list[str], options: RecordBatchesOptions) -> Iterator[tuple[str, bytes]]:
    """Yields the records of all epochs, each with its file."""
    for epoch in count() if options.num_epochs is None else range(options.num_epochs):
        records = _shuffled_records(files, options, epoch) if options.shuffle else _records_of(files)
        first = next(records, None)
        if first is None:
            raise DataError(f"There are no examples in {', '.join(files)}. Write them again.")
        yield first
        yield from records


def _records_of(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    return ((path, record) for path in files for record in read_records(path))


def _shuffled_records(files: list[str], options: RecordBatchesOptions, epoch: int) -> Iterator[tuple[str, bytes]]:
    """Yields the records of an epoch in an order that is a function of (seed, epoch)."""
    generator = np.random.default_rng([options.shuffle_seed or 0, epoch])
    buffer: list[tuple[str, bytes]] = []
    for record in _records_of([files[index] for index in generator.permutation(len(files))]):
        buffer.append(record)
        if len(buffer) >= max(options.shuffle_buffer_size, 1):
            index = int(generator.integers(len(buffer)))
            buffer[index], buffer[-1] = buffer[-1], buffer[index]
            yield buffer.pop()
    yield from (buffer[index] for index in generator.permutation(len(buffer)))


def _stacked(records: Sequence[tuple[str, bytes]], schema: ExampleSchema | None) -> NumpyBatch:
    examples = [decode_example(record) for _, record in records]
    if schema is None:
        names = sorted({name for example in examples for name in example})
        return {name: _stacked_or_ragged([_as_array(example.get(name, [])) for example in examples]) for name in names}
    places = [path for path, _ in records]
    return {
        each.name: _column(each, [_as_array(example.get(each.name, [])) for example in examples], places)
        for each in schema.feature
    }


def _stacked_or_ragged(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """A column without a schema: one array if all rows have as many values, else an array for each row."""
    return np.stack(rows) if len({(row.shape, row.dtype) for row in rows}) == 1 else _objects(rows)


def _column(feature: ExampleFeature, rows: list[NDArray[Any]], places: Sequence[str]) -> NDArray[Any]:
    dtype = _DTYPES.get(feature.type)
    n_values = None if feature.shape is None else math.prod(feature.shape)
    for row, place in zip(rows, places, strict=True):
        if dtype is not None and len(row) and row.dtype != dtype:
            dtype_name = "bytes" if row.dtype == object else row.dtype.name
            raise DataError(
                f"{place}: feature {feature.name!r} holds {dtype_name}, but its type in the schema is {feature.type}."
            )
        if n_values is not None and len(row) != n_values:
            raise DataError(
                f"{place}: feature {feature.name!r} has {len(row)} values, but its shape in the schema asks for "
                f"{n_values}. Leave the shape out of the schema if examples differ."
            )
    rows = [row if dtype is None else row.astype(dtype) for row in rows]
    return _objects(rows) if feature.shape is None else np.stack(rows).reshape(len(rows), *feature.shape)


def _as_array(values: Any) -> NDArray[Any]:
    return values if isinstance(values, np.ndarray) else _objects(values)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """An array of these very objects: NumPy would look into arrays, and drop zeros at the end of bytes."""
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def _parser(values: Any, tf: Any) -> Any:
    """How TensorFlow parses a feature like this one: sparse where examples differ in length."""
    is_ragged = values.dtype == object and isinstance(values.flat[0], np.ndarray)
    # An example without values does not tell their type.
    sample = next((row for row in values if len(row)), values.flat[0]) if is_ragged else values
    dtype = tf.string if sample.dtype == object else tf.dtypes.as_dtype(sample.dtype)
    return tf.io.VarLenFeature(dtype) if is_ragged else tf.io.FixedLenFeature(list(values.shape[1:]), dtype)
