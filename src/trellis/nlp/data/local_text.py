"""The local corpus as files to pretrain on, with a vocabulary of its own."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trellis.nlp.data.local_corpus import load_local_corpus
from trellis.nlp.data.output import write_whole
from trellis.nlp.data.vocabulary import train_wordpiece

_HELD_OUT = 20
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"'(])")


class LocalText(NamedTuple):
    """The files of the local corpus."""

    train_file: str
    validation_file: str
    vocab_file: str


def prepare_local_text(*, vocab_size: int = 4096, cache_dir: str | os.PathLike[str] | None = None) -> LocalText:
    """Writes the local corpus, a sentence a line, with every twentieth document held out, and a vocabulary for it.

    It takes some seconds once; the same version of Python gives the same files.

    Args:
        cache_dir: The default is `$XDG_CACHE_HOME/trellis/local_text` (`~/.cache/...`).
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}-{vocab_size}"
    folder = _folder(cache_dir) / name
    text = LocalText(*(str(folder / name) for name in ("train.txt", "validation.txt", "vocab.txt")))
    # The vocabulary is written last: where it is, all is.
    if not Path(text.vocab_file).exists():
        documents = ["\n".join(_sentences(document)) for document in _documents()]
        train = [document for number, document in enumerate(documents) if number % _HELD_OUT]
        write_whole(Path(text.train_file), "\n\n".join(train).encode())
        write_whole(Path(text.validation_file), "\n\n".join(documents[::_HELD_OUT]).encode())
        lines = (line for document in train for line in document.split("\n"))
        write_whole(Path(text.vocab_file), train_wordpiece(lines, vocab_size=vocab_size).encode())
    return text


def _documents() -> list[str]:
    """The paragraphs of several words, in the order of the library."""
    paragraphs = (paragraph.strip() for paragraph in load_local_corpus().split("\n\n"))
    return [paragraph for paragraph in paragraphs if len(paragraph.split()) > 5]


def _sentences(document: str) -> Iterator[str]:
    yield from _SENTENCE_END.split(" ".join(document.split()))


def _folder(given: str | os.PathLike[str] | None) -> Path:
    if given is not None:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trellis" / "local_text"
