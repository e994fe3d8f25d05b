"""Batches of examples from the files of a run: as NumPy arrays, which JAX takes as they are, Arrow or `tf.data`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trellis.executor.example_schema import ExampleSchema, parse_schema, read_schema

if TYPE_CHECKING:
    import numpy as np

AUTOTUNE = -1


class BatchOptions(Protocol):
    """How batches are made: one of the two classes below, or their published namesakes."""

    @property
    def batch_size(self) -> int:
        """Examples in a batch."""

    @property
    def drop_final_batch(self) -> bool:
        """Whether to leave out a last batch that is short."""

    @property
    def num_epochs(self) -> int | None:
        """How often to go through the files; None is for ever."""

    @property
    def shuffle(self) -> bool:
        """Whether to shuffle files and examples, anew in each epoch."""

    @property
    def shuffle_buffer_size(self) -> int:
        """Among how many examples the next one is chosen."""

    @property
    def shuffle_seed(self) -> int | None:
        """Of the order; None is 0."""


@dataclass(frozen=True)
class RecordBatchesOptions:
    """How batches are made; the published options and defaults.

    Nothing is random without a seed: a `shuffle_seed` of None is 0.
    """

    batch_size: int
    drop_final_batch: bool = False
    num_epochs: int | None = None
    """None is for ever; batches then span the border of two epochs, and none is short."""
    shuffle: bool = True
    shuffle_buffer_size: int = 10000
    shuffle_seed: int | None = None


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
        self, file_patterns: str | Sequence[str], options: BatchOptions, schema: Any = None
    ) -> Iterator[Any]:
        """Batches as mappings of NumPy arrays; as pairs of one and the labels if options have a `label_key`."""
        from trellis.executor.example_batches import read_batches

        label_key = getattr(options, "label_key", None)
        batches = read_batches(file_patterns, options=options, schema=_as_schema(schema))
        return batches if label_key is None else (_paired(batch, label_key) for batch in batches)

    def record_batch_factory(
        self, file_patterns: str | Sequence[str], options: BatchOptions, schema: Any = None
    ) -> Iterator[Any]:
        """Batches as `pyarrow.RecordBatch`es: each column has a list of values for each example."""
        import pyarrow

        from trellis.executor.example_batches import as_lists, read_batches

        for batch in read_batches(file_patterns, options=options, schema=_as_schema(schema)):
            lists = {name: as_lists(values) for name, values in batch.items()}
            columns = {
                name: pyarrow.array(
                    rows, pyarrow.list_(pyarrow.binary() if dtype.kind == "O" else pyarrow.from_numpy_dtype(dtype))
                )
                for name, (rows, dtype) in lists.items()
            }
            yield pyarrow.RecordBatch.from_pydict(columns)

    def tf_dataset_factory(self, file_patterns: str | Sequence[str], options: BatchOptions, schema: Any = None) -> Any:
        """Batches as a `tf.data.Dataset` of dense tensors, ragged where examples differ in length."""
        from trellis.executor.tf_dataset import build_tf_dataset

        return build_tf_dataset(lambda: self.numpy_factory(file_patterns, options, schema), options=options)


def _paired(batch: dict[str, "np.ndarray"], label_key: str) -> tuple[dict[str, Any], Any]:
    from trellis.executor.example_batches import named_feature

    labels = named_feature(batch, label_key)
    return {name: values for name, values in batch.items() if name != label_key}, labels


def _as_schema(given: Any) -> ExampleSchema | None:
    if given is None or isinstance(given, ExampleSchema):
        return given
    if isinstance(given, str | Path):
        return read_schema(given)
    # The messages of TensorFlow's metadata print themselves in the very form of a schema file.
    return parse_schema(str(given))
