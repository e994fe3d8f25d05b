"""Values as a file, a flag or a line of code gives them, each with its place."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PACKAGE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: a class default, a factory, a line of a file, a flag or a line of code.

    Example:
        >>> str(Origin("small.yaml", "file", line=3))
        'small.yaml:3'
    """

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

    @property
    def is_left_open(self) -> bool:
        """Whether nobody has chosen the value: it is the default of a class, or a factory's."""
        return self == DEFAULT or (self.form == "code" and self.source.startswith("factory "))


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
class Setting:
    """A value with its place: a Text, a dict or list of Settings, or a Python value that is neither.

    Example:
        >>> str(setting_at("trainer.train_steps", 10, CODE))
        '{trainer: {train_steps: 10}}'
    """

    value: object
    origin: Origin
    key: Origin | None = None
    """The place of the key, where the value has one."""

    @property
    def key_origin(self) -> Origin:
        """The place to point at when the key, not the value, is wrong."""
        return self.key or self.origin

    def __str__(self) -> str:
        """Returns the value as it was written, on one line."""
        if isinstance(self.value, dict):
            return "{" + ", ".join(f"{key}: {item}" for key, item in self.value.items()) + "}"
        if isinstance(self.value, list):
            return "[" + ", ".join(map(str, self.value)) + "]"
        return str(self.value) if isinstance(self.value, Text) else repr(self.value)


def as_setting(value: object, origin: Origin) -> Setting:
    """Returns Python data as if all of it had been written at one place."""
    if isinstance(value, Setting):
        return value
    if isinstance(value, Mapping):
        return Setting({key: as_setting(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Setting([as_setting(item, origin) for item in value], origin)
    return Setting(value, origin)


def setting_at(path: str, value: object, origin: Origin) -> Setting:
    """Returns Python data as if it had been written at a dotted path."""
    setting = as_setting(value, origin)
    for name in reversed(path.split(".")):
        setting = Setting({name: setting}, origin)
    return setting


def join_path(prefix: str, name: str) -> str:
    """Returns the path of a field or, for a name like `[0]`, of an element, below another path.

    Example:
        >>> join_path("", "task"), join_path("task", "heads"), join_path("task.heads", "[0]")
        ('task', 'task.heads', 'task.heads[0]')
    """
    dot = "." if prefix and not name.startswith("[") else ""
    return f"{prefix}{dot}{name}"


def caller() -> Origin:
    """Returns the line of code outside this package that is setting a value."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<")):
        frame = frame.f_back
    file = frame.f_code.co_filename
    is_below_here = file.startswith(os.getcwd() + os.sep)
    return Origin(os.path.relpath(file) if is_below_here else Path(file).name, line=frame.f_lineno)
