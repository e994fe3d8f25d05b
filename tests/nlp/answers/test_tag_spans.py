"""The spans that tags mark, and their scores, are those of `seqeval`."""

import json
from pathlib import Path

import pytest

from trellis.nlp.answers import Span, marks_spans, spans_of
from trellis.nlp.tasks.tagging_metrics import span_scores

GOLDEN = Path(__file__).parents[2] / "golden/seqeval/golden.json"
CASES = json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_spans_and_scores_of_random_tags_are_those_of_seqeval(case: dict[str, list[list[str]]]) -> None:
    predicted, right = ([text.split() for text in case[side]] for side in ("predicted", "right"))
    spans = [[[span.type, span.first, span.last] for span in spans_of(tags)] for tags in predicted]
    assert spans == case["spans"]
    scores = span_scores(zip(predicted, right, strict=True), per_type=True)
    assert scores == pytest.approx(case["scores"], abs=1e-12)


def test_tags_without_marks_are_of_one_word_each() -> None:
    assert not marks_spans(["O", "CAP", "NOUN", "B", "X-"])
    assert marks_spans(["O", "E-LOC"])
    assert spans_of(["CAP", "CAP", "O"], is_marked=False) == [Span("CAP", 0, 0), Span("CAP", 1, 1)]
    scores = span_scores([(["CAP", "CAP", "O"], ["CAP", "O", "O"])], is_marked=False)
    assert scores == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3)}


def test_the_marks_of_bilou_are_others_names_for_those_of_ends_and_single_words() -> None:
    assert marks_spans(["O", "U-LOC"])
    tags = ["B-PER", "L-PER", "U-LOC", "U-LOC", "O", "U-PER"]
    others = ["B-PER", "E-PER", "S-LOC", "S-LOC", "O", "S-PER"]
    assert spans_of(tags) == spans_of(others)
    assert len(spans_of(tags)) == 4


def test_nothing_said_and_nothing_there_is_zero() -> None:
    assert span_scores([(["O"], ["O"])]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
