"""What a model says to text that somebody typed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from trellis.aliases import PyTree
from trellis.nlp.data import Tokenizer

BATCH_SIZE = 16
CLS, SEP = "[CLS]", "[SEP]"
INPUTS = ("input_word_ids", "input_mask", "input_type_ids")


@dataclass(frozen=True)
class Prediction:
    """What is said to one text."""

    text: str
    """For people, on one or more lines."""
    values: Mapping[str, Any]
    """For programs, as JSON has it."""


class AskModel(Protocol):
    """A model, asked."""

    def __call__(self, inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
        """Yields the model's outputs for each example, as NumPy arrays."""


class Answerer(Protocol):
    """How text becomes a model's inputs, and its outputs an answer: all but the model and the vocabulary.

    It is a dataclass whose fields JSON can hold, so that a served model can tell them.
    """

    @property
    def kind(self) -> str:
        """What it answers, in a word."""

    @property
    def text_columns(self) -> Sequence[str]:
        """What the parts of a text are called; empty if they have no names."""

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields what the model says to each of some texts, which may have several parts."""


def in_batches(run: Callable[[Mapping[str, np.ndarray]], PyTree], *, batch_size: int = BATCH_SIZE) -> AskModel:
    """Asks a function of batches; the last batch is filled up, so that one program runs them all."""

    def ask(inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
        n = len(next(iter(inputs.values())))
        for start in range(0, n, batch_size):
            rows = np.minimum(np.arange(start, start + batch_size), n - 1)
            outputs = jax.device_get(run({name: array[rows] for name, array in inputs.items()}))
            for row in range(min(batch_size, n - start)):
                yield jax.tree.map(lambda leaf, row=row: leaf[row], outputs)

    return ask


def encode_texts(texts: Sequence[tuple[str, ...]], *, tokenizer: Tokenizer, seq_length: int) -> dict[str, np.ndarray]:
    """`[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]` for pairs; the longer part loses what does not fit."""
    rows = [_encode(tuple(_ids(part, tokenizer) for part in parts), tokenizer, seq_length) for parts in texts]
    ids, types = (padded([row[side] for row in rows], seq_length) for side in (0, 1))
    mask = padded([[1] * len(row[0]) for row in rows], seq_length)
    return dict(zip(INPUTS, (ids, mask, types), strict=True))


def padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Rows of one length, filled up with zeros."""
    array = np.zeros((len(rows), length), np.int32)
    for row, values in zip(array, rows, strict=True):
        row[: len(values)] = values
    return array


def _ids(text: str, tokenizer: Tokenizer) -> list[int]:
    return [int(number) for number in tokenizer.encode([text])[0]]


def _encode(parts: tuple[list[int], ...], tokenizer: Tokenizer, seq_length: int) -> tuple[list[int], list[int]]:
    room = seq_length - 1 - len(parts)
    while sum(map(len, parts)) > room:
        # Of two that are equal the last is cut, as in training.
        max(reversed(parts), key=len).pop()
    ids, types = [tokenizer.id_of(CLS)], [0]
    for number, part in enumerate(parts):
        ids += [*part, tokenizer.id_of(SEP)]
        types += [number] * (len(part) + 1)
    return ids, types
