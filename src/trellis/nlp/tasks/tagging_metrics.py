"""Scores of the spans that tags mark, as `seqeval` defines them; computed on the host."""

from collections import Counter
from collections.abc import Iterable, Sequence

from trellis.nlp.answers import spans_of

Tags = Sequence[str]


def span_scores(
    sentences: Iterable[tuple[Tags, Tags]], *, is_marked: bool = True, per_type: bool = False
) -> dict[str, float]:
    """Precision, recall and F1 of all spans, which are right if type and both ends are; 0 where there are none.

    Example:
        >>> span_scores([(["B-PER", "O", "B-LOC"], ["B-PER", "I-PER", "B-LOC"])])
        {'precision': 0.5, 'recall': 0.5, 'f1': 0.5}

    Args:
        sentences: Pairs of predicted and right tags, as many of each.
        is_marked: Whether tags mark spans; else each tag other than `O` is of one word.
        per_type: Whether to have the scores of each type too, such as `PER/f1`.
    """
    n_said, n_there, n_right = Counter[str](), Counter[str](), Counter[str]()
    for predicted, right in sentences:
        said, there = (set(spans_of(tags, is_marked=is_marked)) for tags in (predicted, right))
        n_said.update(span.type for span in said)
        n_there.update(span.type for span in there)
        n_right.update(span.type for span in said & there)
    scores = _scores(n_right.total(), n_said.total(), n_there.total())
    for type_ in sorted({*n_said, *n_there}) if per_type else ():
        of_type = _scores(n_right[type_], n_said[type_], n_there[type_])
        scores |= {f"{type_}/{name}": value for name, value in of_type.items()}
    return scores


def _scores(n_right: int, n_said: int, n_there: int) -> dict[str, float]:
    precision = n_right / n_said if n_said else 0.0
    recall = n_right / n_there if n_there else 0.0
    f1 = 2 * precision * recall / (precision + recall) if n_right else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}
