"""A file of texts that a model is asked: lines, rows with columns, or questions on passages."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trellis.data import first_names, format_of, open_file, read_rows
from trellis.errors import ArgumentError, DataError
from trellis.nlp.answers.answerers import Answerer, QuestionAnswerer
from trellis.nlp.answers.tag_answers import TagAnswerer
from trellis.nlp.data import (
    TaggedFields,
    TextFile,
    is_conll,
    open_text_file,
    read_questions,
    read_tagged_sentences,
    row_words,
)

_ID = "id"
"""The column that is kept with an answer."""
_NOT_PARTING = "\N{NO-BREAK SPACE}"


class Asked(NamedTuple):
    """A text to be answered, or what is wrong with it."""

    parts: tuple[str, ...]
    place: str = ""
    """Where it was read, to be named with what is wrong."""
    id: object = None
    """What the answer is to be known by, if the text has that."""
    problem: str = ""


@dataclass(frozen=True)
class AskedFile:
    """The texts of a file, and what was taken for what in it."""

    texts: Iterator[Asked]
    notes: Sequence[str]
    is_squad: bool = False
    """Whether its answers are expected as one object, by the ids of the questions."""


def open_asked_file(
    path: Path, *, answerer: Answerer, text_fields: Sequence[str] = (), column_names: Sequence[str] = ()
) -> AskedFile:
    """Returns the texts of a file: SQuAD's JSON, rows with columns, lines with tabs between parts, or words (CoNLL).

    It is read by the same rules as a file to train on.

    Args:
        text_fields: The columns to ask, in the order in which the model takes them; the default are those that it was
            trained with.
        column_names: The columns of a file without a header; the default are those of the files of the training.
    """
    if _is_document(path):
        return _open_squad(path, answerer)
    if isinstance(answerer, TagAnswerer) and not text_fields and is_conll(path, tags=answerer.label_values):
        return _open_words(path, answerer)
    roles = answerer.text_columns
    if text_fields and roles and len(text_fields) != len(roles):
        raise ArgumentError(
            f"text_fields is {', '.join(text_fields)}, but the model takes {len(roles)}: {', '.join(roles)}. Name a "
            f"column for each."
        )
    if not text_fields and not roles:
        return _open_lines(path)
    texts = text_fields or roles
    file = open_text_file(
        path,
        texts=texts,
        column_names=column_names or answerer.column_names,
        is_asked=True,
        may_hold_texts_alone=not text_fields,
    )
    notes = (_summary(file, texts, roles or texts), *file.notes)
    read_texts = _texts_of_words if isinstance(answerer, TagAnswerer) else _texts_of
    return AskedFile(read_texts(file, texts), [f"{path}: {note}" for note in notes])


def _is_document(path: Path) -> bool:
    """Whether a file is one JSON object, as SQuAD's are, and not one on each line."""
    is_json = ".json" in (suffix.lower() for suffix in path.suffixes)
    with open_file(path) as file:
        first = file.readline().removeprefix(b"\xef\xbb\xbf").strip()
        second = file.readline().strip()
    if is_json and first.startswith(b"["):
        raise DataError(f"{path} is a list. Put one object on each line, or give questions in SQuAD's format.")
    if not first.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(first).get("data"), list)
    except (ValueError, RecursionError):
        # The line is part of a longer object, or damaged.
        return is_json or bool(second and not second.startswith(b"{"))


def _open_squad(path: Path, answerer: Answerer) -> AskedFile:
    if not isinstance(answerer, QuestionAnswerer):
        raise ArgumentError(f"{path}: JSON holds questions on passages, but the model answers {answerer.kind}.")
    questions = list(read_questions([path], is_asked=True))
    ids = [question.id for question in questions]
    if len(set(ids)) < len(ids):
        repeated = next(name for number, name in enumerate(ids) if name in ids[:number])
        raise DataError(f"{path}: two questions have the id {repeated!r}. Give each its own: answers are known by it.")
    texts = (
        Asked((question.text, " ".join(question.words)), f"{path}, question {question.id}", question.id)
        for question in questions
    )
    return AskedFile(texts, [], is_squad=True)


def _open_words(path: Path, answerer: TagAnswerer) -> AskedFile:
    """Sentences with a word on each line, and an empty line between them; their tags are not looked at."""
    fields = TaggedFields(word_column=answerer.word_column, tag_column=None)
    texts = (Asked((_as_text(one.words),), one.place) for one in read_tagged_sentences([path], fields=fields))
    return AskedFile(texts, [f"{path}: Each line is a word, an empty line ends a sentence; only the words are asked."])


def _as_text(words: Sequence[str]) -> str:
    """Words with spaces between them; a space in a word becomes one that does not part it."""
    return " ".join(_NOT_PARTING.join(word.split()) for word in words)


def _texts_of_words(file: TextFile, texts: Sequence[str]) -> Iterator[Asked]:
    """Sentences of rows, which are text or lists of words."""
    (name,) = texts
    for row in file.rows(keep_bad=True):
        if list(row.values.values()) == [""]:
            # In a file of one column that is an empty line.
            continue
        place = f"{file.path}:{row.line}"
        problem, text = row.problem, ""
        if not problem:
            try:
                text = _as_text(row_words(row, name=file.columns[name], setting="text_fields", place=place))
            except DataError as error:
                problem = str(error)
        yield Asked((text,), place, row.values.get(_ID), problem)


def _open_lines(path: Path) -> AskedFile:
    """Lines without columns: what the model was trained with has no names, so that there is nothing to choose by."""
    try:
        format = format_of(path)
    except DataError:
        format = "text"
    if format != "text":
        columns = ""
        if format in ("tsv", "csv", "jsonl"):
            columns = f" It begins with {', '.join(map(repr, first_names(path, format=format)))}."
        raise DataError(
            f"{path}: which of its columns are to be asked is not known: the model has no names for them.{columns} "
            f"Name one, or two for pairs: --text_fields=…; if it has no header, all of its columns too: "
            f"--column_names=…"
        )
    rows = read_rows(path, format="text", keep_bad=True)
    texts = (
        Asked(tuple(str(row.values.get("text", "")).split("\t")), f"{path}:{row.line}", problem=row.problem)
        for row in rows
        if row.problem or str(row.values["text"]).strip()
    )
    return AskedFile(texts, [])


def _texts_of(file: TextFile, texts: Sequence[str]) -> Iterator[Asked]:
    for row in file.rows(keep_bad=True):
        if list(row.values.values()) == [""]:
            # In a file of one column that is an empty line.
            continue
        parts: tuple[str, ...] = ()
        problem = row.problem
        if not problem:
            try:
                parts = tuple(file.text(row, name) for name in texts)
            except DataError as error:
                problem = str(error)
        yield Asked(parts, f"{file.path}:{row.line}", row.values.get(_ID), problem)


def _summary(file: TextFile, texts: Sequence[str], roles: Sequence[str]) -> str:
    """Which columns are asked, as what, and which are left out."""
    asked = [
        file.columns[name] if name == role else f"{file.columns[name]} (as {role})"
        for name, role in zip(texts, roles, strict=True)
    ]
    left_out = [name for name in file.left_out if name != _ID]
    rest = f"; {', '.join(left_out)} {'are' if len(left_out) > 1 else 'is'} left out" if left_out else ""
    kept = "; id is kept" if _ID in file.left_out else ""
    return f"{', '.join(asked)} {'are' if len(asked) > 1 else 'is'} asked{rest}{kept}."
