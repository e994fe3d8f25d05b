"""The examples of a run, as a `run_fn` asks for them: in batches, and how many there are.

What reads them is imported where it is called: it needs NumPy and protobuf, and a run begins without either.
"""

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.errors import DataError
from trellis.executor.artifacts import split_dir

AUTOTUNE = -1


@dataclass(frozen=True)
class RecordBatchesOptions:
    """How batches are made; the published options and defaults. The published class itself is taken too."""

    batch_size: int
    drop_final_batch: bool = False
    """Whether to leave out a last batch that is short."""
    num_epochs: int | None = None
    """None is for ever; batches then span the border of two epochs, and none is short."""
    shuffle: bool = True
    """Whether to shuffle files and examples, anew in each epoch."""
    shuffle_buffer_size: int = 10000
    """Among how many examples the next one is chosen."""
    shuffle_seed: int | None = None
    """None is 0: nothing is random without a seed."""


@dataclass(frozen=True)
class TensorFlowDatasetOptions(RecordBatchesOptions):
    """The same, with what `tf.data` has beside it."""

    prefetch_buffer_size: int = AUTOTUNE
    reader_num_threads: int = AUTOTUNE
    """Without effect: files are read in one thread."""
    parser_num_threads: int = AUTOTUNE
    """Without effect: examples are decoded in one thread."""
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
        self, file_patterns: str | Sequence[str], options: RecordBatchesOptions, schema: Any = None
    ) -> Iterator[Any]:
        """Batches as mappings of NumPy arrays; as pairs of one and the labels if options have a `label_key`."""
        from trellis.executor.example_batches import read_batches

        return read_batches(file_patterns, options=options, schema=schema)

    def record_batch_factory(
        self, file_patterns: str | Sequence[str], options: RecordBatchesOptions, schema: Any = None
    ) -> Iterator[Any]:
        """Batches as `pyarrow.RecordBatch`es: each column has a list of values for each example."""
        from trellis.executor.example_batches import read_arrow_batches

        return read_arrow_batches(file_patterns, options=options, schema=schema)

    def tf_dataset_factory(
        self, file_patterns: str | Sequence[str], options: RecordBatchesOptions, schema: Any = None
    ) -> Any:
        """Batches as a `tf.data.Dataset` of dense tensors, ragged where examples differ in length."""
        from trellis.executor.example_batches import build_tf_dataset

        return build_tf_dataset(lambda: self.numpy_factory(file_patterns, options, schema), options=options)


class ExampleCounts(Mapping[str, int]):
    """The number of examples by split, found when it is asked for: in statistics if there are some, else by counting.

    Example:
        n_epochs = fn_args.train_steps * batch_size / fn_args.num_examples["train"]
    """

    def __init__(self, patterns: Mapping[str, Sequence[str]], *, statistics: str | None = None) -> None:
        self.patterns = patterns
        self.statistics = statistics
        self._counts: dict[str, int] = {}

    def __getitem__(self, split: str) -> int:
        if split not in self._counts:
            patterns = self.patterns[split]
            stated = None if self.statistics is None else _stated_count(split_dir(self.statistics, split))
            self._counts[split] = _counted(patterns) if stated is None else stated
        return self._counts[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.patterns)

    def __len__(self) -> int:
        return len(self.patterns)

    def __repr__(self) -> str:
        # What was not asked for is not counted to be shown.
        return repr({split: self._counts.get(split, ...) for split in self})


def _counted(patterns: Sequence[str]) -> int:
    from trellis.data import read_records

    files = [path for pattern in patterns for path in sorted(glob.glob(pattern)) if Path(path).stat().st_size]
    return sum(1 for path in files for _ in read_records(path))


def _stated_count(folder: str) -> int | None:
    """Returns the number that the statistics of a split tell; None if there are none."""
    from google.protobuf.message import DecodeError

    from trellis.data import read_records

    if Path(folder, "FeatureStats.pb").is_file():
        file = Path(folder, "FeatureStats.pb")
        content = file.read_bytes()
    elif Path(folder, "stats_tfrecord").is_file():
        file = Path(folder, "stats_tfrecord")
        content = next(iter(read_records(file)), b"")
    else:
        return None
    try:
        # A list of data sets is field 1, the number of examples field 2 of each.
        n_examples: int = sum(count for data_set in _field(content, 1)[:1] for count in _field(data_set, 2))
    except (DecodeError, TypeError) as error:
        raise DataError(
            f"{file} holds no statistics of examples ({error}). Leave `statistics` out, or write them again."
        ) from None
    return n_examples


def _field(message: bytes, number: int) -> list[Any]:
    """Returns the values of a field of a protobuf message."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    return [field.data for field in UnknownFieldSet(Empty.FromString(message)) if field.field_number == number]
