"""Text that every machine has: the documentation of Python's own standard library, as one text and as files."""

import ast
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trellis.disk import default_cache_dir, write_whole
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data.vocabulary import train_wordpiece
from trellis.user_cache import hold

_VALIDATION_PERIOD = 20
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"'(])")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def load_local_corpus(folder: str | Path | None = None) -> str:
    """The documentation strings of all modules in a folder, in order, with an empty line between two.

    Sources are parsed, never imported. The standard library gives about 0.9 million characters of English, the same for
    one version of Python on every machine.

    Args:
        folder: Where the modules are; the default is that of the running Python's standard library.
    """
    folder = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    modules = (ast.parse(file.read_bytes(), file) for file in sorted(folder.glob("*.py")))
    texts = [text for module in modules for text in _documentation(module)]
    if not texts:
        raise DataError(f"No documentation strings were found in {folder}. Name a folder with Python sources.")
    return "\n\n".join(texts)


def _documentation(node: _Documented) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text:
        yield text
    for statement in node.body:
        if isinstance(statement, _Documented):
            yield from _documentation(statement)


class LocalText(NamedTuple):
    """The files of the local corpus."""

    train_file: str
    validation_file: str
    vocab_file: str
    """Empty if none was asked for."""


def prepare_local_text(*, vocab_size: int | None = 4096, cache_dir: str | os.PathLike[str] | None = None) -> LocalText:
    """Writes the local corpus, a sentence a line, with every twentieth document held out, and a vocabulary for it.

    It takes some seconds once; the same version of Python gives the same files.

    Args:
        vocab_size: Of the vocabulary; None makes none.
        cache_dir: The default is `$XDG_CACHE_HOME/trellis/local_text` (`~/.cache/...`).
    """
    parent = default_cache_dir("local_text") if cache_dir is None else Path(cache_dir)
    version = ".".join(map(str, sys.version_info[:3]))
    folder = parent / f"python{version}-{'text' if vocab_size is None else vocab_size}"
    train_file, validation_file, vocab_file = (folder / name for name in ("train.txt", "validation.txt", "vocab.txt"))
    hold(folder)
    # In this order: where the last one is, all are.
    if not (validation_file if vocab_size is None else vocab_file).exists():
        documents = [_one_sentence_a_line(document) for document in _documents()]
        train = [document for number, document in enumerate(documents) if number % _VALIDATION_PERIOD]
        write_whole(train_file, "\n\n".join(train).encode())
        write_whole(validation_file, "\n\n".join(documents[::_VALIDATION_PERIOD]).encode())
        if vocab_size is not None:
            lines = (line for document in train for line in document.split("\n"))
            write_whole(vocab_file, train_wordpiece(lines, vocab_size=vocab_size).encode())
        hold(folder)
    return LocalText(str(train_file), str(validation_file), "" if vocab_size is None else str(vocab_file))


def _documents() -> list[str]:
    """The paragraphs of more than five words, in the order of the library."""
    paragraphs = (paragraph.strip() for paragraph in load_local_corpus().split("\n\n"))
    return [paragraph for paragraph in paragraphs if len(paragraph.split()) > 5]


def _one_sentence_a_line(document: str) -> str:
    return "\n".join(_SENTENCE_END.split(" ".join(document.split())))


def byte_sequences(text: str, *, length: int, validation_share: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into sequences of bytes (in UTF-8), each used once: those to train on, and those held out.

    Both are int32 arrays of shape (n, length). The held-out ones are spread evenly over the text.

    Example:
        >>> train, validation = byte_sequences("All is well that ends well." * 10, length=9)
        >>> train.shape, validation.shape
        ((28, 9), (2, 9))
    """
    if length < 1:
        raise ArgumentError(f"length is {length}, but a sequence has at least one byte.")
    if not 0 < validation_share < 1:
        raise ArgumentError(f"validation_share is {validation_share}, but it lies between 0 and 1.")
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    n_sequences = len(tokens) // length
    n_held_out = round(n_sequences * validation_share)
    if not 0 < n_held_out < n_sequences:
        raise DataError(
            f"A text of {len(tokens)} bytes is too short: it gives {n_sequences} sequences of {length} bytes, of which "
            f"{n_held_out} are held out. Use a longer text or shorter sequences."
        )
    sequences = tokens[: n_sequences * length].reshape(n_sequences, length)
    held_out = np.zeros(n_sequences, bool)
    held_out[np.arange(n_held_out) * n_sequences // n_held_out] = True
    return sequences[~held_out], sequences[held_out]
