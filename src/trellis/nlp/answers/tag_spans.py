"""Spans of words, such as names of persons, that the tags of words mark."""

import re
from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
"""The tag of a word that is in no span."""
_MARKED = re.compile("[BIESLU]-.+")
# Where E- and S- are others' marks, BILOU has L- and U-.
_BEGINNINGS = ("B", "S", "U")
_ENDINGS = ("E", "L", "S", "U")


class Span(NamedTuple):
    """Some words in a row, and what they are."""

    type: str
    first: int
    """The number of its first word, from 0."""
    last: int


def marks_spans(tag_names: Sequence[str]) -> bool:
    """Whether tags say where spans begin and go on, such as `B-PER` and `I-PER`; else each is of a word by itself."""
    return any(map(_MARKED.fullmatch, tag_names))


def spans_of(tags: Sequence[str], *, is_marked: bool = True) -> list[Span]:
    """The spans that tags mark, in the order of their first words, as `seqeval` has them.

    A span begins with `B-` or `S-`, at a change of type, or after no span; it ends with `E-` or `S-`, or before what
    begins one. So `I-PER` alone is a span as well. `L-` and `U-` are as `E-` and `S-`.

    Example:
        >>> spans_of(["B-PER", "I-PER", "O", "I-LOC"])
        [Span(type='PER', first=0, last=1), Span(type='LOC', first=3, last=3)]

    Args:
        is_marked: With False each tag other than `O` is a span of one word.
    """
    if not is_marked:
        return [Span(tag, place, place) for place, tag in enumerate(tags) if tag != OUTSIDE]
    spans: list[Span] = []
    first, before, type_before = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, type_ = tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_"
        is_changed = type_ != type_before
        if before != OUTSIDE and (mark in (*_BEGINNINGS, OUTSIDE) or before in _ENDINGS or is_changed):
            spans.append(Span(type_before, first, place - 1))
        if mark != OUTSIDE and (mark in _BEGINNINGS or before in (OUTSIDE, *_ENDINGS) or is_changed):
            first = place
        before, type_before = mark, type_
    return spans
