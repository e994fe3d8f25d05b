"""Questions about passages, read from files in SQuAD's format."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trellis.errors import DataError

_BLOCK_CHARACTERS = 1 << 20
_DATA = re.compile(r'"data"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
# The spaces that part words are these alone, as the published tools have it.
_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclass(frozen=True)
class Question:
    """A question, the words of its passage, and what answers it."""

    id: str
    text: str
    words: tuple[str, ...]
    answers: tuple[str, ...]
    is_impossible: bool = False
    first_word: int = -1
    """Of the answer to learn from; -1 if there is none."""
    last_word: int = -1


@dataclass
class Skipped:
    """Questions that were left out because no answer is where it is said to be."""

    ids: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shown = ", ".join(self.ids[:5]) + (", …" if len(self.ids) > 5 else "")
        return f"{len(self.ids)} questions were left out: their answers are not in their passages ({shown})."


def read_questions(
    files: Sequence[Path],
    *,
    is_training: bool = False,
    version_2_with_negative: bool = False,
    skipped: Skipped | None = None,
) -> Iterator[Question]:
    """Yields the questions of files, one article in memory at a time.

    Args:
        is_training: Whether each question needs an answer that is found in its passage.
        version_2_with_negative: Whether some questions have no answer.
        skipped: Is told of questions that are left out.
    """
    skipped = Skipped() if skipped is None else skipped
    n_questions = 0
    for asked in _asked(files, version_2_with_negative):
        n_questions += 1
        question = _with_span(*asked) if is_training and not asked[0].is_impossible else asked[0]
        if question is None:
            skipped.ids.append(asked[0].id)
        else:
            yield question
    if n_questions == len(skipped.ids):
        why = f" {skipped}" if n_questions else " Give files that have some."
        raise DataError(f"There are no questions in {', '.join(map(str, files))}.{why}")


def _asked(files: Sequence[Path], with_negative: bool) -> Iterator[tuple[Question, str, int]]:
    for file in files:
        for number, article in enumerate(_articles(file)):
            yield from _questions_of(article, f"{file}, article {number}", with_negative)


def _questions_of(article: Any, place: str, with_negative: bool) -> Iterator[tuple[Question, str, int]]:
    """Yields questions, each with its passage and where its first answer starts in it."""
    for number, paragraph in enumerate(_get(article, "paragraphs", list, place)):
        where = f"{place}, paragraph {number}"
        passage = _get(paragraph, "context", str, where)
        words = tuple(_WORD.findall(passage))
        for entry in _get(paragraph, "qas", list, where):
            name = str(_get(entry, "id", str, where))
            where_asked = f"{where}, question {name}"
            is_impossible = with_negative and bool(entry.get("is_impossible", False))
            answers = [] if is_impossible else _get(entry, "answers", list, where_asked)
            if not answers and not is_impossible:
                way_out = "If questions may have none, set version_2_with_negative."
                raise DataError(f"{where_asked}: there is no answer. {way_out}")
            texts = tuple(_get(answer, "text", str, where_asked) for answer in answers)
            start = int(_get(answers[0], "answer_start", int, where_asked)) if answers else -1
            text = _get(entry, "question", str, where_asked)
            yield Question(name, text, words, texts, is_impossible), passage, start


def _with_span(question: Question, passage: str, start: int) -> Question | None:
    """The question with the words that its first answer lies in; None if it is not there."""
    answer = question.answers[0]
    spans = [match.span() for match in _WORD.finditer(passage)]
    stop = start + len(answer)
    inside = [number for number, (begin, end) in enumerate(spans) if begin < stop and end > start]
    if start < 0 or not inside:
        return None
    first, last = inside[0], inside[-1]
    if " ".join(answer.split()) not in " ".join(question.words[first : last + 1]):
        return None
    return Question(question.id, question.text, question.words, question.answers, False, first, last)


def _articles(file: Path) -> Iterator[Any]:
    """Yields the items of the list `data`, parsed one by one."""
    try:
        with file.open(encoding="utf-8-sig") as text:
            yield from _items(text, file)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 ({error}). Convert the file to UTF-8.") from error


def _items(text: TextIO, file: Path) -> Iterator[Any]:
    rest = text.read(_BLOCK_CHARACTERS)
    begin = _DATA.search(rest)
    if begin is None:
        raise DataError(f"{file} is not in SQuAD's format: there is no list `data`. Give SQuAD's JSON files.")
    rest = rest[begin.end() :]
    decoder = json.JSONDecoder()
    while True:
        start = _BETWEEN.match(rest).end()  # type: ignore[union-attr]  # matches nothing at all too
        if rest[start : start + 1] == "]":
            return
        try:
            item, end = decoder.raw_decode(rest, start)
        except json.JSONDecodeError as error:
            more = text.read(_BLOCK_CHARACTERS + len(rest))
            if not more:
                raise DataError(f"{file}: not JSON, or cut short ({error}). Copy the file again.") from error
            rest = rest[start:] + more
            continue
        yield item
        rest = rest[end:]


def _get(mapping: Any, name: str, kind: type, place: str) -> Any:
    value = mapping.get(name) if isinstance(mapping, Mapping) else None
    if not isinstance(value, kind):
        found = (
            f"{name!r} is {value!r}" if isinstance(mapping, Mapping) and name in mapping else f"there is no {name!r}"
        )
        raise DataError(f"{place}: {found}. Give files in SQuAD's format.")
    return value
