"""From logits to answers: the best span of each question, in the words of its passage."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, Ragged
from trellis.errors import ArgumentError
from trellis.nlp.data import FIRST_UNIQUE_ID, Question, Tokenizer

_NOTHING = "empty"


@dataclass(frozen=True)
class AnswerOptions:
    """The published options of how an answer is chosen."""

    n_best_size: int = 20
    max_answer_length: int = 30
    """In tokens."""
    null_score_diff_threshold: float = 0.0
    """How much better no answer must be than the best one to be chosen."""
    version_2_with_negative: bool = False
    """Whether a question may have no answer."""

    def __post_init__(self) -> None:
        """Refuses to choose among nothing."""
        if self.n_best_size < 1 or self.max_answer_length < 1:
            sizes = f"n_best_size is {self.n_best_size} and max_answer_length {self.max_answer_length}"
            raise ArgumentError(f"{sizes}; both are at least 1.")


@dataclass(frozen=True)
class Candidate:
    """A text that may answer a question."""

    text: str
    score: float
    """The sum of the logits of its first and its last token."""
    probability: float


@dataclass(frozen=True)
class Answer:
    """The answer to a question, and all candidates for it."""

    text: str
    """Empty if there is no answer."""
    candidates: tuple[Candidate, ...]
    """The best first; their probabilities add up to 1."""
    null_odds: float = 0.0
    """How much better no answer scores than the best one; 0 if every question has an answer."""
    is_in_passage: bool = True
    """False if no span could be an answer; then the published code answers `empty`."""


class _Span(NamedTuple):
    window: int
    start: int
    end: int
    score: float


def answer_questions(
    questions: Sequence[Question],
    *,
    windows: Columns,
    unique_ids: NDArray[np.integer],
    start_logits: NDArray[np.floating],
    end_logits: NDArray[np.floating],
    tokenizer: Tokenizer,
    options: AnswerOptions,
) -> dict[str, Answer]:
    """Returns the answer to each question, by its id.

    Args:
        questions: As `load_questions` returns them.
        windows: As `question_windows` returns them, for the same config.
        unique_ids: The window of each row of the logits, in any order.
        start_logits: How likely an answer starts at each position of each window.
        end_logits: How likely it ends there.
    """
    rows: dict[int, list[tuple[int, int]]] = {}
    for row, window in sorted(enumerate((unique_ids - FIRST_UNIQUE_ID).tolist()), key=lambda pair: pair[1]):
        rows.setdefault(int(windows["question"][window]), []).append((window, row))
    answers = {}
    for number, question in enumerate(questions):
        spans: list[_Span] = []
        nulls: list[_Span] = []
        for window, row in rows.get(number, []):
            start = np.asarray(start_logits[row], np.float64)
            end = np.asarray(end_logits[row], np.float64)
            spans += _spans_of(window, windows, start, end, options)
            nulls.append(_Span(window, 0, 0, float(start[0] + end[0])))
        text_of = functools.partial(_span_text, question, windows, tokenizer)
        answers[question.id] = _choose(spans, nulls, text_of, options)
    return answers


def _spans_of(
    window: int, windows: Columns, start: NDArray[np.float64], end: NDArray[np.float64], options: AnswerOptions
) -> Iterator[_Span]:
    """Yields the spans between the best starts and the best ends of a window that can be an answer."""
    first = int(windows["paragraph_start"][window])
    is_max_context = _row(windows, "is_max_context", window)
    starts, ends = (np.argsort(-logits, kind="stable")[: options.n_best_size] for logits in (start, end))
    begins, stops = (grid.reshape(-1) for grid in np.meshgrid(starts, ends, indexing="ij"))
    is_inside = (begins >= first) & (stops < first + len(is_max_context)) & (stops >= begins)
    is_inside &= stops - begins < options.max_answer_length
    begins, stops = begins[is_inside], stops[is_inside]
    is_best = is_max_context[begins - first]
    for begin, stop in zip(begins[is_best].tolist(), stops[is_best].tolist(), strict=True):
        yield _Span(window, begin, stop, float(start[begin] + end[stop]))


def _span_text(question: Question, windows: Columns, tokenizer: Tokenizer, span: _Span) -> str:
    """The part of the passage that the tokens of a span stand for."""
    if span.start == 0:
        return ""
    first = int(windows["paragraph_start"][span.window])
    words = _row(windows, "words", span.window)[span.start - first : span.end - first + 1]
    original = " ".join(question.words[words[0] : words[-1] + 1])
    ids = _row(windows, "input_ids", span.window)[span.start : span.end + 1]
    place = tokenizer.locate(ids, text=original)
    if place is not None:
        return original[place[0] : place[1]].strip()
    answer = " ".join(tokenizer.text_of(ids).split())
    return align_answer(answer, original=original, tokenizer=tokenizer)


def _choose(
    spans: Sequence[_Span], nulls: Sequence[_Span], text_of: Callable[[_Span], str], options: AnswerOptions
) -> Answer:
    with_null = options.version_2_with_negative
    null = min(nulls, key=lambda span: span.score, default=None) if with_null else None
    ordered = sorted([*spans, *([null] if null else [])], key=lambda span: span.score, reverse=True)
    scores: dict[str, float] = {}
    for span in ordered:
        if len(scores) >= options.n_best_size:
            break
        scores.setdefault(text_of(span), span.score)
    if null is not None:
        scores.setdefault("", null.score)
    # "No answer" alone, or no candidate at all, still needs a candidate to compare with.
    is_in_passage = any(scores) or bool(scores and not with_null)
    if not is_in_passage:
        scores = {_NOTHING: 0.0, **scores}
    shares = probabilities(np.array(list(scores.values()))).tolist()
    candidates = tuple(
        Candidate(text, score, share) for (text, score), share in zip(scores.items(), shares, strict=True)
    )
    if null is None:
        # A passage without words has no windows, and so no answer.
        return Answer("" if with_null else candidates[0].text, candidates, is_in_passage=is_in_passage)
    top = next(candidate for candidate in candidates if candidate.text)
    odds = null.score - top.score
    return Answer("" if odds > options.null_score_diff_threshold else top.text, candidates, odds, is_in_passage)


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The softmax over the last axis.

    Example:
        >>> probabilities(np.log([1.0, 3.0])).tolist()
        [0.25, 0.75]
    """
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return shares


def align_answer(answer: str, *, original: str, tokenizer: Tokenizer) -> str:
    """The part of the original text that a tokenized answer stands for; all of it if they cannot be aligned.

    Tokens have lost case, accents and spaces, and a word may be more than the answer ("Smith's" for "smith"). So the
    original is tokenized again, and on both sides the characters other than spaces are counted.
    """
    tokenized = " ".join(tokenizer.words(original))
    start = tokenized.find(answer)
    if start < 0 or not answer:
        return original
    places = [place for place, character in enumerate(original) if character != " "]
    counts = [place for place, character in enumerate(tokenized) if character != " "]
    if len(places) != len(counts):
        return original
    by_place: Mapping[int, int] = dict(zip(counts, places, strict=True))
    first, last = by_place.get(start), by_place.get(start + len(answer) - 1)
    return original if first is None or last is None else original[first : last + 1]


def _row(windows: Columns, name: str, window: int) -> NDArray[Any]:
    column = windows[name]
    assert isinstance(column, Ragged)
    row = column[window]
    assert isinstance(row, np.ndarray)
    return row
