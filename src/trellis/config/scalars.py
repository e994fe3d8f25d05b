"""The kinds of single values: what text and which Python values each of them takes."""

import re
from dataclasses import dataclass
from typing import Protocol

from trellis.config.drafts import Place, Refused
from trellis.config.given import Given, Text, written
from trellis.spelling import nearest

NULLS = ("null", "Null", "NULL", "~", "None")
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.?inf|\.?nan", re.IGNORECASE)


class Kind(Protocol):
    """What a field takes.

    `read` returns the value that a field of this kind gets, or notes in the draft why there is none and returns
    REFUSED.
    """

    rank: int
    """Which member of a union is asked first: lower is stricter."""

    def read(self, given: Given, place: Place, *, current: object = None) -> object:
        """Returns the checked value.

        Args:
            current: What the field holds now, which a mapping is merged into.
        """

    def __str__(self) -> str:
        """Returns what it takes, in words."""


@dataclass(frozen=True)
class NoneKind:
    """Takes None: `null`, `~`, `None` or nothing at all in a file or a flag."""

    rank = 0

    def read(self, given: Given, place: Place, *, current: object = None) -> Refused | None:
        """Returns None."""
        if given.value is None or is_null(given):
            return None
        return place.refuse(given, f"takes {self}, not {written(given)}.", value="null")

    def __str__(self) -> str:
        return "null"


@dataclass(frozen=True)
class FlagKind:
    """Takes true or false, also written yes, no, on and off."""

    rank = 1

    def read(self, given: Given, place: Place, *, current: object = None) -> bool | Refused:
        """Returns a bool."""
        if isinstance(given.value, bool):
            return given.value
        word = given.value.text.lower() if isinstance(given.value, Text) else ""
        if word in _TRUE + _FALSE and not _quoted(given):
            return word in _TRUE
        meant = nearest(word, _TRUE + _FALSE) or ("false" if word in ("0", "f", "n") else "true" if word else None)
        return place.refuse(given, f"takes {self}, not {written(given)}.", value=meant)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class ChoiceKind:
    """Takes one of a few values; text may be in upper or lower case."""

    choices: tuple[object, ...]
    rank = 2

    def read(self, given: Given, place: Place, *, current: object = None) -> object:
        """Returns the choice."""
        text = str(given.value.text if isinstance(given.value, Text) else given.value)
        for choice in self.choices:
            if str(choice).lower() == text.lower() and (isinstance(given.value, Text | type(choice))):
                return choice
        meant = nearest(text, map(str, self.choices))
        return place.refuse(given, f"takes {self}, not {written(given)}.", value=meant)

    def __str__(self) -> str:
        words = ", ".join(str(choice) for choice in self.choices)
        return f"one of {words}" if len(self.choices) > 1 else words


@dataclass(frozen=True)
class WholeKind:
    """Takes a whole number; `1e6` and `1_000` in a file or a flag are whole."""

    rank = 3

    def read(self, given: Given, place: Place, *, current: object = None) -> int | Refused:
        """Returns an int."""
        if isinstance(given.value, int) and not isinstance(given.value, bool):
            return int(given.value)
        number = _parse_whole(given.value.text) if isinstance(given.value, Text) else None
        if number is not None and not _quoted(given):
            return number
        return place.refuse(given, f"takes {self}, not {written(given)}.", **_example(number, current))

    def __str__(self) -> str:
        return "a whole number"


@dataclass(frozen=True)
class NumberKind:
    """Takes any number, `1e-4` included."""

    rank = 4

    def read(self, given: Given, place: Place, *, current: object = None) -> float | Refused:
        """Returns a float."""
        if isinstance(given.value, int | float) and not isinstance(given.value, bool):
            return float(given.value)
        number = _parse_number(given.value.text) if isinstance(given.value, Text) else None
        if number is not None and not _quoted(given):
            return number
        return place.refuse(given, f"takes {self}, not {written(given)}.", **_example(number, current))

    def __str__(self) -> str:
        return "a number"


@dataclass(frozen=True)
class TextKind:
    """Takes text; what stands in a file or a flag is taken as it stands, so `off` and `12:30` are text here."""

    rank = 9

    def read(self, given: Given, place: Place, *, current: object = None) -> str | Refused:
        """Returns a str."""
        if isinstance(given.value, str):
            return str(given.value)
        if isinstance(given.value, Text) and (given.value.text == "" or not is_null(given)):
            return given.value.text
        if given.value is None or is_null(given):
            return place.refuse(given, "takes text, and cannot be null.", advice="For no text, write:", value="''")
        fit = isinstance(given.value, int | float)
        return place.refuse(given, f"takes {self}, not {written(given)}.", value=f"'{given.value}'" if fit else None)

    def __str__(self) -> str:
        return "text"


def is_null(given: Given) -> bool:
    """Tells whether unquoted text means None."""
    return isinstance(given.value, Text) and not given.value.quoted and given.value.text in ("", *NULLS)


def plain_value(text: Text) -> object:
    """Returns what a scalar means where no field says what it takes."""
    if text.quoted:
        return text.text
    if text.text in ("", *NULLS):
        return None
    if text.text.lower() in _TRUE + _FALSE:
        return text.text.lower() in _TRUE
    if re.fullmatch(r"[-+]?[\d_]+", text.text) and (whole := _parse_whole(text.text)) is not None:
        return whole
    number = _parse_number(text.text)
    return text.text if number is None else number


def _quoted(given: Given) -> bool:
    return isinstance(given.value, Text) and given.value.quoted


def _example(meant: float | None, current: object) -> dict[str, str]:
    if meant is not None:
        return {"value": str(meant)}
    return {"value": str(current), "advice": "For example:"} if isinstance(current, int | float) else {}


def _parse_whole(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        number = _parse_number(text) if re.search("[eE]", text) else None
        return int(number) if number is not None and number.is_integer() else None


def _parse_number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
