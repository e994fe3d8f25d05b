"""Sentences, or pairs of them, each with any number of labels: rows of files to tokens, to batches."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, ExampleStream, Ragged, Row, cached_columns, find_files
from trellis.errors import ConfigError, DataError
from trellis.nlp.data.configs import MultiLabelDataConfig
from trellis.nlp.data.sentences import SentencePairs, check_text_config, fitted
from trellis.nlp.data.sequences import Specials
from trellis.nlp.data.stream_parts import config_tokenizer, data_place, example_stream, input_paths, named_counts
from trellis.nlp.data.text_file import TextFile, open_text_file
from trellis.nlp.data.token_cache import cache_directory, in_blocks, local_map, n_useful_workers
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.runtime import print_line
from trellis.spelling import did_you_mean
from trellis.tasks import InputContext

_BLOCK_ROWS = 1 << 11
# Part of the key of the cache: raised when the same files would give other tokens than before.
_VERSION = 1
_YES = ("1", "1.0", "true", "yes")
_NO = ("0", "0.0", "false", "no", "")


@dataclass(frozen=True)
class LabelledFields:
    """Where a row of a file has its text and its labels."""

    texts: Sequence[str]
    """One column, or two for pairs."""
    labels: str
    """The column with all labels."""
    label_columns: Sequence[str] = ()
    """A column for each label instead."""
    separator: str = ","
    column_names: Sequence[str] | None = None
    """The columns of a file without a header."""


class LabelledRow(NamedTuple):
    """A row: its one or two texts, its labels, and where it was read."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    place: str


def read_labelled_rows(files: Sequence[Path], *, fields: LabelledFields) -> Iterator[LabelledRow]:
    """Yields the rows of files: TSV, CSV, JSONL or Parquet."""
    n_rows = 0
    for path in files:
        file = open_text_file(path, texts=fields.texts, column_names=fields.column_names)
        for note in file.notes:
            print_line(f"{path}: {note}")
        for row in file.rows():
            place = f"{path}:{row.line}"
            n_rows += 1
            yield LabelledRow(_texts(file, row, fields), _labels(row, fields, place), place)
    if not n_rows:
        raise DataError(f"There are no rows in {', '.join(map(str, files))}. Give files that have some.")


def _texts(file: TextFile, row: Row, fields: LabelledFields) -> tuple[str, ...]:
    return tuple(file.text(row, name) for name in fields.texts)


def _labels(row: Row, fields: LabelledFields, place: str) -> tuple[str, ...]:
    if fields.label_columns:
        return tuple(name for name in fields.label_columns if _is_yes(row, name, place))
    value = _cell(row, fields.labels, "label_field", place)
    parts = value.split(fields.separator) if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str | int) for part in parts):
        raise DataError(
            f"{place}: the labels {fields.labels!r} are {value!r:.60}, not a list of names. Correct the row, or name "
            f"the columns with 0 and 1 by label_fields."
        )
    return tuple(dict.fromkeys(name for part in parts if (name := str(part).strip())))


def _is_yes(row: Row, name: str, place: str) -> bool:
    value = str(_cell(row, name, "label_fields", place)).strip().lower()
    if value not in (*_YES, *_NO):
        raise DataError(f"{place}: {name!r} is {value!r:.60}, but a label is there (1) or not (0). Correct the row.")
    return value in _YES


def _cell(row: Row, name: str, setting: str, place: str) -> object:
    if name not in row.values:
        suggestion = did_you_mean(name, list(row.values), show=repr)
        raise DataError(
            f"{place}: the labels {name!r} are missing among {', '.join(map(repr, row.values))}.{suggestion} Fill them "
            f"in (with nothing, if there are none), or name the column by {setting}."
        )
    if row.values[name] is None:
        raise DataError(f"{place}: {name!r} is null, so its labels are not known. Write [] if it has none.")
    return row.values[name]


def count_labels(params: MultiLabelDataConfig) -> dict[str, int]:
    """How often each label is in the files of a config: in alphabetical order, or in that of their columns.

    Labels that are numbers are listed up to the highest. The counts are kept, as tokens are.
    """
    fields = _fields(params)
    files = find_files(input_paths(params))
    directory = cache_directory(files, params.cache_dir, settings=[_VERSION, "labels", repr(fields)])
    columns = cached_columns(directory, _counted(files, fields))
    names = columns.ragged("name")
    return {str(names[number]): int(count) for number, count in enumerate(columns["count"])}


def _counted(files: Sequence[Path], fields: LabelledFields) -> Iterator[Mapping[str, Any]]:
    counts = Counter[str]()
    for row in read_labelled_rows(files, fields=fields):
        counts.update(row.labels)
    by_name = {name: counts[name] for name in fields.label_columns}
    if not by_name and counts:
        by_name = named_counts(counts, files=files, column=fields.labels)
    if not by_name:
        raise DataError(
            f"No row of {', '.join(map(str, files))} has a label {fields.labels!r}. Name the column with them."
        )
    yield {"name": list(by_name), "count": np.array([*by_name.values()], np.int64)}


def tokenize_labelled_rows(
    rows: Sequence[LabelledRow], *, tokenizer: Tokenizer, class_names: Sequence[str]
) -> dict[str, Ragged | NDArray[Any]]:
    """Makes columns of rows: the tokens `a` and `b` of their texts, and `labels` with 1 for each that a row has."""
    numbers = {name: number for number, name in enumerate(class_names)}
    labels = np.zeros((len(rows), len(class_names)), np.int8)
    for place, row in enumerate(rows):
        labels[place, [_number(name, numbers, row.place) for name in row.labels]] = 1
    return {
        "a": tokenizer.encode([row.texts[0] for row in rows]),
        "b": tokenizer.encode([row.texts[1] if len(row.texts) > 1 else "" for row in rows]),
        "labels": labels,
    }


def _number(name: str, numbers: Mapping[str, int], place: str) -> int:
    if name in numbers:
        return numbers[name]
    if name.isdecimal() and int(name) < len(numbers):
        return int(name)
    suggestion = did_you_mean(name, list(numbers), show=repr)
    known = ", ".join(map(repr, numbers))
    raise DataError(
        f"{place}: the label {name!r} is none of {known}.{suggestion} Correct it, or name all labels in "
        f"task.class_names. Labels in one cell are parted by label_separator."
    )


def build_multi_label_stream(
    params: MultiLabelDataConfig,
    context: InputContext | None = None,
    *,
    class_names: Sequence[str],
    tokenizer: Tokenizer | None = None,
) -> ExampleStream:
    """Batches with `input_word_ids`, `input_mask`, `input_type_ids` and `label_ids`: 1 for each label that there is.

    Batches to train on are only as long as the longest example needs, rounded up to a multiple of 8.

    Args:
        tokenizer: The default is the one that the config names.
    """
    fields, names = _fields(params), list(class_names)
    if tokenizer is None:
        tokenizer = config_tokenizer(params, params.vocab_file, field="vocab_file", lower_case=params.lower_case)
    files = find_files(input_paths(params))
    settings = [_VERSION, tokenizer.fingerprint, repr(fields), names]
    directory = cache_directory(files, params.cache_dir, settings=settings)
    tokenize = functools.partial(tokenize_labelled_rows, tokenizer=tokenizer, class_names=names)
    rows = in_blocks(read_labelled_rows(files, fields=fields), _BLOCK_ROWS)
    columns = cached_columns(directory, local_map(n_useful_workers(files))(tokenize, rows))
    rest = Columns({"label_ids": columns["labels"]})
    examples = SentencePairs(columns, rest, params.seq_length, Specials.of(tokenizer))
    return example_stream(fitted(examples) if params.is_training else examples, params=params, context=context)


def _fields(params: MultiLabelDataConfig) -> LabelledFields:
    texts = check_text_config(params)
    if not params.label_separator:
        raise ConfigError(
            f"{data_place(params)}.label_separator is empty. Set it to what parts labels, such as a comma."
        )
    return LabelledFields(
        texts=texts,
        labels=params.label_field,
        label_columns=tuple(params.label_fields or ()),
        separator=params.label_separator,
        column_names=None if params.column_names is None else list(params.column_names),
    )
