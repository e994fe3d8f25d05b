"""Pairs of texts that belong together: rows of files to tokens to batches."""

import functools
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, ExampleStream, Ragged, Row, cached_columns, find_files
from trellis.errors import ConfigError, DataError
from trellis.nlp.data.configs import DualEncoderDataConfig
from trellis.nlp.data.sequences import Specials, assemble_texts
from trellis.nlp.data.stream_parts import config_tokenizer, data_place, example_stream, input_paths
from trellis.nlp.data.text_file import TextFile, open_text_file
from trellis.nlp.data.token_cache import cache_directory, in_blocks, local_map, n_useful_workers
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.runtime import print_line
from trellis.tasks import InputContext

_BLOCK_ROWS = 1 << 11
# Part of the key of the cache: raised when the same files would give other tokens than before.
_VERSION = 1
# Hardware is quickest with lengths that are multiples of this.
_MULTIPLE = 8
_N_SPECIAL = 2
_SIDES = ("left", "right", "negative")
_INPUTS = ("word_ids", "mask", "type_ids")


@dataclass(frozen=True)
class _PairFields:
    """Where a row has its texts and its score."""

    texts: Sequence[str]
    """The columns of the first and the second text, and of one that does not belong to the first if there is one."""
    score: str | None
    score_range: tuple[float, float]
    column_names: Sequence[str] | None
    place: str
    """Of the config, for errors."""


class _PairRow(NamedTuple):
    texts: tuple[str, ...]
    score: float


def build_pair_stream(
    params: DualEncoderDataConfig, context: InputContext | None = None, *, tokenizer: Tokenizer | None = None
) -> ExampleStream:
    """Batches with `left_word_ids`, `left_mask`, `left_type_ids`, the same of `right` and, if there is one, `negative`.

    `left_key`, `right_key` and `negative_key` are equal numbers for equal texts; `score` is from 0 to 1. Text is
    tokenized once. All texts of a batch have one length: to train on that of the longest in the data, rounded up to a
    multiple of 8, else `seq_length`, as in a prediction.

    Args:
        tokenizer: Of text; the default is the one that the config names.
    """
    if params.preprocessing_hub_module_url:
        raise ConfigError("preprocessing_hub_module_url has no meaning here: give the vocabulary as vocab_file.")
    if tokenizer is None:
        tokenizer = config_tokenizer(params, params.vocab_file, field="vocab_file", lower_case=params.lower_case)
    fields = _fields_of(params)
    files = find_files(input_paths(params))
    directory = cache_directory(files, params.cache_dir, settings=[_VERSION, tokenizer.fingerprint, repr(fields)])
    tokenize = functools.partial(_tokenize_rows, tokenizer=tokenizer)
    rows = in_blocks(_read_rows(files, fields=fields), _BLOCK_ROWS)
    columns = cached_columns(directory, local_map(n_useful_workers(files))(tokenize, rows))
    sides = _SIDES[: len(fields.texts)]
    length = params.seq_length
    if params.is_training:
        longest = max(columns.ragged(side).longest for side in sides) + _N_SPECIAL
        length = min(length, math.ceil(longest / _MULTIPLE) * _MULTIPLE)
    others = [f"{side}_key" for side in sides] + (["score"] if fields.score else [])
    examples = TextPairs(columns, columns.select(others), sides, length, Specials.of(tokenizer))
    return example_stream(examples, params=params, context=context)


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Tokens of texts as examples; the sequences are made when they are taken."""

    tokens: Columns
    """With a column for each of the sides."""
    rest: Columns
    """The other columns of a batch."""
    sides: Sequence[str]
    seq_length: int
    specials: Specials

    def __len__(self) -> int:
        return len(self.rest)

    def take(self, indices: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Gathers examples."""
        rows = np.asarray(indices, np.int64)
        nothing = Ragged(np.zeros(0, np.int32), offsets=np.zeros(len(self) + 1, np.int64))
        batch: dict[str, NDArray[Any]] = {}
        for side in self.sides:
            tokens = self.tokens.ragged(side)
            made = assemble_texts(tokens, nothing, rows=rows, seq_length=self.seq_length, specials=self.specials)
            arrays = zip(_INPUTS, (made.ids, made.mask, made.types), strict=True)
            batch |= {f"{side}_{name}": array for name, array in arrays}
        return {**batch, **self.rest.take(rows)}


def _fields_of(params: DualEncoderDataConfig) -> _PairFields:
    place = data_place(params)
    texts: list[str] = []
    for name in ("left_text_fields", "right_text_fields", "negative_text_fields"):
        columns = getattr(params, name)
        if len(columns) > 1 or (not columns and name != "negative_text_fields"):
            raise ConfigError(
                f"{place}.{name} is {list(columns)}. Name one column, as in: --set {place}.{name}='[sentence1]'"
            )
        texts += columns
    if len(set(texts)) < len(texts):
        raise ConfigError(f"{place} takes the same column for two texts: {', '.join(texts)}. Name one column for each.")
    low, high = params.score_range
    if not low < high:
        raise ConfigError(f"{place}.score_range is [{low:g}, {high:g}]. Give the least score and a greater one.")
    names = None if params.column_names is None else list(params.column_names)
    return _PairFields(texts, params.score_field or None, (low, high), names, place)


def _read_rows(files: Sequence[Path], *, fields: _PairFields) -> Iterator[_PairRow]:
    """Yields the rows of files; a score that is not read is 0."""
    n_rows = 0
    for path in files:
        file = open_text_file(path, texts=fields.texts, label=fields.score, column_names=fields.column_names)
        for note in file.notes:
            print_line(f"{path}: {note}")
        for row in file.rows():
            yield _PairRow(tuple(_texts(file, row, fields)), _score(file, row, fields))
            n_rows += 1
    if n_rows == 0:
        raise DataError(f"There are no rows in {', '.join(map(str, files))}. Give files that have some.")


def _texts(file: TextFile, row: Row, fields: _PairFields) -> Iterator[str]:
    for side, name in zip(_SIDES, fields.texts, strict=False):
        place, column = f"{file.path}:{row.line}", file.columns[name]
        if column not in row.values:
            raise DataError(
                f"{place}: there is no column {column!r} among {', '.join(map(repr, row.values))}. Name one that is "
                f"there in {fields.place}.{side}_text_fields; columns of a file without a header in column_names."
            )
        text = file.text(row, name)
        if not text.strip():
            raise DataError(f"{place}: {column!r} is empty. Fill it in, or leave the row out.")
        yield text


def _score(file: TextFile, row: Row, fields: _PairFields) -> float:
    """The score of a row as a share of the way from the least to the greatest."""
    if fields.score is None:
        return 0.0
    place, column = f"{file.path}:{row.line}", file.columns[fields.score]
    value = row.values.get(column)
    if value is None or value == "":
        columns = "" if column in row.values else f"; the columns are {', '.join(map(repr, row.values))}"
        raise DataError(
            f"{place}: the score {column!r} is missing{columns}. Fill it in, or name the column with the scores by "
            f"score_field."
        )
    try:
        score = float(str(value))
    except ValueError:
        raise DataError(
            f"{place}: the score {str(value)!r:.80} is no number. Correct it, or name another column by score_field."
        ) from None
    low, high = fields.score_range
    if not low <= score <= high:
        raise DataError(
            f"{place}: the score {score:g} is not from {low:g} to {high:g}, which {fields.place}.score_range says. "
            f"Correct it, or say how far scores go, as in: --set {fields.place}.score_range='[0, 5]'"
        )
    return (score - low) / (high - low)


def _tokenize_rows(rows: Sequence[_PairRow], *, tokenizer: Tokenizer) -> dict[str, Ragged | NDArray[Any]]:
    """Makes columns of rows: the tokens of each side, a number that is equal for equal tokens, and `score`."""
    columns: dict[str, Ragged | NDArray[Any]] = {}
    for side, texts in zip(_SIDES, zip(*(row.texts for row in rows), strict=True), strict=False):
        tokens = tokenizer.encode(list(texts))
        keys = [zlib.crc32(np.asarray(tokens[number], "<i4").tobytes()) for number in range(len(tokens))]
        columns |= {side: tokens, f"{side}_key": np.array(keys, np.uint32).view(np.int32)}
    return {**columns, "score": np.array([row.score for row in rows], np.float32)}
