"""Blanks in a text, and the words that a model fills in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trellis.errors import ArgumentError
from trellis.nlp.data import Tokenizer
from trellis.nlp.tasks.predictions import CLS, INPUTS, SEP, AskModel, Prediction, padded

BLANK = "[MASK]"
_N_SHOWN = 5


@dataclass(frozen=True)
class BlankAnswerer:
    """Tells for each text the words that fit its blanks best, each blank on its own.

    The model returns `mlm_logits` at `masked_lm_positions`.
    """

    seq_length: int
    n_positions: int
    """How many blanks of a text the model looks at in one go."""

    kind: ClassVar[str] = "blanks"
    text_columns: ClassVar[Sequence[str]] = ("text",)

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""
        return {**dict.fromkeys(INPUTS, self.seq_length), "masked_lm_positions": self.n_positions}

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the words for each text, which has one `[MASK]` or more."""
        asked = [" ".join(parts) for parts in texts]
        blanked = [_blanked(text, tokenizer, self.seq_length) for text in asked]
        # A text with many blanks is in several rows.
        rows = [
            (item.ids, item.positions[start : start + self.n_positions])
            for item in blanked
            for start in range(0, len(item.positions), self.n_positions)
        ]
        ids = padded([row for row, _ in rows], self.seq_length)
        mask = padded([[1] * len(row) for row, _ in rows], self.seq_length)
        where = padded([positions for _, positions in rows], self.n_positions)
        inputs = dict(zip(INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))
        answers = ask({**inputs, "masked_lm_positions": where})
        for text, item in zip(asked, blanked, strict=True):
            n_rows = -(-len(item.positions) // self.n_positions)
            logits = np.concatenate([next(answers)["mlm_logits"] for _ in range(n_rows)])
            # A model may have room for more tokens than the vocabulary has.
            told = logits[: len(item.positions), : tokenizer.vocab_size].astype(np.float64)
            yield _prediction(text, told, tokenizer)


@dataclass(frozen=True)
class _Blanked:
    """A text with blanks as ids."""

    ids: list[int]
    positions: list[int]


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
