"""The examples of a run, as a `run_fn` asks for them: in batches, and how many there are.

What reads them is imported where it is called: it needs NumPy and protobuf, and a run begins without either.
"""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.errors import DataError

AUTOTUNE = -1
FilePatterns = str | Sequence[str]


@dataclass(frozen=True)
class RecordBatchesOptions:
    """How batches are made; the published options and defaults. Objects of the published class are accepted, too."""

    batch_size: int
    drop_final_batch: bool = False
    """Whether to leave out a last batch that is short."""
    num_epochs: int | None = None
    """None means without end; a batch may then hold examples of two epochs, and none is short."""
    shuffle: bool = True
    """Whether to shuffle files and examples, anew in each epoch."""
    shuffle_buffer_size: int = 10000
    """The number of examples among which the next one is chosen."""
    shuffle_seed: int | None = None
    """None means 0: nothing is random without a seed."""


@dataclass(frozen=True)
class TensorFlowDatasetOptions(RecordBatchesOptions):
    """The same, and the options that only `tf.data` has."""

    prefetch_buffer_size: int = AUTOTUNE
    reader_num_threads: int = AUTOTUNE
    """Without effect: files are read in one thread."""
    parser_num_threads: int = AUTOTUNE
    """How many batches are parsed at once by `tf_dataset_factory`; without effect on the others."""
    sloppy_ordering: bool = False
    """Without effect: the order is a function of the seed."""
    label_key: str | None = None
    """The feature that becomes the second of a pair."""


class DataAccessor:
    """Reads the examples of a run, `tf.Example`s in TFRecord files, gzip'd or not, in batches.

    Each method takes patterns of files, such as `fn_args.train_files`, options, and a schema: a path, an
    `ExampleSchema`, a schema message of TensorFlow's, or None to keep all features as they are found. A feature of
    fixed shape is an array `[batch, *shape]`; any other has one array for each example.

    Example:
        options = TensorFlowDatasetOptions(batch_size=32, label_key="species")
        for features, labels in fn_args.data_accessor.numpy_factory(fn_args.train_files, options, fn_args.schema_path):
            ...
    """

    data_view_decode_fn = None
    """Examples of other formats than `tf.Example` have no decoder."""

    def numpy_factory(
        self, file_patterns: FilePatterns, options: RecordBatchesOptions, schema: Any = None
    ) -> Iterator[Any]:
        """Batches as mappings of NumPy arrays; as pairs (mapping, labels) if the options have a `label_key`."""
        from trellis.executor.example_batches import read_batches, split_label

        batches = read_batches(file_patterns, options=options, schema=schema)
        label_key = getattr(options, "label_key", None)
        return batches if label_key is None else (split_label(batch, label_key) for batch in batches)

    def record_batch_factory(
        self, file_patterns: FilePatterns, options: RecordBatchesOptions, schema: Any = None
    ) -> Iterator[Any]:
        """Batches as `pyarrow.RecordBatch`es: each column has a list of values for each example."""
        from trellis.executor.example_batches import as_record_batch, read_batches

        return map(as_record_batch, read_batches(file_patterns, options=options, schema=schema))

    def tf_dataset_factory(self, file_patterns: FilePatterns, options: RecordBatchesOptions, schema: Any = None) -> Any:
        """Batches as a `tf.data.Dataset`, parsed by TensorFlow: dense tensors, sparse for features without a shape.

        Without a schema, features are as those of the first batch.
        """
        from trellis.executor.example_batches import build_tf_dataset

        return build_tf_dataset(file_patterns, options=options, schema=schema)


def count_examples(patterns: Sequence[str], *, statistics_dir: str | None) -> int:
    """Returns the number of examples in files: the one in the statistics of their split if there are some."""
    from trellis.data import read_records

    if statistics_dir is not None and Path(statistics_dir, "FeatureStats.pb").is_file():
        return _read_count(Path(statistics_dir, "FeatureStats.pb"))
    files = [path for pattern in patterns for path in sorted(glob.glob(pattern)) if Path(path).stat().st_size]
    return sum(1 for path in files for _ in read_records(path))


def _read_count(file: Path) -> int:
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    def values(message: bytes, number: int) -> list[Any]:
        return [field.data for field in UnknownFieldSet(Empty.FromString(message)) if field.field_number == number]

    try:
        # A list of data sets is field 1, the number of examples field 2 of each.
        return sum(count for data_set in values(file.read_bytes(), 1)[:1] for count in values(data_set, 2))
    except (DecodeError, TypeError) as error:
        raise DataError(
            f"{file} holds no statistics of examples ({error}). Leave `statistics` out, or write them again."
        ) from None
