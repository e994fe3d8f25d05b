"""A corpus: documents of tokenized sentences on disk, and the files that it is made of."""

import contextlib
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, ColumnsWriter, Ragged, find_files, fingerprint, read_rows
from trellis.errors import DataError
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.nlp.data.workers import ordered_map

_BLOCK_SENTENCES = 1 << 14
# Part of the key of the cache: raised when the same text would give other tokens than before.
_VERSION = 1
_ROW_SUFFIXES = (".jsonl", ".ndjson", ".tsv", ".csv")


class Sentence(NamedTuple):
    """A sentence, and the number of its document."""

    document: int
    text: str


class Corpus:
    """Documents of sentences as ids in one array, memory-mapped.

    Example:
        corpus = Corpus.read(["wiki.txt"], tokenizer=tokenizer, cache_dir="tokens")
        first = corpus.sentences[0]
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        columns = Columns.open(directory)
        sentences = columns["ids"]
        assert isinstance(sentences, Ragged)
        self.sentences = sentences
        starts = np.flatnonzero(np.diff(np.asarray(columns["document"]), prepend=-1))
        self.document_offsets: NDArray[np.int64] = np.append(starts, len(sentences))

    @classmethod
    def read(
        cls,
        paths: str | Sequence[str],
        *,
        tokenizer: Tokenizer,
        cache_dir: str | os.PathLike[str] = "",
        text_fields: Sequence[str] = ("text",),
    ) -> Self:
        """Tokenizes files once into a cache: the next call for the same just memory-maps it.

        Args:
            paths: Plain text with a sentence a line and empty lines between documents, or files of rows.
            cache_dir: The default is a folder `.trellis` beside the first file.
            text_fields: In files of rows, the columns with text; each row is a document, each line of it a sentence.
        """
        files = find_files(paths)
        directory = cache_directory(files, cache_dir, settings=[_VERSION, tokenizer.fingerprint, list(text_fields)])
        if not (directory / "columns.json").exists():
            write_corpus(directory, read_sentences(files, text_fields=text_fields), tokenizer=tokenizer)
        return cls(directory)

    @property
    def n_documents(self) -> int:
        """How many documents there are."""
        return len(self.document_offsets) - 1


def write_corpus(directory: Path, sentences: Iterable[Sentence], *, tokenizer: Tokenizer, n_workers: int = 1) -> None:
    """Tokenizes sentences into a directory of columns; those without a token are left out."""
    waiting = iter(sentences)
    blocks = iter(lambda: list(itertools.islice(waiting, _BLOCK_SENTENCES)), [])
    work = functools.partial(_tokenized, tokenizer)
    with ColumnsWriter(directory, source=directory.name) as writer:
        n_written = 0
        for block in ordered_map(work, blocks, n_workers=n_workers):
            writer.append(block)
            n_written += len(block["document"])
        if not n_written:
            raise DataError("There is no text in the files: every line is empty. Give files with text.")


def _tokenized(tokenizer: Tokenizer, block: Sequence[Sentence]) -> dict[str, Ragged | NDArray[np.int64]]:
    ids = tokenizer.encode([sentence.text for sentence in block])
    documents = np.array([sentence.document for sentence in block], np.int64)
    is_there = ids.lengths > 0
    offsets = np.concatenate([[0], ids.offsets[1:][is_there]])
    return {"ids": Ragged(ids.values, offsets=offsets), "document": documents[is_there]}


def read_sentences(files: Iterable[Path], *, text_fields: Sequence[str] = ("text",)) -> Iterator[Sentence]:
    """Yields the sentences of files; documents are numbered over all of them."""
    document = 0
    for file in files:
        lines = _row_lines(file, text_fields) if is_rows(file) else _text_lines(file)
        for text in lines:
            document += not text
            if text:
                yield Sentence(document, text)
        document += 1


def _text_lines(file: Path) -> Iterator[str]:
    return (str(row.values["text"]).strip() for row in read_rows(file, format="text"))


def _row_lines(file: Path, text_fields: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the texts of each row, and an empty one after each row."""
    for row in read_rows(file):
        wrong = next((name for name in text_fields if not isinstance(row.values.get(name), str)), None)
        if wrong is not None:
            raise DataError(
                f"{file}:{row.line}: there is no text in {wrong!r}; the columns are {', '.join(row.values)}. "
                "Name those with text in text_field_names."
            )
        lines = (line.strip() for name in text_fields for line in str(row.values[name]).splitlines())
        yield from filter(None, lines)
        yield ""


def is_rows(file: Path) -> bool:
    """Whether a file holds rows with named columns; else it is plain text."""
    return any(suffix in _ROW_SUFFIXES for suffix in file.suffixes)


def cache_directory(files: Sequence[Path], given: str | os.PathLike[str], *, settings: Sequence[object]) -> Path:
    """Where what is made of files is kept: a name that follows from their content and from the settings."""
    parent = Path(given) if given else files[0].parent / ".trellis"
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        way_out = "Name a directory that can be written to in cache_dir."
        raise DataError(f"Tokens cannot be kept in `{parent}`: {error.strerror}. {way_out}") from None
    return parent / _key([settings, _content_key(files, notes=parent)])


def _content_key(files: Sequence[Path], *, notes: Path) -> str:
    """What changes with the content of files, which are read for it only if one of them looks like a new one."""
    note = notes / f"{_key([fingerprint(file) for file in files])}.content"
    if note.exists():
        return note.read_text()
    content = _key([(file.suffix, _digest(file)) for file in files])
    # Where nothing can be written, files are read again the next time.
    with contextlib.suppress(OSError):
        partial = note.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(content)
        partial.replace(note)
    return content


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _key(values: Sequence[object]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()
