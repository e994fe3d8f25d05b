"""What a model says to text that somebody typed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trellis.nlp.data import Tokenizer
from trellis.tasks import BoundModel

_BATCH_SIZE = 16
CLS, SEP = "[CLS]", "[SEP]"


@dataclass(frozen=True)
class Prediction:
    """What is said to one text."""

    text: str
    """For people, on one or more lines."""
    values: Mapping[str, Any]
    """For programs, as JSON has it."""


def encode_texts(texts: Sequence[tuple[str, ...]], *, tokenizer: Tokenizer, seq_length: int) -> dict[str, np.ndarray]:
    """`[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]` for pairs; the longer part loses what does not fit."""
    rows = [_encode(tuple(_ids(part, tokenizer) for part in parts), tokenizer, seq_length) for parts in texts]
    ids, types = (_padded([row[side] for row in rows], seq_length) for side in (0, 1))
    mask = _padded([[1] * len(row[0]) for row in rows], seq_length)
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def run_in_batches(model: BoundModel, inputs: Mapping[str, np.ndarray]) -> Iterator[Any]:
    """Yields the model's outputs for each example; the last batch is filled up, so that one program runs them all."""
    run = jax.jit(lambda params, batch: BoundModel(model.model, params=params, model_state=model.model_state)(batch))
    n = len(next(iter(inputs.values())))
    for start in range(0, n, _BATCH_SIZE):
        rows = np.minimum(np.arange(start, start + _BATCH_SIZE), n - 1)
        outputs = jax.device_get(run(model.params, {name: array[rows] for name, array in inputs.items()}))
        for row in range(min(_BATCH_SIZE, n - start)):
            yield jax.tree.map(lambda leaf, row=row: leaf[row], outputs)


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


def _padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    array = np.zeros((len(rows), length), np.int32)
    for row, values in zip(array, rows, strict=True):
        row[: len(values)] = values
    return array
