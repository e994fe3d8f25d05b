"""How good answers are: exact match and F1, as the official scripts of SQuAD 1.1 and 2.0 count them."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from trellis.errors import DataError
from trellis.nlp.data import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous spaces.

    Example:
        >>> normalize_answer("The  Romans' roads.")
        'romans roads'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_score(prediction: str, *, answer: str) -> float:
    """1 if both are the same after normalisation, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def f1_score(prediction: str, *, answer: str) -> float:
    """The harmonic mean of precision and recall over words; if one side has no words, 1 if neither has, else 0."""
    predicted_words, answer_words = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not predicted_words or not answer_words:
        return float(predicted_words == answer_words)
    n_same = sum((Counter(predicted_words) & Counter(answer_words)).values())
    if n_same == 0:
        return 0.0
    precision, recall = n_same / len(predicted_words), n_same / len(answer_words)
    return 2 * precision * recall / (precision + recall)


def evaluate_squad_v1(questions: Sequence[Question], *, predictions: Mapping[str, str]) -> dict[str, float]:
    """Returns `exact_match` and `f1` in percent, as SQuAD 1.1 counts: a question without a prediction counts as wrong.

    Args:
        predictions: From the id of a question to the text that answers it.
    """
    _check(questions)
    exact = 0.0
    f1 = 0.0
    for question in questions:
        prediction = predictions.get(question.id)
        if prediction is not None:
            exact += max(exact_score(prediction, answer=answer) for answer in question.answers)
            f1 += max(_f1_v1(prediction, answer) for answer in question.answers)
    return {"exact_match": 100 * exact / len(questions), "f1": 100 * f1 / len(questions)}


def evaluate_squad_v2(
    questions: Sequence[Question],
    *,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Returns the scores of SQuAD 2.0 by their official names, in percent.

    These are `exact`, `f1` and `total`, the same of questions with an answer (`HasAns_…`) and without (`NoAns_…`), and
    with `null_odds` the best that a threshold could reach (`best_exact`, `best_exact_thresh`, `best_f1`, …). Only
    questions with a prediction count.

    Args:
        predictions: From the id of a question to the text that answers it; empty for no answer.
        null_odds: How much more likely no answer is than the prediction.
        threshold: Odds above it make the prediction empty.
    """
    answered = [question for question in questions if question.id in predictions]
    _check(answered)
    odds = null_odds or {}
    has_answer = {question.id: bool(question.answers) for question in answered}
    # Those whose prediction the threshold makes empty, with the score of an empty one.
    emptied = {key: float(not has) for key, has in has_answer.items() if odds.get(key, 0.0) > threshold}
    parts = {
        "": list(has_answer),
        "HasAns_": [key for key, has in has_answer.items() if has],
        "NoAns_": [key for key, has in has_answer.items() if not has],
    }
    result: dict[str, float] = {}
    for name, score in (("exact", exact_score), ("f1", f1_score)):
        raw = _raw_scores(answered, predictions, score)
        for prefix, keys in parts.items():
            if keys:
                total = sum(emptied.get(key, raw[key]) for key in keys)
                result |= {f"{prefix}{name}": 100 * total / len(keys), f"{prefix}total": float(len(keys))}
        if null_odds is not None:
            best, at = _best_threshold(predictions, raw, null_odds, has_answer)
            result |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return result


def _f1_v1(prediction: str, answer: str) -> float:
    # In version 1.1 no common word is 0, even where both sides are nothing but articles.
    return f1_score(prediction, answer=answer) if normalize_answer(prediction) else 0.0


def _raw_scores(
    questions: Sequence[Question], predictions: Mapping[str, str], score: Callable[..., float]
) -> dict[str, float]:
    raw = {}
    for question in questions:
        # Answers that are nothing but articles and punctuation are none.
        answers = [answer for answer in question.answers if normalize_answer(answer)] or [""]
        raw[question.id] = max(score(predictions[question.id], answer=answer) for answer in answers)
    return raw


def _best_threshold(
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """The best score in percent over all thresholds, and the lowest one that reaches it."""
    current = best = float(sum(not has for has in has_answer.values()))
    at = 0.0
    for key in sorted((key for key in null_odds if key in scores), key=lambda key: null_odds[key]):
        if has_answer[key]:
            current += scores[key]
        elif predictions[key]:
            current -= 1
        if current > best:
            best = current
            at = null_odds[key]
    return 100 * best / len(scores), at


def _check(questions: Sequence[Question]) -> None:
    if not questions:
        raise DataError("There are no questions with a prediction to evaluate. Predict answers to them first.")
