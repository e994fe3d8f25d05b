"""Sentences, or pairs of them, and the class or the number that a model gives them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trellis.errors import ArgumentError
from trellis.nlp.data import Tokenizer
from trellis.nlp.tasks.predictions import INPUTS, AskModel, Prediction, encode_texts


@dataclass(frozen=True)
class SentenceAnswerer:
    """Tells the class, or the number, of each sentence or pair. The model returns logits; a single one is a number."""

    seq_length: int
    label_values: Sequence[str] | None = None
    """What the classes are called; None has them told by their numbers."""
    text_columns: Sequence[str] = ()

    kind: ClassVar[str] = "sentences"

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""
        return dict.fromkeys(INPUTS, self.seq_length)

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the class, or the number, of each sentence or pair."""
        for parts in texts:
            if len(parts) not in (1, 2) or not all(parts):
                raise ArgumentError(f"{parts!r} is to be classified, but it takes one sentence or a pair of them.")
        inputs = encode_texts(texts, tokenizer=tokenizer, seq_length=self.seq_length)
        for parts, logits in zip(texts, ask(inputs), strict=True):
            yield _prediction(parts, logits.astype(np.float64), self.label_values)


def _prediction(parts: tuple[str, ...], logits: np.ndarray, names: Sequence[str] | None) -> Prediction:
    text = " | ".join(parts)
    if len(logits) == 1:
        return Prediction(f"{logits[0]:.3f}  {text}", {"text": parts, "value": float(logits[0])})
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    best = int(shares.argmax())
    said = names[best] if names else str(best)
    values = {"text": parts, "class": best, "label": said, "probabilities": [round(float(p), 6) for p in shares]}
    return Prediction(f"{said} ({shares[best]:.0%})  {text}", values)
