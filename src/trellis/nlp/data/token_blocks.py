"""Text as one row of tokens, cut into blocks: what a model that reads from left to right is trained on."""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.aliases import Batch
from trellis.data import Columns, ExampleStream, cached_columns, find_files, read_rows
from trellis.errors import DataError
from trellis.nlp.data.byte_tokenizers import ReversibleTokenizer
from trellis.nlp.data.configs import DocumentBorders, TokenBlocksDataConfig
from trellis.nlp.data.corpus import is_rows, row_texts
from trellis.nlp.data.stream_parts import data_place, example_stream, input_paths
from trellis.nlp.data.token_cache import cache_directory, in_blocks, local_map, n_useful_workers
from trellis.runtime import Tally
from trellis.tasks import InputContext

# Part of the key of the cache: raised when the same text would give other tokens than before.
_VERSION = 1
_NOTHING = -1
_HEADING = re.compile(r"\s*= [^=].* =\s*")
_PASSAGE_LETTERS = 1 << 16
_BLOCK_PASSAGES = 64


class Passage(NamedTuple):
    """A piece of a document, which ends where a line does."""

    text: str
    ends_document: bool


class TokenBlocks:
    """The blocks of a row of tokens as examples: `input_word_ids`, and for each of them the one that comes next.

    The last block is filled up; in its `next_word_ids` there is -1 where the text is over.
    """

    def __init__(self, ids: NDArray[np.integer], *, seq_length: int, takes_last: bool) -> None:
        self._ids = ids
        self._seq_length = seq_length
        n_targets = len(ids) - 1
        self._n_blocks = -(-n_targets // seq_length) if takes_last else n_targets // seq_length

    def __len__(self) -> int:
        return self._n_blocks

    def take(self, indices: NDArray[np.integer]) -> Batch:
        """Gathers blocks."""
        places = np.asarray(indices, np.int64)[:, None] * self._seq_length + np.arange(self._seq_length + 1)
        ids = self._ids[np.minimum(places, len(self._ids) - 1)].astype(np.int32)
        following = np.where(places[:, 1:] < len(self._ids), ids[:, 1:], _NOTHING).astype(np.int32)
        return {"input_word_ids": ids[:, :-1], "next_word_ids": following}


def build_block_stream(
    params: TokenBlocksDataConfig, context: InputContext | None = None, *, tokenizer: ReversibleTokenizer
) -> ExampleStream:
    """Batches of blocks: shuffled for training, where a last one that is short is left out; else all, in order."""
    files = find_files(input_paths(params))
    ids = _read_ids(files, params, tokenizer)
    blocks = TokenBlocks(ids, seq_length=params.seq_length, takes_last=not params.is_training)
    if not len(blocks):
        raise DataError(
            f"{data_place(params)}.input_path: {params.input_path!r} has {len(ids):,} tokens, too few for a block of "
            f"{params.seq_length} and the one after it. Give more text, or make seq_length smaller."
        )
    return example_stream(blocks, params=params, context=context)


def _read_ids(files: Sequence[Path], params: TokenBlocksDataConfig, tokenizer: ReversibleTokenizer) -> NDArray[np.int_]:
    """The tokens of files, made once and memory-mapped from then on."""
    settings = [_VERSION, "blocks", tokenizer.fingerprint, list(params.text_field_names), params.documents]
    directory = cache_directory(files, params.cache_dir, settings=settings)
    passages = read_passages(files, text_fields=params.text_field_names, documents=params.documents)
    counted = Tally("Tokenizing", unit="passages").over(passages)
    columns: Columns = cached_columns(directory, _id_blocks(counted, tokenizer, n_workers=n_useful_workers(files)))
    return columns["ids"]  # type: ignore[no-any-return]


def _id_blocks(
    passages: Iterable[Passage], tokenizer: ReversibleTokenizer, *, n_workers: int
) -> Iterator[dict[str, NDArray[np.integer]]]:
    encode = functools.partial(_encode, tokenizer)
    n_ids = 0
    for ids in local_map(n_workers)(encode, in_blocks(passages, _BLOCK_PASSAGES)):
        yield {"ids": ids}
        n_ids += len(ids)
    if not n_ids:
        raise DataError("There is no text in the files. Give files with text.")


def _encode(tokenizer: ReversibleTokenizer, passages: Sequence[Passage]) -> NDArray[np.integer]:
    """The ids of passages, each document with an end."""
    rows = tokenizer.encode([passage.text for passage in passages])
    ends = np.flatnonzero([passage.ends_document for passage in passages])
    ids = np.insert(rows.values, rows.offsets[ends + 1], tokenizer.end_id)
    return ids.astype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def read_passages(
    files: Iterable[Path], *, text_fields: Sequence[str] = ("text",), documents: DocumentBorders = "files"
) -> Iterator[Passage]:
    """Yields the text of files piece by piece, so that no document need fit into memory."""
    for file in files:
        if is_rows(file):
            yield from _row_passages(file, text_fields)
        else:
            yield from _text_passages(file, documents)


def _text_passages(file: Path, documents: DocumentBorders) -> Iterator[Passage]:
    lines: list[str] = []
    n_letters = 0
    has_begun = False
    """Whether there is text since the last end."""
    for row in read_rows(file, format="text"):
        line = f"{row.values['text']}\n"
        parts = documents == "blank_lines" and not line.strip()
        if parts or (documents == "headings" and _HEADING.fullmatch(line)):
            if has_begun:
                yield Passage("".join(lines), ends_document=True)
            lines, n_letters, has_begun = [], 0, False
        if parts:
            continue
        lines.append(line)
        n_letters += len(line)
        has_begun = has_begun or bool(line.strip())
        if n_letters >= _PASSAGE_LETTERS:
            yield Passage("".join(lines), ends_document=False)
            lines, n_letters = [], 0
    if has_begun:
        yield Passage("".join(lines), ends_document=True)


def _row_passages(file: Path, text_fields: Sequence[str]) -> Iterator[Passage]:
    for texts in row_texts(file, text_fields):
        text = "\n".join(texts)
        if text.strip():
            yield Passage(text, ends_document=True)
