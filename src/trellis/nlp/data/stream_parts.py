"""What the streams of text have in common: which files, in what order, by which names."""

import math
import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trellis.aliases import Batch
from trellis.data import (
    Columns,
    DataConfig,
    Examples,
    ExampleStream,
    class_names_in,
    decode_example,
    find_files,
    format_of,
    patterns_in,
    read_columns,
    read_records,
    write_tfds_rows,
)
from trellis.errors import ConfigError, DataError, MissingPackageError
from trellis.nlp.data.configs import (
    BertPretrainTextDataConfig,
    DualEncoderDataConfig,
    MultiLabelDataConfig,
    QADataConfig,
    SentencePredictionTextDataConfig,
    TaggingDataConfig,
)
from trellis.nlp.data.sequences import RECORD_NAMES
from trellis.nlp.data.tokenizer import Tokenizer, build_tokenizer
from trellis.tasks import InputContext

TextConfig = (
    BertPretrainTextDataConfig
    | SentencePredictionTextDataConfig
    | MultiLabelDataConfig
    | TaggingDataConfig
    | QADataConfig
    | DualEncoderDataConfig
)


def input_paths(params: DataConfig) -> list[str]:
    """The files of a config, as paths and patterns."""
    place = data_place(params)
    if params.tfds_name:
        return [str(_tfds_file(params, place))]
    if isinstance(params.input_path, Mapping):
        sources = ", ".join(params.input_path)
        raise ConfigError(f"{place}.input_path has several sources ({sources}), but this task reads one.")
    paths = [path.strip() for path in patterns_in(params.input_path) if path.strip()]
    if not paths:
        raise ConfigError(f"{place}.input_path is empty. Name the files to read.")
    return paths


def _tfds_file(params: DataConfig, place: str) -> Path:
    if isinstance(params.tfds_name, Mapping):
        raise ConfigError(f"{place}.tfds_name has several sources ({', '.join(params.tfds_name)}). Name one.")
    if not params.tfds_split:
        raise ConfigError(f"{place}.tfds_split is empty. Name the part of {params.tfds_name} to read, such as train.")
    try:
        return write_tfds_rows(params.tfds_name, split=params.tfds_split, data_dir=params.tfds_data_dir)
    except MissingPackageError as error:
        raise ConfigError(
            f"{place}.tfds_name is {params.tfds_name!r}, and {error} Or write the data to files, and name these "
            f"instead: --params_override={place}.tfds_name=,{place}.input_path=FILES"
        ) from None


def named_counts(counts: Mapping[str, int], *, files: Sequence[Path], column: str) -> dict[str, int]:
    """Counts of labels by name: in alphabetical order or, if they are numbers, up to the highest, by its name if known.

    Args:
        files: Where the labels are: Parquet may tell the names of numbers.
        column: Theirs.
    """
    if not all(name.isdecimal() for name in counts):
        return {name: counts[name] for name in sorted(counts)}
    numbers = {int(name): count for name, count in counts.items()}
    names = class_names_in(files[0], column=column)
    if len(names) <= max(numbers, default=0):
        names = [str(number) for number in range(1 + max(numbers, default=-1))]
    return {name: numbers.get(number, 0) for number, name in enumerate(names)}


def data_place(params: DataConfig) -> str:
    """Where a config is in that of an experiment, to be named in errors."""
    return f"task.{'train' if params.is_training else 'validation'}_data"


def config_tokenizer(params: TextConfig, vocab_file: str, *, field: str, lower_case: bool) -> Tokenizer:
    """The tokenizer of a config of text.

    Args:
        field: What the config calls its `vocab_file`, for the error if that is empty.
    """
    if not vocab_file:
        raise ConfigError(
            f"{data_place(params)}.{field} is empty, and with the weights lies no vocab.txt, spiece.model, "
            f"sentencepiece.bpe.model, tokenizer.json, or vocab.json with merges.txt. Name the vocabulary to tokenize "
            f"{params.input_path} with."
        )
    return build_tokenizer(vocab_file, tokenization=params.tokenization, lower_case=lower_case)


@dataclass(frozen=True, eq=False)
class MadeExamples:
    """Examples that a function makes of their numbers."""

    n_examples: int
    make: Callable[[NDArray[np.int64]], Batch]

    def __len__(self) -> int:
        return self.n_examples

    def take(self, indices: NDArray[np.integer]) -> Batch:
        """Makes examples."""
        return self.make(np.asarray(indices, np.int64))


def seed_of(params: DataConfig, context: InputContext | None) -> int:
    """The seed of a stream: the config's own, or else that of the run."""
    return (context or InputContext()).seed if params.seed is None else params.seed


def example_stream(examples: Examples, *, params: DataConfig, context: InputContext | None) -> ExampleStream:
    """Batches of examples: shuffled and without end for training, else all of them once, in order."""
    if params.global_batch_size < 1:
        raise ConfigError(f"global_batch_size is {params.global_batch_size}; a batch has at least one example.")
    if not params.is_training and params.drop_remainder and len(examples) < params.global_batch_size:
        raise DataError(
            f"{params.input_path} has {len(examples)} examples, fewer than global_batch_size="
            f"{params.global_batch_size}, and drop_remainder leaves out a batch that is short. Make it false, or the "
            "batch smaller."
        )
    return ExampleStream(
        examples,
        batch_size=params.global_batch_size,
        seed=seed_of(params, context),
        shuffle=bool(params.is_training),
        n_epochs=None if params.is_training else 1,
        drop_remainder=params.drop_remainder,
    )


def read_features(
    params: DataConfig, *, features: Mapping[str, tuple[DTypeLike, tuple[int, ...]]], text_config: str
) -> Columns:
    """Reads examples that a data tool has made: TFRecord files, or a directory of columns.

    Args:
        features: What a batch has, by name; records may have the published names of either kind.
        text_config: What reads text, for the error if the files are text.
    """
    paths = input_paths(params)
    if len(paths) == 1 and os.path.isdir(paths[0]):
        columns = Columns.open(paths[0])
        names = {name: _name_on_disk(name, columns.features) for name in features}
        on_disk = columns.select(list(names.values())).features
        _check_lengths({name: on_disk[names[name]].shape for name in features}, features, params, place=paths[0])
    else:
        files = find_files(paths)
        _check_kind(files[0], text_config)
        first_example = decode_example(next(read_records(files[0])))
        names = {name: _name_on_disk(name, first_example) for name in features}
        lengths = {name: np.shape(first_example[names[name]]) for name in features if names[name] in first_example}
        _check_lengths(lengths, features, params, place=str(files[0]))
        columns = read_columns(files, features={names[name]: feature for name, feature in features.items()})
    return Columns({name: columns[names[name]] for name in features})


def _name_on_disk(name: str, columns: Container[str]) -> str:
    """The name of the column that holds a feature of a batch: the same, or else that of records."""
    record_name = RECORD_NAMES.get(name, name)
    return record_name if record_name in columns and name not in columns else name


def _check_lengths(
    shapes: Mapping[str, tuple[int | None, ...]], features: Mapping[str, Any], params: DataConfig, *, place: str
) -> None:
    """Refuses sequences of another length than the config has, and tells which field has it."""
    for name, (_, shape) in features.items():
        if len(shape) == 1 and shapes.get(name, shape) != shape:
            length = math.prod(size or 0 for size in shapes[name])
            field = "max_predictions_per_seq" if name.startswith("masked_lm_") else "seq_length"
            setting = f"{data_place(params)}.{field}"
            raise DataError(
                f"{place}: {name!r} has {length} values in an example, but {setting} is {shape[0]}. Set it to what "
                f"the data was made with: --params_override={setting}={length}"
            )


def _check_kind(file: Path, text_config: str) -> None:
    try:
        is_tfrecord = format_of(file) == "tfrecord"
    except DataError:
        # A file of no known format holds no records.
        is_tfrecord = False
    if not is_tfrecord:
        raise DataError(
            f"{file} holds no records that `trellis data` has made. Text is read by {text_config}; "
            "or make records of it with `trellis data`."
        )
