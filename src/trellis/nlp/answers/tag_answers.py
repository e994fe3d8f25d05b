"""From sentences to a model's inputs, and from its logits to the tags of words and the spans that these mark."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trellis.nlp.answers.answerers import INPUTS, AskModel, Prediction, check_parts
from trellis.nlp.answers.question_answers import probabilities
from trellis.nlp.answers.tag_spans import OUTSIDE, Span, marks_spans, spans_of
from trellis.nlp.data import NO_TAG, Specials, TaggedSentence, Tokenizer, tag_windows, tagging_inputs

_WORD = re.compile("[^ \t\r\n]+")


@dataclass(frozen=True)
class TagAnswerer:
    """Gives each word of a sentence, which are between spaces, a tag. The model returns logits of each token.

    A sentence that is too long for one row is asked in several.
    """

    seq_length: int
    label_values: Sequence[str]
    """The tags, in the order of their numbers."""
    text_columns: Sequence[str] = ("words",)
    word_column: int = 0
    """The column of the words in files that have a word on each line."""

    kind: ClassVar[str] = "tags"
    column_names: ClassVar[Sequence[str] | None] = None

    @property
    def input_lengths(self) -> dict[str, int]:
        """The inputs of the model, and how long each is."""
        return dict.fromkeys(INPUTS, self.seq_length)

    def check(self, parts: tuple[str, ...], *, tokenizer: Tokenizer) -> None:
        """Refuses what is not one sentence with words."""
        check_parts(parts, self.text_columns)

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the tags of each sentence."""
        sentences = [
            TaggedSentence(tuple(_WORD.findall(text)), (), number=number) for number, (text,) in enumerate(texts)
        ]
        windows = tag_windows(sentences, tokenizer=tokenizer, seq_length=self.seq_length)
        sequences = tagging_inputs(windows, seq_length=self.seq_length, specials=Specials.of(tokenizer))
        logits = ask(sequences.inputs)
        labels: Any = windows["labels"]
        of_sentence: Any = windows["sentence"]
        n_windows = np.bincount(of_sentence, minlength=len(sentences))
        row = 0
        for (text,), sentence, n_rows in zip(texts, sentences, n_windows.tolist(), strict=True):
            rows = range(row, row + n_rows)
            # The first token of a row is a special one.
            of_words = [next(logits)[1 + np.flatnonzero(labels[number] != NO_TAG)] for number in rows]
            row += n_rows
            shares = probabilities(np.concatenate(of_words).astype(np.float64))
            yield self._prediction(text, sentence.words, shares)

    def _prediction(self, text: str, words: Sequence[str], shares: np.ndarray) -> Prediction:
        best = shares.argmax(axis=-1)
        scores = shares[np.arange(len(words)), best]
        tags = [self.label_values[number] for number in best.tolist()]
        spans = spans_of(tags, is_marked=marks_spans(self.label_values))
        described = [
            {
                "type": span.type,
                "text": " ".join(words[span.first : span.last + 1]),
                "first_word": span.first,
                "last_word": span.last,
                "score": round(float(scores[span.first : span.last + 1].mean()), 6),
            }
            for span in spans
        ]
        values = {
            "text": text,
            "words": list(words),
            "tags": tags,
            "scores": [round(float(score), 6) for score in scores],
            "spans": described,
        }
        if OUTSIDE not in self.label_values:
            # Each word has a tag that says something.
            return Prediction(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)), values)
        lines = [f"  {one['type']} {one['score']:.0%}  {one['text']}" for one in described] or ["  (no spans)"]
        return Prediction("\n".join([_marked(words, spans), *lines]), values)


def _marked(words: Sequence[str], spans: Sequence[Span]) -> str:
    """The words, with brackets around spans."""
    marked = list(words)
    for span in spans:
        marked[span.first] = f"[{marked[span.first]}"
        marked[span.last] += f" {span.type}]"
    return " ".join(marked)
