"""A corpus: documents of tokenized sentences on disk, and the files that it is made of."""

import functools
import operator
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, Ragged, cached_columns, find_files, read_rows
from trellis.errors import DataError
from trellis.nlp.data.configs import Documents
from trellis.nlp.data.token_cache import OrderedMap, cache_directory, in_blocks, local_map, n_useful_workers
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.runtime import Tally

_BLOCK_SENTENCES = 1 << 14
_BLOCK_NUMBERS = 1 << 22
# Part of the key of the cache: raised when the same text would give other tokens than before.
_VERSION = 1
_HEADING = re.compile(r"= [^=].* =")
"""The title of an article of WikiText; those of its sections have more signs."""
_ROW_SUFFIXES = (".jsonl", ".ndjson", ".tsv", ".csv")


class Sentence(NamedTuple):
    """A sentence, and the number of its document."""

    document: int
    text: str


class Corpus:
    """Documents of sentences as ids in one array, memory-mapped, as is where each document begins.

    Example:
        corpus = Corpus.read(["wiki.txt"], tokenizer=tokenizer, cache_dir="tokens")
        first = corpus.sentences[0]
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        columns = Columns.open(directory)
        self.sentences = columns.ragged("ids")
        offsets = directory.with_name(f"{directory.name}-documents")
        documents = cached_columns(offsets, _document_offsets(np.asarray(columns["document"])))
        self.document_offsets: NDArray[np.int64] = np.asarray(documents["offset"])

    @staticmethod
    def read(
        paths: str | Sequence[str],
        *,
        tokenizer: Tokenizer,
        cache_dir: str | os.PathLike[str] = "",
        text_fields: Sequence[str] = ("text",),
        documents: Documents = "blank_lines",
    ) -> "Corpus":
        """Tokenizes files once into a cache: the next call for the same files memory-maps it.

        Args:
            paths: Plain text with a sentence a line, or files of rows.
            documents: What parts the documents of plain text.
            cache_dir: The default is a folder `.trellis` beside the first file.
            text_fields: In files of rows, the columns with text; each row is a document, each line of it a sentence.
        """
        files = find_files(paths)
        settings = [
            _VERSION,
            tokenizer.fingerprint,
            list(text_fields),
            *([documents] if documents == "headings" else []),
        ]
        directory = cache_directory(files, cache_dir, settings=settings)
        sentences = read_sentences(files, text_fields=text_fields, documents=documents)
        counted = Tally("Tokenizing", unit="sentences").over(sentences)
        ordered_map = local_map(n_useful_workers(files))
        return write_corpus(directory, counted, tokenizer=tokenizer, ordered_map=ordered_map)

    @property
    def n_documents(self) -> int:
        """How many documents there are."""
        return len(self.document_offsets) - 1


def read_sentences(
    files: Iterable[Path], *, text_fields: Sequence[str] = ("text",), documents: Documents = "blank_lines"
) -> Iterator[Sentence]:
    """Yields the sentences of files; documents are numbered over all of them."""
    document = 0
    for file in files:
        lines = _row_lines(file, text_fields) if is_rows(file) else _text_lines(file)
        begins = _HEADING.fullmatch if documents == "headings" and not is_rows(file) else operator.not_
        for text in lines:
            document += bool(begins(text))
            if text:
                yield Sentence(document, text)
        document += 1


def is_rows(file: Path) -> bool:
    """Whether a file holds rows with named columns; else it is plain text."""
    return any(suffix.lower() in _ROW_SUFFIXES for suffix in file.suffixes)


def _text_lines(file: Path) -> Iterator[str]:
    return (str(row.values["text"]).strip() for row in read_rows(file, format="text"))


def row_texts(file: Path, text_fields: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts of each row of a file, one for each of the fields; one that is no text is an error."""
    for row in read_rows(file):
        wrong = next((name for name in text_fields if not isinstance(row.values.get(name), str)), None)
        if wrong is not None:
            raise DataError(
                f"{file}:{row.line}: there is no text in {wrong!r}; the columns are {', '.join(row.values)}. "
                "Name those with text in text_field_names."
            )
        yield [str(row.values[name]) for name in text_fields]


def _row_lines(file: Path, text_fields: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the texts of each row, and an empty one after each row."""
    for texts in row_texts(file, text_fields):
        yield from filter(None, (line.strip() for text in texts for line in text.splitlines()))
        yield ""


def write_corpus(
    directory: Path, sentences: Iterable[Sentence], *, tokenizer: Tokenizer, ordered_map: OrderedMap = map
) -> Corpus:
    """Tokenizes sentences into a directory of columns, unless it is there; sentences without a token are left out."""
    cached_columns(directory, _token_blocks(sentences, tokenizer, ordered_map))
    return Corpus(directory)


open_corpus = functools.lru_cache(maxsize=1)(Corpus)
"""A corpus that a process works on block by block, opened once."""


def _document_offsets(documents: NDArray[np.int64]) -> Iterator[dict[str, NDArray[np.int64]]]:
    """Yields the number of the first sentence of each document, and in the end that of all sentences."""
    last = -1
    for start in range(0, len(documents), _BLOCK_NUMBERS):
        block = np.asarray(documents[start : start + _BLOCK_NUMBERS])
        yield {"offset": start + np.flatnonzero(np.diff(block, prepend=last))}
        last = int(block[-1])
    yield {"offset": np.array([len(documents)])}


def _token_blocks(
    sentences: Iterable[Sentence], tokenizer: Tokenizer, ordered_map: OrderedMap
) -> Iterator[dict[str, Ragged | NDArray[np.int64]]]:
    tokenize = functools.partial(_tokenize, tokenizer)
    n_sentences = 0
    for block in ordered_map(tokenize, in_blocks(sentences, _BLOCK_SENTENCES)):
        yield block
        n_sentences += len(block["document"])
    if not n_sentences:
        raise DataError("There is no text in the files: every line is empty. Give files with text.")


def _tokenize(tokenizer: Tokenizer, block: Sequence[Sentence]) -> dict[str, Ragged | NDArray[np.int64]]:
    # Sentences are joined to spans, as with spaces between them.
    ids = tokenizer.encode_inside([sentence.text for sentence in block])
    documents = np.array([sentence.document for sentence in block], np.int64)
    has_tokens = ids.lengths > 0
    offsets = np.concatenate([[0], ids.offsets[1:][has_tokens]])
    return {"ids": Ragged(ids.values, offsets=offsets), "document": documents[has_tokens]}
