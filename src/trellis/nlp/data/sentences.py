"""Sentences, or pairs of them, with labels: rows of files to tokens, to records, to batches."""

import functools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trellis.data import Column, Columns, DataConfig, ExampleStream, Ragged, Row, cached_columns, find_files
from trellis.errors import ArgumentError, ConfigError, DataError
from trellis.nlp.data.configs import SentencePredictionDataConfig, SentencePredictionTextDataConfig
from trellis.nlp.data.output import OutputFormat, write_features, write_meta_data
from trellis.nlp.data.sequences import INPUTS, Features, Pairs, Specials, assemble_texts, with_record_names
from trellis.nlp.data.stream_parts import (
    MadeExamples,
    config_tokenizer,
    data_place,
    example_stream,
    input_paths,
    read_features,
)
from trellis.nlp.data.text_file import TextFile, open_text_file
from trellis.nlp.data.text_settings import TEXT, TextSettings, beside_records
from trellis.nlp.data.token_cache import OrderedMap, cache_directory, in_blocks, local_map, n_useful_workers
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.runtime import print_line
from trellis.spelling import did_you_mean
from trellis.tasks import InputContext

_BLOCK_ROWS = 1 << 11
# Part of the key of the cache: raised when the same files would give other tokens than before.
_VERSION = 1
_DTYPES = {"int": np.int32, "float": np.float32}
# Hardware is quickest with lengths that are multiples of this.
_MULTIPLE = 8
_TSV = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_JSONL = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
_ENTAILED = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")

Split = Literal["train", "dev", "test"]
SentenceDataConfig = SentencePredictionDataConfig | SentencePredictionTextDataConfig
"""The configs of sentences: as records, or as text."""


@dataclass(frozen=True)
class SentenceFields:
    """Where a row of a file has its text and its label."""

    texts: Sequence[str]
    """One column, or two for pairs."""
    label: str | None
    """None if the rows have no labels."""
    label_values: Sequence[str] | None = None
    """The names of the classes, in their order; with None a label is a number."""
    is_regression: bool = False
    column_names: Sequence[str] | None = None
    """The columns of a file without a header."""


class SentenceRow(NamedTuple):
    """A row: its one or two texts, its label, and its number, counted over all files from 0."""

    texts: tuple[str, ...]
    label: float
    number: int


def read_sentence_rows(files: Sequence[Path], *, fields: SentenceFields) -> Iterator[SentenceRow]:
    """Yields the rows of files: TSV, CSV or JSONL; a label that is not there is 0."""
    number = 0
    for path in files:
        file = open_text_file(path, texts=fields.texts, label=fields.label, column_names=fields.column_names)
        for note in file.notes:
            print_line(f"{path}: {note}")
        file_fields = _as_labelled(file, fields)
        for row in file.rows():
            texts = tuple(file.text(row, name) for name in fields.texts)
            yield SentenceRow(texts, _label(file, row, file_fields), number)
            number += 1
    if number == 0:
        raise DataError(f"There are no rows in {', '.join(map(str, files))}. Give files that have some.")


def _as_labelled(file: TextFile, fields: SentenceFields) -> SentenceFields:
    """The fields as a file has them: where its first label is a number, classes that have names go by their numbers."""
    names = fields.label_values
    if fields.label is None or names is None or any(name.isdecimal() for name in names):
        return fields
    first = next(file.rows(keep_bad=True), None)
    numbers = [str(number) for number in range(len(names))]
    if first is None or str(first.values.get(file.columns[fields.label])) not in numbers:
        return fields
    classes = ", ".join(f"{number} is {name!r}" for number, name in enumerate(names))
    print_line(f"{file.path}: Its labels are numbers: by label_values {classes}.")
    return replace(fields, label_values=numbers)


def _label(file: TextFile, row: Row, fields: SentenceFields) -> float:
    if fields.label is None:
        return 0
    place, column = f"{file.path}:{row.line}", file.columns[fields.label]
    value = row.values.get(column)
    text = "" if value is None else str(value)
    if not text:
        columns = "" if column in row.values else f"; the columns are {', '.join(map(repr, row.values))}"
        raise DataError(
            f"{place}: the label {column!r} is missing{columns}. Fill it in, or name the column with the labels by "
            f"label_field."
        )
    if fields.is_regression:
        return _number(text, place)
    return _class(text, fields.label_values, place)


def _class(text: str, names: Sequence[str] | None, place: str) -> int:
    if names is not None:
        if text not in names:
            known = ", ".join(map(repr, names))
            raise DataError(f"{place}: the label {text!r} is none of {known}. Correct it, or name all labels.")
        return list(names).index(text)
    try:
        return int(np.int32(int(text)))
    except (ValueError, OverflowError):
        way_out = "Correct it; say in label_values what the classes are called; or set label_type to float"
        problem = f"{place}: the label {text!r} is no whole number of 32 bits"
        raise DataError(f"{problem}. {way_out}, if numbers are to be learned.") from None


def _number(text: str, place: str) -> float:
    try:
        number = float(text)
    except ValueError:
        way_out = "Correct it or, if labels are the names of classes, set label_type to int, and name them in"
        raise DataError(f"{place}: the label {text!r} is no number. {way_out} label_values.") from None
    if not math.isfinite(number):
        raise DataError(f"{place}: the label {text!r} is no finite number. Correct it, or leave the row out.")
    return number


def tokenize_rows(
    rows: Sequence[SentenceRow], *, tokenizer: Tokenizer, fields: SentenceFields
) -> dict[str, Ragged | NDArray[Any]]:
    """Makes columns of rows: the tokens `a` and `b` of their texts, `label` and `number`; of one text `b` is empty."""
    seconds = [row.texts[1] if len(row.texts) > 1 else "" for row in rows]
    return {
        "a": tokenizer.encode([row.texts[0] for row in rows]),
        "b": tokenizer.encode(seconds),
        "label": np.array([row.label for row in rows], np.float32 if fields.is_regression else np.int32),
        "number": np.array([row.number for row in rows], np.int32),
    }


@dataclass(frozen=True)
class SentenceTask:
    """A published task: its files in a folder, and what a row of them holds."""

    name: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] | None = ("0", "1")
    """The classes in their order; None for regression."""
    files: dict[str, str] = field(default_factory=lambda: dict(_TSV))
    headless: tuple[str, ...] | None = None
    """The columns of the files to train on and to validate with, where these have no header."""

    def fields(self, split: Split) -> SentenceFields:
        """What a row of a split holds; the labels of tests are not published."""
        return SentenceFields(
            texts=self.texts,
            label=None if split == "test" else self.label,
            label_values=self.labels,
            is_regression=self.labels is None,
            column_names=None if split == "test" else self.headless,
        )


_COLA_COLUMNS = ("source", "label", "mark", "sentence")
# Hypotheses come first, as in the published tool.
_MNLI_TEXTS = ("sentence2", "sentence1")
_MNLI = {"train": "train.tsv", "dev": "dev_{mnli_type}.tsv", "test": "test_{mnli_type}.tsv"}

TASKS = {
    task.name: task
    for task in (
        SentenceTask("COLA", ("sentence",), headless=_COLA_COLUMNS),
        SentenceTask("SST-2", ("sentence",)),
        SentenceTask("MRPC", ("#1 String", "#2 String"), label="Quality"),
        SentenceTask("QQP", ("question1", "question2"), label="is_duplicate"),
        SentenceTask("STS-B", ("sentence1", "sentence2"), label="score", labels=None),
        SentenceTask("MNLI", _MNLI_TEXTS, label="gold_label", labels=_INFERENCE, files=_MNLI),
        SentenceTask("QNLI", ("question", "sentence"), labels=_ENTAILED),
        SentenceTask("RTE", ("sentence1", "sentence2"), labels=_ENTAILED),
        SentenceTask("WNLI", ("sentence1", "sentence2")),
        SentenceTask(
            "AX", _MNLI_TEXTS, label="gold_label", labels=_INFERENCE, files={**_MNLI, "test": "diagnostic.tsv"}
        ),
        SentenceTask("BoolQ", ("question", "passage"), labels=("True", "False"), files=_JSONL),
        SentenceTask("CB", ("premise", "hypothesis"), labels=("entailment", "neutral", "contradiction"), files=_JSONL),
        SentenceTask("SUPERGLUE-RTE", ("premise", "hypothesis"), labels=_ENTAILED, files=_JSONL),
        SentenceTask("AX-g", ("premise", "hypothesis"), labels=_ENTAILED, files={"test": "AX-g.jsonl"}),
    )
}


def get_sentence_task(name: str, *, mnli_type: str = "matched") -> SentenceTask:
    """Returns a published task by its name, in any case.

    Example:
        >>> get_sentence_task("mrpc").texts
        ('#1 String', '#2 String')

    Args:
        mnli_type: Which of MNLI's files: "matched" or "mismatched".
    """
    by_name = {known.lower(): task for known, task in TASKS.items()}
    if name.lower() not in by_name:
        suggestion = did_you_mean(name, TASKS, show=str)
        raise ArgumentError(f"There is no task {name!r}.{suggestion} There are: {', '.join(TASKS)}.")
    task = by_name[name.lower()]
    return replace(task, files={split: file.format(mnli_type=mnli_type) for split, file in task.files.items()})


def write_sentence_data(
    task: SentenceTask,
    *,
    input_dir: str | os.PathLike[str],
    output_paths: dict[Split, str],
    meta_data_file: str,
    tokenizer: Tokenizer,
    seq_length: int = 128,
    output_format: OutputFormat = "tfrecord",
    ordered_map: OrderedMap | None = None,
) -> dict[str, object]:
    """Makes features of a published task's files, and writes and returns what a model needs to know of them.

    Args:
        output_paths: Where each split goes; a split that is not named is left out.
        ordered_map: Who does the work; None is as many processes of this machine as do good.
    """
    text = TextSettings.of(tokenizer, seq_length=seq_length, text_fields=task.texts, label_values=task.labels)
    meta: dict[str, object] = {"processor_type": task.name, "max_seq_length": seq_length}
    for split, path in output_paths.items():
        if split not in task.files:
            raise DataError(f"{task.name} has no split {split!r}. It has: {', '.join(task.files)}.")
        files = find_files(os.path.join(input_dir, task.files[split]))
        fields = task.fields(split)
        make = functools.partial(sentence_features, tokenizer=tokenizer, fields=fields, seq_length=seq_length)
        blocks = in_blocks(read_sentence_rows(files, fields=fields), _BLOCK_ROWS)
        n_rows = write_features(
            [path],
            blocks,
            make=make,
            output_format=output_format,
            ordered_map=ordered_map or local_map(n_useful_workers(files)),
        )
        text.write(beside_records(path))
        meta[f"{'eval' if split == 'dev' else split}_data_size"] = n_rows
    if task.labels is None:
        meta |= {"task_type": "bert_regression", "label_type": "float"}
    else:
        meta |= {"task_type": "bert_classification", "num_labels": len(task.labels)}
    meta[TEXT] = text.as_json()
    write_meta_data(meta_data_file, meta)
    return meta


def sentence_features(
    rows: Sequence[SentenceRow], *, tokenizer: Tokenizer, fields: SentenceFields, seq_length: int
) -> Features:
    """Returns the published features of rows."""
    columns = Columns.from_arrays(tokenize_rows(rows, tokenizer=tokenizer, fields=fields))
    rest = {
        "label_ids": columns["label"],
        "is_real_example": np.ones(len(rows), np.int32),
        "example_id": columns["number"],
    }
    examples = SentencePairs(columns, Columns(rest), seq_length, Specials.of(tokenizer))
    return with_record_names(examples.take(np.arange(len(rows))))


def build_sentence_stream(
    params: SentenceDataConfig,
    context: InputContext | None = None,
    *,
    n_classes: int | None = None,
    tokenizer: Tokenizer | None = None,
    more: Columns | None = None,
) -> ExampleStream:
    """Batches with `input_word_ids`, `input_mask`, `input_type_ids` and the label, by the name of its field.

    Text is tokenized once, and cut to `seq_length` when a batch is made. Batches to train on are only as long as the
    longest example needs, rounded up to a multiple of 8; others have `seq_length`, as in a prediction.

    Args:
        n_classes: A label has to be below it; with None any label is taken.
        tokenizer: Of text; the default is the one that the config names.
        more: Other columns of a batch, with a row for each row of the text.
    """
    examples = _read(params, tokenizer)
    if more is not None:
        assert isinstance(examples, SentencePairs)
        rest = {name: column for columns in (examples.rest, more) for name, column in _by_name(columns)}
        examples = replace(examples, rest=Columns(rest))
    _check_labels(np.asarray(examples[params.label_field]), params, n_classes)
    return example_stream(_fitted(examples) if params.is_training else examples, params=params, context=context)


def count_classes(params: SentenceDataConfig, *, tokenizer: Tokenizer | None = None) -> int:
    """The number of classes: as many as have names, else the highest label and one; 1 for regression."""
    names = params.as_dict().get("label_values")
    if params.label_type == "float":
        return 1
    return len(names) if names else max(2, 1 + int(np.asarray(_read(params, tokenizer)[params.label_field]).max()))


class AnswerRows(Protocol):
    """Answers the texts of rows."""

    def __call__(self, rows: Sequence[tuple[str, ...]], /) -> NDArray[np.float32]:
        """The answers, each a row of numbers."""


def cached_answers(
    params: SentencePredictionTextDataConfig, *, name: str, answer: AnswerRows, known_by: Sequence[object]
) -> Columns:
    """A column of answers to the text of each row; they are computed once, and kept where tokens are kept.

    Args:
        name: Of the column.
        known_by: What the answers depend on beside the text: equal values are for equal answers.
    """
    fields = _fields_of(params)
    files = find_files(input_paths(params))
    directory = cache_directory(files, params.cache_dir, settings=[_VERSION, name, repr(fields), *known_by])
    blocks = in_blocks(read_sentence_rows(files, fields=fields), _BLOCK_ROWS)
    return cached_columns(directory, ({name: answer([row.texts for row in block])} for block in blocks))


def _by_name(columns: Columns) -> Iterator[tuple[str, Column]]:
    yield from ((name, columns[name]) for name in columns.features)


def _read(params: SentenceDataConfig, tokenizer: Tokenizer | None) -> "SentencePairs | Columns":
    if isinstance(params, SentencePredictionTextDataConfig):
        return _read_text(params, tokenizer)
    return _read_records(params)


def _read_records(params: SentencePredictionDataConfig) -> Columns:
    length = (params.seq_length,)
    features: dict[str, Any] = dict.fromkeys(INPUTS, (np.int32, length))
    features[params.label_field] = (_DTYPES[params.label_type], ())
    if params.include_example_id:
        features["example_id"] = (np.int32, ())
    text_config = "the experiments …/sentence_prediction_text"
    examples = read_features(params, features=features, text_config=text_config)
    if params.label_name is None:
        return examples
    field, second_name = params.label_name
    if field not in features:
        raise ConfigError(f"label_name maps {field!r}, which is none of {', '.join(features)}.")
    return Columns({**{name: examples[name] for name in features}, second_name: examples[field]})


def _fields_of(params: SentencePredictionTextDataConfig) -> SentenceFields:
    if not params.text_fields or len(params.text_fields) > 2:
        raise ConfigError(
            f"{data_place(params)}.text_fields is {params.text_fields}. Name the column with the text, or two for "
            f"pairs, as in: --set {data_place(params)}.text_fields='[sentence1, sentence2]'"
        )
    if params.label_values is not None and not params.label_values:
        raise ConfigError(
            f"{data_place(params)}.label_values is empty, but it names the classes. Name them in their order, as in: "
            f"--set {data_place(params)}.label_values='[no, yes]'; or leave it out, if labels are numbers."
        )
    if params.preprocessing_hub_module_url:
        raise ConfigError("preprocessing_hub_module_url has no meaning here: give the vocabulary as vocab_file.")
    return SentenceFields(
        texts=list(params.text_fields),
        label=params.label_field,
        label_values=None if params.label_values is None else list(params.label_values),
        is_regression=params.label_type == "float",
        column_names=None if params.column_names is None else list(params.column_names),
    )


def _read_text(params: SentencePredictionTextDataConfig, tokenizer: Tokenizer | None) -> "SentencePairs":
    fields = _fields_of(params)
    if tokenizer is None:
        tokenizer = config_tokenizer(params, params.vocab_file, field="vocab_file", lower_case=params.lower_case)
    files = find_files(input_paths(params))
    directory = cache_directory(files, params.cache_dir, settings=[_VERSION, tokenizer.fingerprint, repr(fields)])
    tokenize = functools.partial(tokenize_rows, tokenizer=tokenizer, fields=fields)
    rows = in_blocks(read_sentence_rows(files, fields=fields), _BLOCK_ROWS)
    columns = cached_columns(directory, local_map(n_useful_workers(files))(tokenize, rows))
    rest = {params.label_field: columns["label"]}
    if params.include_example_id:
        rest["example_id"] = columns["number"]
    return SentencePairs(columns, Columns(rest), params.seq_length, Specials.of(tokenizer))


def _check_labels(labels: NDArray[Any], params: DataConfig, n_classes: int | None) -> None:
    if n_classes is None:
        is_wrong = ~np.isfinite(labels)
        problem = "which is no finite number. Correct it, or leave the example out."
    else:
        is_wrong = (labels < 0) | (labels >= n_classes)
        more = f"Set num_classes to {int(labels.max()) + 1}" if labels.min() >= 0 else "Count classes from 0 on"
        classes = f"but there are {n_classes} classes, from 0 on (task.model.num_classes)"
        problem = f"{classes}. {more}, or correct the label."
    if is_wrong.any():
        first = int(is_wrong.argmax())
        place = f"{data_place(params)}.input_path: {params.input_path!r}"
        raise DataError(f"{place} has the label {labels[first]} in example {first}, {problem}")


@dataclass(frozen=True, eq=False)
class SentencePairs:
    """Tokens of sentences as examples; the sequences are made when they are taken."""

    tokens: Columns
    """With the columns `a` and `b` of `tokenize_rows`."""
    rest: Columns
    """The other columns of a batch."""
    seq_length: int
    specials: Specials

    def __len__(self) -> int:
        return len(self.rest)

    def __getitem__(self, name: str) -> Column:
        """One of the other columns."""
        column: Column = self.rest[name]
        return column

    def take(self, indices: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Gathers examples."""
        rows = np.asarray(indices, np.int64)
        a, b = self.tokens.ragged("a"), self.tokens.ragged("b")
        sequences = assemble_texts(a, b, rows=rows, seq_length=self.seq_length, specials=self.specials)
        return {**sequences.inputs, **self.rest.take(rows)}


def _fitted(examples: SentencePairs | Columns) -> MadeExamples:
    """The same examples without the padding that all of them have."""
    if isinstance(examples, SentencePairs):
        a, b = (examples.tokens.ragged(name).lengths for name in ("a", "b"))
        longest = Pairs(a, a, b, b).lengths.max(initial=0)
    else:
        longest = 1 + np.flatnonzero(np.asarray(examples["input_mask"]).any(axis=0)).max(initial=0)
    length = math.ceil(longest / _MULTIPLE) * _MULTIPLE

    def make(rows: NDArray[np.int64]) -> Features:
        arrays = examples.take(rows)
        return {name: array[:, :length] if name in INPUTS else array for name, array in arrays.items()}

    return MadeExamples(len(examples), make)
