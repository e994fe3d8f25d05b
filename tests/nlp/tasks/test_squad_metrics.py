"""Scores of answers are those of the official scripts.

`benchmarks/squad_goldens.py` recorded `tests/golden/squad_v2`.
"""

import json
from pathlib import Path

import pytest

from trellis.errors import DataError
from trellis.nlp.data import Question
from trellis.nlp.tasks.squad_metrics import (
    evaluate_squad_v1,
    evaluate_squad_v2,
    exact_score,
    f1_score,
    normalize_answer,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "squad_v2" / "golden.json"


def asked(name: str, *answers: str) -> Question:
    return Question(name, "?", ("the", "sky"), answers, is_impossible=not answers)


def test_case_punctuation_articles_and_spaces_do_not_count() -> None:
    assert normalize_answer("The Cat's hat!") == "cats hat"
    assert normalize_answer("a an the") == ""
    assert normalize_answer("  An  apple—THE   best ") == "apple—the best".replace("the ", " ").replace("  ", " ")
    assert exact_score("The sky.", answer="sky") == 1.0


def test_f1_is_over_words_as_often_as_they_come() -> None:
    assert f1_score("the blue sky", answer="blue sky today") == pytest.approx(0.8)
    assert f1_score("sky sky", answer="sky") == pytest.approx(2 / 3)
    assert f1_score("sea", answer="sky") == 0.0
    assert f1_score("", answer="") == 1.0
    assert f1_score("", answer="sky") == 0.0


def test_version_1_takes_the_best_reference_and_counts_a_missing_prediction_as_wrong() -> None:
    questions = [asked("1", "sea", "sky"), asked("2", "blue sky today")]
    assert evaluate_squad_v1(questions, predictions={"1": "Sky", "2": "blue sky today"}) == {
        "exact_match": 100.0, "f1": 100.0,
    }  # fmt: skip
    scores = evaluate_squad_v1(questions, predictions={"2": "the blue sky"})
    assert scores == {"exact_match": 0.0, "f1": pytest.approx(40.0)}
    assert evaluate_squad_v1([asked("1", "the")], predictions={"1": "a"}) == {"exact_match": 100.0, "f1": 0.0}


def test_version_2_scores_questions_without_an_answer_and_finds_the_best_threshold() -> None:
    questions = [asked("1", "sky"), asked("2")]
    predictions = {"1": "sky", "2": "blue"}
    plain = evaluate_squad_v2(questions, predictions=predictions)
    assert plain == {
        "exact": 50.0, "f1": 50.0, "total": 2.0,
        "HasAns_exact": 100.0, "HasAns_f1": 100.0, "HasAns_total": 1.0,
        "NoAns_exact": 0.0, "NoAns_f1": 0.0, "NoAns_total": 1.0,
    }  # fmt: skip
    with_odds = evaluate_squad_v2(questions, predictions=predictions, null_odds={"1": -1.0, "2": 2.0})
    assert with_odds["exact"] == 100.0
    assert (with_odds["best_exact"], with_odds["best_exact_thresh"]) == (100.0, -1.0)
    assert (with_odds["best_f1"], with_odds["best_f1_thresh"]) == (100.0, -1.0)


def test_the_best_threshold_of_many_is_what_trying_all_of_them_finds() -> None:
    questions = [asked(str(n), *(["sky"] if n % 3 else [])) for n in range(30)]
    predictions = {str(n): ["sky", "sea", "blue sky"][n % 7 % 3] for n in range(30)}
    odds = {str(n): float((n * 17) % 30) - 15 for n in range(30)}
    best = evaluate_squad_v2(questions, predictions=predictions, null_odds=odds)
    tried = [
        evaluate_squad_v2(questions, predictions=predictions, null_odds=odds, threshold=threshold)
        for threshold in [-99.0, *odds.values()]
    ]
    assert best["best_exact"] == pytest.approx(max(scores["exact"] for scores in tried))
    assert best["best_f1"] == pytest.approx(max(scores["f1"] for scores in tried))


def test_scores_of_version_2_are_those_of_the_official_algorithm() -> None:
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    questions = [asked(name, *answers) for name, answers in recorded["questions"].items()]
    for case in recorded["cases"]:
        expected = case.pop("scores")
        assert evaluate_squad_v2(questions, **case) == pytest.approx(expected, rel=1e-12)


def test_only_questions_with_a_prediction_count_in_version_2() -> None:
    assert evaluate_squad_v2([asked("1", "sky"), asked("2")], predictions={"1": "sky"})["total"] == 1.0
    with pytest.raises(DataError, match="no questions with a prediction"):
        evaluate_squad_v2([asked("1", "sky")], predictions={})
