"""Sentences and pairs of them, with labels: rows of files to features."""

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, ColumnsWriter, Ragged, find_files, read_rows
from trellis.errors import DataError
from trellis.nlp.data.corpus import cache_directory, is_rows
from trellis.nlp.data.output import Features, OutputFormat, write_features, write_meta_data
from trellis.nlp.data.sentence_tasks import SentenceFields, SentenceTask, Split
from trellis.nlp.data.sequences import Pairs, Specials, assemble
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.nlp.data.workers import n_useful_workers, ordered_map

_BLOCK_ROWS = 1 << 11
# Part of the key of the cache: raised when the same files would give other tokens than before.
_VERSION = 1


class SentenceRow(NamedTuple):
    """A row: its one or two texts, its label, and its number, counted over all files from 0."""

    texts: tuple[str, ...]
    label: float
    number: int


class SentenceTokens(NamedTuple):
    """Rows as tokens; the second text of a row may be empty, or all of them are."""

    a: Ragged
    b: Ragged
    labels: NDArray[np.generic]
    numbers: NDArray[np.int32]


def read_sentence_rows(files: Sequence[Path], *, fields: SentenceFields) -> Iterator[SentenceRow]:
    """Yields the rows of files: TSV, CSV or JSONL; a label that is not there is 0."""
    number = 0
    for file in files:
        if not is_rows(file):
            raise DataError(f"{file} has no columns. Give .tsv, .csv or .jsonl files for sentences with labels.")
        for row in read_rows(file, names=fields.column_names):
            texts = tuple(_text(row.values, name, f"{file}:{row.line}") for name in fields.texts)
            yield SentenceRow(texts, _label(row.values, fields, f"{file}:{row.line}"), number)
            number += 1
    if number == 0:
        raise DataError(f"There are no rows in {', '.join(map(str, files))}. Give files that have some.")


def tokenize_rows(rows: Sequence[SentenceRow], *, tokenizer: Tokenizer, fields: SentenceFields) -> SentenceTokens:
    """Turns rows into tokens."""
    seconds = [row.texts[1] if len(row.texts) > 1 else "" for row in rows]
    return SentenceTokens(
        tokenizer.encode([row.texts[0] for row in rows]),
        tokenizer.encode(seconds),
        np.array([row.label for row in rows], np.float32 if fields.is_regression else np.int32),
        np.array([row.number for row in rows], np.int32),
    )


def read_sentences_columns(
    paths: str | Sequence[str], *, fields: SentenceFields, tokenizer: Tokenizer, cache_dir: str = ""
) -> Columns:
    """Tokenizes files once into columns `a`, `b`, `label` and `number`: the next call for the same just maps them."""
    files = find_files(paths)
    directory = cache_directory(files, cache_dir, settings=[_VERSION, tokenizer.fingerprint, repr(fields)])
    if not (directory / "columns.json").exists():
        n_workers = n_useful_workers(sum(file.stat().st_size for file in files))
        work = functools.partial(tokenize_rows, tokenizer=tokenizer, fields=fields)
        with ColumnsWriter(directory, source=directory.name) as writer:
            for block in ordered_map(work, _blocks(read_sentence_rows(files, fields=fields)), n_workers=n_workers):
                writer.append({"a": block.a, "b": block.b, "label": block.labels, "number": block.numbers})
    return Columns.open(directory)


def sentence_features(
    rows: Sequence[SentenceRow], *, tokenizer: Tokenizer, fields: SentenceFields, seq_length: int
) -> Features:
    """Returns the published features of rows."""
    block = tokenize_rows(rows, tokenizer=tokenizer, fields=fields)
    tokens = np.concatenate([block.a.values, block.b.values])
    pairs = Pairs(
        block.a.offsets[:-1], block.a.lengths, block.b.offsets[:-1] + len(block.a.values), block.b.lengths
    ).cut(seq_length)
    made = assemble(tokens, pairs=pairs, seq_length=seq_length, specials=Specials.of(tokenizer))
    return {
        "input_ids": made.ids,
        "input_mask": made.mask,
        "segment_ids": made.types,
        "label_ids": block.labels,
        "is_real_example": np.ones(len(rows), np.int32),
        "example_id": block.numbers,
    }


def write_sentence_data(
    task: SentenceTask,
    *,
    input_dir: str | os.PathLike[str],
    output_paths: dict[Split, str],
    meta_data_file: str,
    tokenizer: Tokenizer,
    seq_length: int = 128,
    output_format: OutputFormat = "tfrecord",
    mnli_type: str = "matched",
) -> dict[str, object]:
    """Makes features of a published task's files, and writes and returns what a model needs to know of them.

    Args:
        output_paths: Where each split goes; a split that is not named is left out.
    """
    meta: dict[str, object] = {"processor_type": task.name, "max_seq_length": seq_length}
    for split, path in output_paths.items():
        if split not in task.files:
            raise DataError(f"{task.name} has no split {split!r}. It has: {', '.join(task.files)}.")
        files = find_files(os.path.join(input_dir, task.files[split].format(mnli_type=mnli_type)))
        fields = task.fields(split)
        make = functools.partial(sentence_features, tokenizer=tokenizer, fields=fields, seq_length=seq_length)
        n_workers = n_useful_workers(sum(file.stat().st_size for file in files))
        blocks = _blocks(read_sentence_rows(files, fields=fields))
        n_rows = write_features([path], blocks, make=make, output_format=output_format, n_workers=n_workers)
        meta[f"{'eval' if split == 'dev' else split}_data_size"] = n_rows
    if task.labels is None:
        meta |= {"task_type": "bert_regression", "label_type": "float"}
    else:
        meta |= {"task_type": "bert_classification", "num_labels": len(task.labels)}
    write_meta_data(meta_data_file, meta)
    return meta


def _blocks(rows: Iterator[SentenceRow]) -> Iterator[list[SentenceRow]]:
    return iter(lambda: list(itertools.islice(rows, _BLOCK_ROWS)), [])


def _text(values: dict[str, object], name: str, place: str) -> str:
    if name not in values:
        way_out = "Name a column that is there; columns of a file without a header are given by column_names."
        raise DataError(f"{place}: there is no column {name!r} among {', '.join(map(repr, values))}. {way_out}")
    value = values[name]
    if not isinstance(value, str):
        raise DataError(f"{place}: {name!r} is {value!r}, not text. Correct the line, or name another column.")
    return value


def _label(values: dict[str, object], fields: SentenceFields, place: str) -> float:
    if fields.label is None:
        return 0
    value = values.get(fields.label)
    text = "" if value is None else str(value)
    if not text:
        missing = f"the label {fields.label!r} is missing"
        found = "" if fields.label in values else f"; the columns are {', '.join(map(repr, values))}"
        raise DataError(f"{place}: {missing}{found}. Fill it in, or name the column with the labels.")
    if fields.label_values is not None and not fields.is_regression:
        if text not in fields.label_values:
            known = ", ".join(map(repr, fields.label_values))
            raise DataError(f"{place}: the label {text!r} is none of {known}. Correct it, or name all labels.")
        return list(fields.label_values).index(text)
    try:
        return float(text) if fields.is_regression else int(text)
    except ValueError:
        kind = "number" if fields.is_regression else "whole number"
        way_out = "Correct it, or say in label_values what the classes are called."
        raise DataError(f"{place}: the label {text!r} is no {kind}. {way_out}") from None
