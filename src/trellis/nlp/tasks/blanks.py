"""Blanks in a text, and the words that a model fills in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trellis.errors import ArgumentError
from trellis.nlp.data import Tokenizer
from trellis.nlp.tasks.predictions import CLS, SEP, Prediction, run_in_batches
from trellis.tasks import BoundModel

BLANK = "[MASK]"
_N_SHOWN = 5


@dataclass(frozen=True)
class _Blanked:
    """A text with blanks as ids."""

    ids: list[int]
    positions: list[int]


def fill_blanks(
    texts: Sequence[str], *, model: BoundModel, tokenizer: Tokenizer, seq_length: int
) -> Iterator[Prediction]:
    """Yields for each text the words that fit its blanks best, each blank on its own.

    Args:
        texts: Each with one `[MASK]` or more.
        model: Returns `mlm_logits` at `masked_lm_positions`.
    """
    blanked = [_blanked(text, tokenizer, seq_length) for text in texts]
    ids, positions = np.zeros((len(texts), seq_length), np.int32), [item.positions for item in blanked]
    where = np.zeros((len(texts), max(map(len, positions))), np.int32)
    for row, item in enumerate(blanked):
        ids[row, : len(item.ids)] = item.ids
        where[row, : len(item.positions)] = item.positions
    lengths = np.array([len(item.ids) for item in blanked])
    mask = (np.arange(seq_length) < lengths[:, None]).astype(np.int32)
    inputs = {
        "input_word_ids": ids,
        "input_mask": mask,
        "input_type_ids": np.zeros_like(ids),
        "masked_lm_positions": where,
    }
    for text, item, outputs in zip(texts, blanked, run_in_batches(model, inputs), strict=True):
        yield _prediction(text, outputs["mlm_logits"][: len(item.positions)].astype(np.float64), tokenizer)


def _blanked(text: str, tokenizer: Tokenizer, seq_length: int) -> _Blanked:
    # The vocabulary's own rules would take the brackets apart.
    parts = text.split(BLANK)
    if len(parts) < 2:
        raise ArgumentError(f"{text!r} has no blank to fill. Write {BLANK} where a word is missing.")
    ids, positions = [tokenizer.id_of(CLS)], []
    for number, part in enumerate(parts):
        if number:
            positions.append(len(ids))
            ids.append(tokenizer.id_of(BLANK))
        ids += [int(token) for token in tokenizer.encode([part])[0]]
    ids.append(tokenizer.id_of(SEP))
    if len(ids) > seq_length:
        raise ArgumentError(f"{text!r} has {len(ids)} tokens, but the model reads {seq_length}. Make it shorter.")
    return _Blanked(ids, positions)


def _prediction(text: str, logits: np.ndarray, tokenizer: Tokenizer) -> Prediction:
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    best = np.argsort(-shares, axis=-1)[:, :_N_SHOWN]
    blanks = [
        [(tokenizer.tokens_of([number])[0], float(share[number])) for number in row]
        for row, share in zip(best, shares, strict=True)
    ]
    filled = text
    for words in blanks:
        filled = filled.replace(BLANK, f"*{words[0][0].removeprefix('##')}*", 1)
    shown = ["  " + ", ".join(f"{word} {share:.0%}" for word, share in words) for words in blanks]
    listed = [[{"token": word, "probability": round(share, 6)} for word, share in words] for words in blanks]
    return Prediction("\n".join([filled, *shown]), {"text": text, "filled": filled.replace("*", ""), "blanks": listed})
