"""Schemas of examples: which features there are, of what type and shape; read from the text of a schema file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.errors import DataError

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<word>[\w.+-]+)|(?P<mark>[{}<>:;,\[\]])"""
)
_ESCAPE = re.compile(r"\\(.)")
_CLOSING = {"{": "}", "<": ">"}

Message = dict[str, list[Any]]


@dataclass(frozen=True)
class ExampleFeature:
    """One feature of an example."""

    name: str
    type: str = "TYPE_UNKNOWN"
    """`INT`, `FLOAT` or `BYTES`."""
    shape: tuple[int, ...] | None = None
    """None if examples may have any number of values."""


@dataclass(frozen=True)
class ExampleSchema:
    """What every example of a data set holds."""

    feature: tuple[ExampleFeature, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features, in the order of the schema."""
        return tuple(feature.name for feature in self.feature)


def read_schema(path: str | Path) -> ExampleSchema:
    """Reads a schema file: the text form of a `tensorflow.metadata.v0.Schema`.

    Example:
        schema = read_schema(fn_args.schema_path)
        batches = fn_args.data_accessor.numpy_factory(fn_args.train_files, RecordBatchesOptions(batch_size=32), schema)
    """
    return parse_schema(Path(path).read_text(), place=str(path))


def parse_schema(text: str, *, place: str = "schema") -> ExampleSchema:
    """Reads a schema from its text.

    Args:
        place: Where the text is from, for messages.
    """
    message = _Reader(text, place).message()
    return ExampleSchema(tuple(_feature(each, place) for each in message.get("feature", [])))


def _feature(message: Message, place: str) -> ExampleFeature:
    name = message.get("name", [""])[-1]
    if not name:
        raise DataError(f"{place}: a feature has no name. Write the schema again.")
    type_ = message.get("type", ["TYPE_UNKNOWN"])[-1]
    if "shape" in message:
        dims = message["shape"][-1].get("dim", [])
        return ExampleFeature(name, type_, tuple(int(dim.get("size", ["1"])[-1]) for dim in dims))
    return ExampleFeature(name, type_)


class _Reader:
    """Reads protobuf's text format, without knowing what message it holds: each field is a list."""

    def __init__(self, text: str, place: str) -> None:
        self._place = place
        self._tokens = list(self._split(text))
        self._position = 0

    def message(self, closing: str = "") -> Message:
        """Reads fields up to a closing bracket, or to the end."""
        fields: Message = {}
        while self._peek() != closing:
            name = self._next()
            if self._peek() == ":":
                self._next()
            fields.setdefault(name, []).extend(self._values())
            if self._peek() in (",", ";"):
                self._next()
        self._next()
        return fields

    def _values(self) -> Iterator[Any]:
        token = self._next()
        if token == "[":
            while self._peek() != "]":
                yield from self._values()
                if self._peek() == ",":
                    self._next()
            self._next()
        elif token in _CLOSING:
            yield self.message(_CLOSING[token])
        elif token[:1] in ("'", '"'):
            parts = [token]
            while self._peek()[:1] in ("'", '"') and self._peek():
                parts.append(self._next())
            yield "".join(_ESCAPE.sub(r"\1", part[1:-1]) for part in parts)
        else:
            yield token

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token and self._position > len(self._tokens):
            raise DataError(f"{self._place} is cut short: a bracket is not closed. Write the schema again.")
        self._position += 1
        return token

    def _split(self, text: str) -> Iterator[str]:
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                line = text.count("\n", 0, position) + 1
                raise DataError(f"{self._place}:{line}: {text[position]!r} has no place in the text of a schema.")
            position = found.end()
            if found.lastgroup:
                yield found[0]
