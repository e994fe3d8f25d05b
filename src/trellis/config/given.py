"""Values as they were given: what was written, and where."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_HERE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: a class default, a factory, a line of a file, a flag or a line of code."""

    source: str
    """`default`, `factory NAME`, a file as it was named, a flag with its dashes."""
    form: Literal["code", "file", "flag"] = "code"
    """In what language a correction is to be written."""
    line: int | None = None
    column: int = 1
    text: str = ""
    """The line of the file, or the flag's text, which an error shows with a caret."""
    width: int = 1

    def __str__(self) -> str:
        """Returns the place in short, as `small.yaml:3`."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


DEFAULT = Origin("default")
CODE = Origin("code")


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar in a file or a flag; the field that it is for decides what unquoted text means."""

    text: str
    quoted: bool = False

    def __str__(self) -> str:
        """Returns the scalar as it can be written again."""
        return "'" + self.text.replace("'", "''") + "'" if self.quoted else self.text


@dataclass(frozen=True, slots=True)
class Given:
    """A value with its place: a Text, a dict or list of Given, or a Python value that is neither."""

    value: object
    origin: Origin
    key: Origin | None = None
    """The place of the key, where the value has one."""

    @property
    def key_origin(self) -> Origin:
        """The place to point at when the key, not the value, is wrong."""
        return self.key or self.origin


def as_given(value: object, origin: Origin) -> Given:
    """Returns Python data as if all of it had been written at one place."""
    if isinstance(value, Given):
        return value
    if isinstance(value, Mapping):
        return Given({key: as_given(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Given([as_given(item, origin) for item in value], origin)
    return Given(value, origin)


def given_at(path: str, value: object, origin: Origin) -> Given:
    """Returns Python data as if it had been written at a dotted path."""
    given = as_given(value, origin)
    for name in reversed(path.split(".")):
        given = Given({name: given}, origin)
    return given


def written(given: Given) -> str:
    """Returns the value as it was written, on one line."""
    if isinstance(given.value, dict):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in given.value.items()) + "}"
    if isinstance(given.value, list):
        return "[" + ", ".join(written(item) for item in given.value) + "]"
    return str(given.value) if isinstance(given.value, Text) else repr(given.value)


def caller() -> Origin:
    """Returns the line of code outside this package that is setting a value."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename.startswith((_HERE, "<"))):
        frame = frame.f_back
    name = frame.f_code.co_filename
    inside = name.startswith(os.getcwd() + os.sep)
    return Origin(os.path.relpath(name) if inside else Path(name).name, line=frame.f_lineno)
