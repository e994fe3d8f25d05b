"""Text that somebody typed becomes the inputs that a model was trained on."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.nlp.data.small_text import small_tokenizer
from trellis.errors import ArgumentError
from trellis.nlp.answers import BlankAnswerer, SentenceAnswerer
from trellis.nlp.data.sentences import SentenceFields, SentenceRow, sentence_features

SEQ_LENGTH = 8
TEXTS = [("a b c",), ("a b c d e f g h",), ("a", "b c"), ("a b c d", "e f g h"), ("a b", "\u200b")]


class Recorder:
    """A model that answers zeros, and keeps what it was asked."""

    def __init__(self) -> None:
        self.inputs: Mapping[str, np.ndarray] = {}

    def __call__(self, inputs: Mapping[str, np.ndarray], /) -> Iterator[np.ndarray]:
        self.inputs = inputs
        return (np.zeros(2, np.float32) for _ in inputs["input_word_ids"])


def test_sentences_are_asked_as_they_are_trained_on_cut_ones_and_empty_ones_too(tmp_path: Path) -> None:
    tokenizer, model = small_tokenizer(tmp_path), Recorder()
    list(SentenceAnswerer(SEQ_LENGTH)(TEXTS, ask=model, tokenizer=tokenizer))
    rows = [SentenceRow(texts, 0, number) for number, texts in enumerate(TEXTS)]
    fields = SentenceFields(("first", "second"), label=None)
    trained = sentence_features(rows, tokenizer=tokenizer, fields=fields, seq_length=SEQ_LENGTH)
    names = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
    for asked, written in names.items():
        np.testing.assert_array_equal(model.inputs[asked], trained[written])
        assert model.inputs[asked].dtype == np.int32


def test_a_text_without_a_blank_has_nothing_to_fill_in(tmp_path: Path) -> None:
    answerer = BlankAnswerer(SEQ_LENGTH, n_positions=2)
    with pytest.raises(ArgumentError, match="has no blank to fill"):
        list(answerer([("a b",)], ask=Recorder(), tokenizer=small_tokenizer(tmp_path)))
