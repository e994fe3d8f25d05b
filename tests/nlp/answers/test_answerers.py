"""Text that somebody typed becomes the inputs that a model was trained on."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from tests.nlp.data.small_text import small_tokenizer
from trellis.errors import ArgumentError
from trellis.nlp.answers import AnswerOptions, BlankAnswerer, Predictor, QuestionAnswerer, SentenceAnswerer
from trellis.nlp.answers.answerers import INPUTS, AskModel, in_batches
from trellis.nlp.data import SentencePieceTokenizer, Tokenizer, Windows
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
        answerer.check(("a b",), tokenizer=small_tokenizer(tmp_path))


def test_an_error_shows_no_more_than_the_beginning_of_a_long_text_and_which_of_several_it_is(tmp_path: Path) -> None:
    predictor = Predictor(BlankAnswerer(SEQ_LENGTH, 2), ask=Recorder(), tokenizer=small_tokenizer(tmp_path))
    with pytest.raises(ArgumentError, match=r"^texts\[1\]: 'a{200}…' has no blank to fill"):
        predictor([("[MASK]",), ("a" * 100_000,)])
    with pytest.raises(ArgumentError, match=r"^'a b' has no blank to fill"):
        predictor([("a b",)])


def test_a_passage_in_which_the_model_marks_nothing_has_no_answer(tmp_path: Path) -> None:
    def ask(inputs: Mapping[str, np.ndarray], /) -> Iterator[Mapping[str, np.ndarray]]:
        # The best place, and the only one that counts, is in the question.
        logits = -np.arange(SEQ_LENGTH, dtype=np.float32)
        yield {"start_logits": logits, "end_logits": logits}

    answerer = QuestionAnswerer(Windows(SEQ_LENGTH, 2, 2), AnswerOptions(n_best_size=1))
    (prediction,) = answerer([("a", "b c")], ask=ask, tokenizer=small_tokenizer(tmp_path))
    assert prediction.values == {"question": "a", "answer": "", "probability": 0.0}
    assert prediction.text == "(no answer) (0%)  a"


def best_tokens(tokenizer: Tokenizer, *tokens: str) -> AskModel:
    """A model that is sure of one token after the other."""

    def ask(inputs: Mapping[str, np.ndarray], /) -> Iterator[Mapping[str, np.ndarray]]:
        logits = np.zeros((inputs["masked_lm_positions"].shape[1], tokenizer.vocab_size), np.float32)
        for place, token in enumerate(tokens):
            logits[place, tokenizer.id_of(token)] = 9
        yield {"mlm_logits": logits}

    return ask


@pytest.mark.parametrize(
    ("tokens", "text", "filled", "shown"),
    [
        (["cat"], "2 * 3 = the [MASK] *", "2 * 3 = the cat *", "2 * 3 = the *cat* *"),
        (["##s"], "the mat[MASK].", "the mats.", "the mat*s*."),
        (["[MASK]", "dog"], "a  [MASK]\t[MASK]?", "a  [MASK]\tdog?", "a  *[MASK]*\t*dog*?"),
    ],
)
def test_blanks_are_filled_with_plain_words_and_all_else_stays_as_it_was_typed(
    tmp_path: Path, tokens: list[str], text: str, filled: str, shown: str
) -> None:
    tokenizer = small_tokenizer(tmp_path)
    answerer = BlankAnswerer(16, n_positions=2)
    (prediction,) = answerer([(text,)], ask=best_tokens(tokenizer, *tokens), tokenizer=tokenizer)
    assert (prediction.values["text"], prediction.values["filled"]) == (text, filled)
    assert prediction.text.splitlines()[0] == shown
    assert prediction.values["blanks"][0][0]["token"] == tokens[0]


def test_words_of_sentencepiece_are_filled_in_without_its_sign_for_a_space(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on a mat", "the dog sat", "cats on mats"] * 20),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    tokenizer = SentencePieceTokenizer(tmp_path / "spiece.model")
    piece = next(token for token in tokenizer.tokens("the cat") if token.startswith("\u2581") and len(token) > 1)
    answerer = BlankAnswerer(32, n_positions=2)
    (prediction,) = answerer([("a [MASK].",)], ask=best_tokens(tokenizer, piece), tokenizer=tokenizer)
    assert prediction.values["filled"] == f"a {piece[1:]}."
    best = prediction.values["blanks"][0][0]
    assert (best["token"], best["word"]) == (piece, piece[1:])
    assert "\u2581" not in prediction.text


def test_a_batch_is_only_as_long_as_its_texts_need() -> None:
    lengths = np.array([3] * 16 + [17] + [2] * 15 + [100])
    mask = (np.arange(100) < lengths[:, None]).astype(np.int32)
    inputs = dict.fromkeys(INPUTS, mask) | {"masked_lm_positions": np.zeros((33, 76), np.int32)}
    asked: list[tuple[int, ...]] = []

    def run(batch: Mapping[str, np.ndarray]) -> np.ndarray:
        asked.extend((batch["input_type_ids"].shape, batch["masked_lm_positions"].shape))
        return batch["input_mask"].sum(axis=1)

    assert [int(answer) for answer in in_batches(run, cuts_padding=True)(inputs)] == lengths.tolist()
    assert asked == [(16, 16), (16, 76), (16, 32), (16, 76), (16, 100), (16, 76)]
    asked.clear()
    assert [int(answer) for answer in in_batches(run)(inputs)] == lengths.tolist()
    assert asked[::2] == [(16, 100)] * 3
