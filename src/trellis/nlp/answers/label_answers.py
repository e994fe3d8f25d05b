"""From sentences or pairs to a model's inputs, and from its logits to the labels that each has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trellis.nlp.answers.answerers import INPUTS, AskModel, Prediction, check_parts, sentence_inputs
from trellis.nlp.data import Tokenizer


@dataclass(frozen=True)
class LabelsAnswerer:
    """Tells which labels each sentence or pair has, any number of them. The model returns a logit for each label."""

    seq_length: int
    label_values: Sequence[str]
    """The labels, in the order of their numbers."""
    threshold: float = 0.5
    """How probable a label has to be."""
    text_columns: Sequence[str] = ()
    column_names: Sequence[str] | None = None
    """The columns of its files, if these have no header."""

    kind: ClassVar[str] = "labels"

    @property
    def input_lengths(self) -> dict[str, int]:
        """The inputs of the model, and how long each is."""
        return dict.fromkeys(INPUTS, self.seq_length)

    def check(self, parts: tuple[str, ...], *, tokenizer: Tokenizer) -> None:
        """Refuses what is not the sentence or the pair that the model was trained on; these may be not known."""
        check_parts(parts, self.text_columns or ("the sentence", "the second sentence")[: max(1, len(parts))])

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the labels of each sentence or pair."""
        inputs = sentence_inputs(texts, tokenizer=tokenizer, seq_length=self.seq_length)
        for parts, logits in zip(texts, ask(inputs), strict=True):
            yield self._prediction(parts, 1 / (1 + np.exp(-logits.astype(np.float64))))

    def _prediction(self, parts: tuple[str, ...], chances: np.ndarray) -> Prediction:
        by_name = {name: round(float(chance), 6) for name, chance in zip(self.label_values, chances, strict=True)}
        labels = [name for name, chance in by_name.items() if chance >= self.threshold]
        asked = {"text": parts, **({"text_fields": list(self.text_columns)} if self.text_columns else {})}
        shown = ", ".join(f"{name} ({by_name[name]:.0%})" for name in labels) or "(no label)"
        return Prediction(f"{shown}  {' | '.join(parts)}", {**asked, "labels": labels, "probabilities": by_name})
