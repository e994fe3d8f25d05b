"""Questions in files of rows: CSV, TSV, JSONL, Parquet."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trellis.data import Row, read_rows
from trellis.errors import DataError
from trellis.json_text import parse_json
from trellis.spelling import did_you_mean

_COLUMNS = "Questions have the columns question, context and answers; rename yours."


class RowAnswer(NamedTuple):
    """An answer, and where it starts in its passage; -1 if it is not there."""

    text: str
    start: int


class QuestionRow(NamedTuple):
    """A question, its passage, what answers it, what it is known by, and where it was read."""

    id: str
    question: str
    context: str
    answers: tuple[RowAnswer, ...]
    place: str


def read_question_rows(file: Path, *, has_answers: bool = True) -> Iterator[QuestionRow]:
    """Yields the questions of a file with the columns `question`, `context`, `answers` and, if it has one, `id`.

    Answers are a text, a list of texts, or `text` and `answer_start` as SQuAD has them, in a table as JSON. Where a
    start is not said, it is that of the first place where the text is.

    Args:
        has_answers: Whether the answers are looked at.
    """
    for row in read_rows(file):
        place = f"{file}:{row.line}"
        question, context = (_text(row, name, place) for name in ("question", "context"))
        answers = tuple(_answers(row, context, place)) if has_answers else ()
        yield QuestionRow(str(row.values.get("id") or f"{file.name}:{row.line}"), question, context, answers, place)


def _text(row: Row, name: str, place: str) -> str:
    _check_column(row, name, place)
    value = row.values[name]
    if not isinstance(value, str):
        raise DataError(f"{place}: {name!r} is {value!r:.60}, not text. Correct the row.")
    return value


def _check_column(row: Row, name: str, place: str) -> None:
    if name not in row.values:
        suggestion = did_you_mean(name, list(row.values), show=repr)
        known = ", ".join(map(repr, row.values))
        raise DataError(f"{place}: there is no {name!r} among {known}.{suggestion} {_COLUMNS}")


def _answers(row: Row, context: str, place: str) -> Iterator[RowAnswer]:
    _check_column(row, "answers", place)
    for text, start in _pairs(row.values["answers"]):
        if not isinstance(text, str) or not isinstance(start, int | None):
            raise DataError(
                f"{place}: 'answers' is {row.values['answers']!r:.80}. Give a text, a list of texts, or text and "
                f"answer_start as SQuAD has them."
            )
        yield RowAnswer(text, context.find(text) if start is None else start)


def _pairs(value: object) -> Iterator[tuple[object, object]]:
    """Yields what should be the text of each answer and its start; a start that is not said is None."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            value = parse_json(value)
    if isinstance(value, Mapping) and isinstance(texts := value.get("text"), list):
        starts = value.get("answer_start") or [None] * len(texts)
        yield from (
            zip(texts, starts, strict=True) if isinstance(starts, list) and len(starts) == len(texts) else [(0, 0)]
        )
        return
    for part in value if isinstance(value, list) else [value] if value else []:
        yield (part.get("text"), part.get("answer_start")) if isinstance(part, Mapping) else (part, None)
