"""The kinds of values that fields take: what text and which Python values each of them accepts."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from trellis.config.drafts import REFUSED, Place, Refused
from trellis.config.settings import Setting, Text
from trellis.errors import ConfigError
from trellis.spelling import nearest

Item = TypeVar("Item")

_NULLS = ("", "null", "Null", "NULL", "~", "None")
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")
_SCALAR_RANKS = (0, 1, 2, 3, 4, 9)
_NONE_OR_CONFIG_RANKS = (0, 6)
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.?inf|\.?nan", re.IGNORECASE)


class Kind(Protocol):
    """What a field takes.

    `read` returns the value that a field of this kind gets, or notes in the draft why there is none and returns
    REFUSED.
    """

    rank: int
    """Which member of a union is tried first: lower is stricter."""

    def read(self, setting: Setting, place: Place, *, current: object = None) -> object:
        """Returns the checked value.

        Args:
            current: What the field holds now; a mapping is merged into it.
        """

    def __str__(self) -> str:
        """Returns what it takes, in words."""


@dataclass(frozen=True)
class NoneKind:
    """Takes None: `null`, `~`, `None` or nothing at all in a file or a flag."""

    rank = 0

    def read(self, setting: Setting, place: Place, *, current: object = None) -> Refused | None:
        """Returns None."""
        return None if _is_null(setting) else place.refuse_kind(setting, self, value="null")

    def __str__(self) -> str:
        return "null"


@dataclass(frozen=True)
class FlagKind:
    """Takes true or false, also written yes, no, on and off."""

    rank = 1

    def read(self, setting: Setting, place: Place, *, current: object = None) -> bool | Refused:
        """Returns a bool."""
        if isinstance(setting.value, bool):
            return setting.value
        word = setting.value.text.lower() if isinstance(setting.value, Text) else ""
        if word in _TRUE + _FALSE and not _is_quoted(setting):
            return word in _TRUE
        default = "false" if word in ("0", "f", "n") else "true"
        suggestion = (nearest(word, _TRUE + _FALSE) or default) if word else None
        return place.refuse_kind(setting, self, value=suggestion)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class ChoiceKind:
    """Takes one of a few values; text may be in upper or lower case."""

    choices: tuple[object, ...]
    rank = 2

    def read(self, setting: Setting, place: Place, *, current: object = None) -> object:
        """Returns the choice."""
        text = str(setting.value.text if isinstance(setting.value, Text) else setting.value)
        for choice in self.choices:
            if str(choice).lower() == text.lower() and isinstance(setting.value, Text | type(choice)):
                return choice
        return place.refuse_kind(setting, self, value=nearest(text, map(str, self.choices)))

    def __str__(self) -> str:
        words = ", ".join(str(choice) for choice in self.choices)
        return f"one of {words}" if len(self.choices) > 1 else words


@dataclass(frozen=True)
class WholeKind:
    """Takes a whole number; `1e6` and `1_000` in a file or a flag are whole."""

    rank = 3

    def read(self, setting: Setting, place: Place, *, current: object = None) -> int | Refused:
        """Returns an int."""
        if isinstance(setting.value, int) and not isinstance(setting.value, bool):
            return int(setting.value)
        number = _parse_whole(setting.value.text) if isinstance(setting.value, Text) else None
        if number is not None and not _is_quoted(setting):
            return number
        return place.refuse_kind(setting, self, **_example(number, current))

    def __str__(self) -> str:
        return "a whole number"


@dataclass(frozen=True)
class NumberKind:
    """Takes any number, `1e-4` included."""

    rank = 4

    def read(self, setting: Setting, place: Place, *, current: object = None) -> float | Refused:
        """Returns a float."""
        if isinstance(setting.value, int | float) and not isinstance(setting.value, bool):
            return float(setting.value)
        number = _parse_number(setting.value.text) if isinstance(setting.value, Text) else None
        if number is not None and not _is_quoted(setting):
            return number
        return place.refuse_kind(setting, self, **_example(number, current))

    def __str__(self) -> str:
        return "a number"


@dataclass(frozen=True)
class TextKind:
    """Takes text, as it is written in a file or a flag, so `off` and `12:30` are text here."""

    rank = 9

    def read(self, setting: Setting, place: Place, *, current: object = None) -> str | Refused:
        """Returns a str."""
        if isinstance(setting.value, str):
            return str(setting.value)
        if isinstance(setting.value, Text) and (setting.value.text == "" or not _is_null(setting)):
            return setting.value.text
        if _is_null(setting):
            return place.refuse(setting, "takes text, and cannot be null.", advice="For no text, write:", value="''")
        is_number = isinstance(setting.value, int | float)
        return place.refuse_kind(setting, self, value=f"'{setting.value}'" if is_number else None)

    def __str__(self) -> str:
        return "text"


@dataclass(frozen=True)
class AnyKind:
    """Takes plain data: text, numbers, true, false, null, and lists and mappings of them."""

    rank = 10

    def read(self, setting: Setting, place: Place, *, current: object = None) -> object:
        """Returns the data, read as YAML reads it."""
        value = setting.value
        if isinstance(value, Text):
            return plain_value(value)
        if isinstance(value, list):
            return FixedList(self.read(item, place.child(f"[{i}]")) for i, item in enumerate(value))
        if isinstance(value, dict):
            return FixedDict({str(key): self.read(item, place.child(str(key))) for key, item in value.items()})
        if value is None or isinstance(value, str | int | float):
            return value
        return place.refuse_kind(setting, self)

    def __str__(self) -> str:
        return "plain data"


def _no_change(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise ConfigError(
        "A list or a mapping inside a config does not change in place, because that would go unchecked. "
        "Assign a new one: config.field = [*config.field, item]"
    )


class FixedList(list[Item]):
    """A list in a config: equal to the same plain list, but it does not change in place."""

    append = extend = insert = pop = remove = clear = sort = reverse = _no_change
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _no_change

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedList, (list(self),)


class FixedDict(dict[str, Item]):
    """A mapping in a config: equal to the same plain dict, but it does not change in place."""

    update = setdefault = pop = popitem = clear = __setitem__ = __delitem__ = __ior__ = _no_change

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedDict, (dict(self),)


@dataclass(frozen=True)
class SequenceKind:
    """Takes a list of one kind of item, and keeps it as a list or a tuple.

    A list of mappings that is as long as the list of configs that is there is merged into it item by item; any other
    list replaces it.
    """

    item: Kind
    build: Callable[[Iterable[object]], object]
    rank = 5

    def read(self, setting: Setting, place: Place, *, current: object = None) -> object:
        """Returns a FixedList or a tuple."""
        if not isinstance(setting.value, list):
            is_text = isinstance(setting.value, Text) and setting.value.text != ""
            return place.refuse_kind(setting, self, value=f"[{setting}]" if is_text else None)
        n_items = len(setting.value)
        is_merged = isinstance(current, list | tuple) and len(current) == n_items
        old: Any = current if is_merged else [None] * n_items
        items = [self.item.read(item, place.child(f"[{i}]"), current=old[i]) for i, item in enumerate(setting.value)]
        return REFUSED if REFUSED in items else self.build(items)

    def __str__(self) -> str:
        return f"a list, each {self.item}"


@dataclass(frozen=True)
class TupleKind:
    """Takes as many values as it has kinds, in order."""

    items: tuple[Kind, ...]
    rank = 5

    def read(self, setting: Setting, place: Place, *, current: object = None) -> object:
        """Returns a tuple."""
        if not isinstance(setting.value, list) or len(setting.value) != len(self.items):
            return place.refuse_kind(setting, self)
        old = current if isinstance(current, tuple) else (None,) * len(self.items)
        values = tuple(
            kind.read(item, place.child(f"[{i}]"), current=old[i])
            for i, (kind, item) in enumerate(zip(self.items, setting.value, strict=True))
        )
        return REFUSED if REFUSED in values else values

    def __str__(self) -> str:
        return f"a list of {len(self.items)}: {', '.join(map(str, self.items))}"


@dataclass(frozen=True)
class MappingKind:
    """Takes a mapping from names to one kind of value, and merges it into the mapping that is there."""

    key: Kind
    item: Kind
    rank = 5

    def read(self, setting: Setting, place: Place, *, current: object = None) -> object:
        """Returns a FixedDict."""
        if not isinstance(setting.value, dict):
            return place.refuse_kind(setting, self)
        values: dict[Any, object] = dict(current) if isinstance(current, dict) else {}
        for name, item in setting.value.items():
            inner = place.child(str(name))
            key = self.key.read(Setting(Text(name) if isinstance(name, str) else name, item.key_origin), inner)
            values[key] = self.item.read(item, inner, current=values.get(key))
        return REFUSED if REFUSED in [*values, *values.values()] else FixedDict(values)

    def __str__(self) -> str:
        return f"a mapping from {self.key} to {self.item}"


@dataclass(frozen=True)
class UnionKind:
    """Takes what one of its members takes; the strictest is tried first and text last."""

    members: tuple[Kind, ...]
    rank = 8

    def read(self, setting: Setting, place: Place, *, current: object = None) -> object:
        """Returns the value as the first member that accepts it reads it."""
        trials = []
        for member in sorted(self.members, key=lambda member: member.rank):
            trial = place.trial()
            value = member.read(setting, trial, current=current)
            if value is not REFUSED and not trial.draft.problems:
                place.adopt(trial)
                return value
            trials.append((member, trial))
        # If one member alone could take a value of this form, the user meant that one: its own message helps more.
        is_nested = isinstance(setting.value, dict | list)
        unfit_ranks = _SCALAR_RANKS if is_nested else _NONE_OR_CONFIG_RANKS
        fitting = [trial for member, trial in trials if member.rank not in unfit_ranks]
        if len(fitting) != 1:
            return place.refuse_kind(setting, self)
        place.adopt(fitting[0])
        return REFUSED

    def __str__(self) -> str:
        return " or ".join(str(member) for member in self.members)


def plain_value(text: Text) -> object:
    """Returns what a scalar means where no field says what it takes.

    Example:
        >>> plain_value(Text("1e3")), plain_value(Text("off")), plain_value(Text("off", quoted=True))
        (1000.0, False, 'off')
    """
    if text.quoted:
        return text.text
    if text.text in _NULLS:
        return None
    if text.text.lower() in _TRUE + _FALSE:
        return text.text.lower() in _TRUE
    if re.fullmatch(r"[-+]?[\d_]+", text.text) and (whole := _parse_whole(text.text)) is not None:
        return whole
    number = _parse_number(text.text)
    return text.text if number is None else number


def _is_null(setting: Setting) -> bool:
    text = setting.value
    return text is None or (isinstance(text, Text) and not text.quoted and text.text in _NULLS)


def _is_quoted(setting: Setting) -> bool:
    return isinstance(setting.value, Text) and setting.value.quoted


def _example(number: float | None, current: object) -> dict[str, str]:
    if number is not None:
        return {"value": str(number)}
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
