"""Logits become answers in the words of the passage."""

from pathlib import Path

import numpy as np
import pytest

from tests.nlp.data.small_questions import long_vocabulary, question, sky_vocabulary, write_squad
from trellis.errors import ArgumentError
from trellis.nlp.answers.question_answers import Answer, AnswerOptions, align_answer, answer_questions
from trellis.nlp.data import (
    FIRST_UNIQUE_ID,
    QADataConfig,
    WordPieceTokenizer,
    load_questions,
    question_tokenizer,
    question_windows,
)


def answers(
    params: QADataConfig, start: dict[tuple[int, int], float], end: dict[tuple[int, int], float], **options: object
) -> dict[str, Answer]:
    """The answers to logits that are 0 but where they are given, by window and position."""
    windows = question_windows(params)
    logits = np.zeros((2, len(windows), params.seq_length), np.float32)
    for side, values in zip(logits, (start, end), strict=True):
        for place, value in values.items():
            side[place] = value
    order = np.arange(len(windows))[::-1]
    return answer_questions(
        load_questions(params),
        windows=windows,
        unique_ids=FIRST_UNIQUE_ID + order,
        start_logits=logits[0][order],
        end_logits=logits[1][order],
        tokenizer=question_tokenizer(params),
        options=AnswerOptions(**options),  # type: ignore[arg-type]
    )


@pytest.fixture
def sky(tmp_path: Path) -> QADataConfig:
    file = write_squad(tmp_path / "squad.json", question("q", "What is blue?", "Sky"))
    return QADataConfig(
        input_path=file, vocab_file=sky_vocabulary(tmp_path), is_training=False, seq_length=16, query_length=8
    )


def test_the_best_span_is_told_as_the_passage_spells_it(sky: QADataConfig) -> None:
    answer = answers(sky, {(0, 6): 5}, {(0, 6): 4})["q"]
    assert answer.text == "Sky"
    assert answer.candidates[0].text == "Sky"
    assert answer.candidates[0].score == 9
    assert sum(candidate.probability for candidate in answer.candidates) == pytest.approx(1)
    assert len({candidate.text for candidate in answer.candidates}) == len(answer.candidates)
    assert answers(sky, {(0, 8): 5}, {(0, 8): 4})["q"].text == "blue"


def test_spans_in_the_question_backwards_or_too_long_are_no_answers(sky: QADataConfig) -> None:
    start, end = {(0, 2): 50.0, (0, 8): 9.0, (0, 6): 5.0}, {(0, 3): 50.0, (0, 7): 8.0, (0, 15): 30.0}
    assert answers(sky, start, end)["q"].text == "Sky is"
    assert answers(sky, start, end, max_answer_length=1)["q"].text == "blue"


def test_no_answer_is_chosen_when_it_scores_better_by_more_than_the_threshold(sky: QADataConfig) -> None:
    start, end = {(0, 0): 20.0, (0, 6): 5.0}, {(0, 0): 20.0, (0, 6): 4.0}
    answer = answers(sky, start, end, version_2_with_negative=True)["q"]
    assert (answer.text, answer.null_odds) == ("", 31)
    assert answer.candidates[0].text == ""
    assert answers(sky, start, end, version_2_with_negative=True, null_score_diff_threshold=31)["q"].text == "Sky"
    kept = answers(sky, {(0, 6): 5.0}, {(0, 6): 4.0}, version_2_with_negative=True)["q"]
    assert (kept.text, kept.null_odds) == ("Sky", -9)
    assert answers(sky, start, end)["q"].text == "Sky"


def test_of_several_windows_the_one_with_the_most_context_answers(tmp_path: Path) -> None:
    passage = " ".join(f"w{number}" for number in range(20))
    file = write_squad(tmp_path / "squad.json", question("q", "why", "w9", passage=passage), passage=passage)
    params = QADataConfig(
        input_path=file,
        vocab_file=long_vocabulary(tmp_path),
        is_training=False,
        seq_length=12,
        query_length=1,
        doc_stride=4,
    )
    # Word 5 is in windows 0 and 1, where it is position 8 and 4; the first shows more of what is around it.
    assert answers(params, {(0, 8): 5.0, (1, 4): 9.0}, {(0, 8): 5.0, (1, 4): 9.0})["q"].candidates[0].score == 10
    # The least of what windows say for no answer counts.
    nulls = {(0, 0): 3.0, (1, 0): 2.0, (2, 0): 7.0, (3, 0): 9.0, (0, 8): 5.0}
    assert answers(params, nulls, {(0, 8): 5.0}, version_2_with_negative=True)["q"].null_odds == 2 - 10


def test_few_candidates_are_kept_and_none_at_all_is_told(sky: QADataConfig) -> None:
    assert len(answers(sky, {}, {}, n_best_size=2)["q"].candidates) <= 2
    # The best start lies in the question, so that there is nothing to choose.
    assert answers(sky, {(0, 1): 5.0}, {(0, 1): 5.0}, n_best_size=1)["q"].text == "empty"
    nothing = answers(sky, {(0, 1): 5.0}, {(0, 1): 5.0}, n_best_size=1, version_2_with_negative=True)["q"]
    assert [candidate.text for candidate in nothing.candidates] == ["empty", ""]
    with pytest.raises(ArgumentError, match="n_best_size is 0"):
        AnswerOptions(n_best_size=0)


@pytest.mark.parametrize(
    ("answer", "original", "expected"),
    [
        ("steve smith", "Steve Smith's", "Steve Smith"),
        ("smith", "Steve Smith's", "Smith"),
        ("cafe", "(Café)", "Café"),
        ("not there", "Steve Smith's", "Steve Smith's"),
        ("", "Steve", "Steve"),
        # An accent that is a character of its own is lost among the tokens, so that characters cannot be counted.
        ("a", "a Cafe\u0301", "a Cafe\u0301"),
    ],
)
def test_an_answer_is_found_again_in_the_original_text(
    tmp_path: Path, answer: str, original: str, expected: str
) -> None:
    tokenizer = WordPieceTokenizer(sky_vocabulary(tmp_path))
    assert align_answer(answer, original=original, tokenizer=tokenizer) == expected
