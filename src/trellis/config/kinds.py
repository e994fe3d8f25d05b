"""The kinds of values that fields take: what text and which Python values each of them accepts."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from trellis.config.drafts import REFUSED, Draft, Refused
from trellis.config.settings import Setting, Text
from trellis.errors import ConfigError
from trellis.spelling import nearest

Item = TypeVar("Item")

_NULLS = ("", "null", "Null", "NULL", "~", "None")
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")
_SCALAR_RANKS = (0, 1, 2, 3, 4, 9)
_NONE_OR_CONFIG_RANKS = (0, 6)
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?\.?inf|\.?nan", re.IGNORECASE)
# Beyond every size and every seed; of more digits than some thousands Python would not even print a number.
_LARGEST_WHOLE = 2**128


class Kind(ABC):
    """What a field takes."""

    rank: int
    """Which member of a union is tried first: lower is stricter."""
    words: str
    """What it takes, in a message."""

    @abstractmethod
    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> object:
        """Returns the checked value, or notes in the draft why there is none and returns REFUSED.

        Args:
            current: What the field holds now; a mapping is merged into it.
        """

    def __str__(self) -> str:
        return self.words


class NoneKind(Kind):
    """Takes None: `null`, `~`, `None` or nothing at all in a file or a flag."""

    rank = 0
    words = "null"

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> Refused | None:
        """Returns None."""
        return None if _is_null(setting) else draft.refuse_kind(setting, self, value="null")


class FlagKind(Kind):
    """Takes true or false, also written yes, no, on and off."""

    rank = 1
    words = "true or false"

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> bool | Refused:
        """Returns a bool."""
        if isinstance(setting.value, bool):
            return setting.value
        word = setting.value.text.lower() if isinstance(setting.value, Text) else ""
        if word in _TRUE + _FALSE and not _is_quoted(setting):
            return word in _TRUE
        default = "false" if word in ("0", "f", "n") else "true"
        suggestion = (nearest(word, _TRUE + _FALSE) or default) if word else None
        return draft.refuse_kind(setting, self, value=suggestion)


@dataclass(frozen=True)
class ChoiceKind(Kind):
    """Takes one of a few values; text may be in upper or lower case."""

    choices: tuple[object, ...]
    rank = 2

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> object:
        """Returns the choice."""
        text = str(setting.value.text if isinstance(setting.value, Text) else setting.value)
        for choice in self.choices:
            if str(choice).lower() == text.lower() and isinstance(setting.value, Text | type(choice)):
                return choice
        return draft.refuse_kind(setting, self, value=nearest(text, map(str, self.choices)))

    def __str__(self) -> str:
        words = ", ".join(str(choice) for choice in self.choices)
        return f"one of {words}" if len(self.choices) > 1 else words


@dataclass(frozen=True)
class NumberKind(Kind):
    """Takes numbers of a class."""

    number_cls: type[int] | type[float]
    parse: Callable[[str], float | None]
    """Returns the number that a text stands for, if it does."""
    words: str
    rank: int

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> float | Refused:
        """Returns a number of the class."""
        if isinstance(setting.value, int | self.number_cls) and not isinstance(setting.value, bool):
            if isinstance(setting.value, int) and abs(setting.value) > _LARGEST_WHOLE:
                return draft.refuse(setting, f"takes {self} of up to 128 bits.")
            return self.number_cls(setting.value)
        number = self.parse(setting.value.text) if isinstance(setting.value, Text) else None
        if number is not None and not _is_quoted(setting):
            return number
        if number is None and isinstance(current, int | float):
            return draft.refuse_kind(setting, self, value=str(current), advice="For example:")
        return draft.refuse_kind(setting, self, value=None if number is None else str(number))


class TextKind(Kind):
    """Takes text, as it is written in a file or a flag, so `off` and `12:30` are text here."""

    rank = 9
    words = "text"

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> str | Refused:
        """Returns a str."""
        if isinstance(setting.value, str):
            return str(setting.value)
        if isinstance(setting.value, Text) and (setting.value.text == "" or not _is_null(setting)):
            return setting.value.text
        if _is_null(setting):
            return draft.refuse(setting, "takes text, and cannot be null.", advice="For no text, write:", value="''")
        is_number = isinstance(setting.value, int | float)
        return draft.refuse_kind(setting, self, value=f"'{setting.value}'" if is_number else None)


class AnyKind(Kind):
    """Takes plain data: text, numbers, true, false, null, and lists and mappings of them."""

    rank = 10
    words = "plain data"

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> object:
        """Returns the data, read as YAML reads it."""
        value = setting.value
        if isinstance(value, Text):
            return plain_value(value)
        if isinstance(value, list):
            return FixedList(self.read(item, draft.child(f"[{i}]")) for i, item in enumerate(value))
        if isinstance(value, dict):
            return FixedDict({str(key): self.read(item, draft.child(str(key))) for key, item in value.items()})
        if value is None or isinstance(value, str | int | float):
            return value
        return draft.refuse_kind(setting, self)


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
class SequenceKind(Kind):
    """Takes a list of one kind of item, and keeps it as a list or a tuple.

    A list of mappings that is as long as the list of configs that is there is merged into it item by item; any other
    list replaces it.
    """

    item: Kind
    build: Callable[[Iterable[object]], object]
    rank = 5

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> object:
        """Returns a FixedList or a tuple."""
        if not isinstance(setting.value, list):
            is_text = isinstance(setting.value, Text) and setting.value.text != ""
            return draft.refuse_kind(setting, self, value=f"[{setting}]" if is_text else None)
        items = _read_items([self.item] * len(setting.value), setting.value, draft, current)
        return REFUSED if REFUSED in items else self.build(items)

    def __str__(self) -> str:
        return f"a list, each {self.item}"


@dataclass(frozen=True)
class TupleKind(Kind):
    """Takes as many values as it has kinds, in order."""

    items: tuple[Kind, ...]
    rank = 5

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> object:
        """Returns a tuple."""
        if not isinstance(setting.value, list) or len(setting.value) != len(self.items):
            return draft.refuse_kind(setting, self)
        items = _read_items(self.items, setting.value, draft, current)
        return REFUSED if REFUSED in items else tuple(items)

    def __str__(self) -> str:
        return f"a list of {len(self.items)}: {', '.join(map(str, self.items))}"


@dataclass(frozen=True)
class MappingKind(Kind):
    """Takes a mapping from names to one kind of value, and merges it into the mapping that is there."""

    key: Kind
    item: Kind
    rank = 5

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> object:
        """Returns a FixedDict."""
        if not isinstance(setting.value, dict):
            return draft.refuse_kind(setting, self)
        values: dict[Any, object] = dict(current) if isinstance(current, dict) else {}
        for name, item in setting.value.items():
            inner = draft.child(str(name))
            key = self.key.read(Setting(Text(name) if isinstance(name, str) else name, item.key_origin), inner)
            values[key] = self.item.read(item, inner, current=values.get(key))
        return REFUSED if REFUSED in [*values, *values.values()] else FixedDict(values)

    def __str__(self) -> str:
        return f"a mapping from {self.key} to {self.item}"


@dataclass(frozen=True)
class UnionKind(Kind):
    """Takes what one of its members takes; the strictest is tried first and text last."""

    members: tuple[Kind, ...]
    rank = 8

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> object:
        """Returns the value as the first member that accepts it reads it."""
        trials = []
        for member in sorted(self.members, key=lambda member: member.rank):
            trial = draft.trial()
            value = member.read(setting, trial, current=current)
            if value is not REFUSED and not trial.problems:
                draft.adopt(trial)
                return value
            trials.append((member, trial))
        # If one member alone could take a value of this form, the user meant that one: its own message helps more.
        is_nested = isinstance(setting.value, dict | list)
        unfit_ranks = _SCALAR_RANKS if is_nested else _NONE_OR_CONFIG_RANKS
        fitting = [trial for member, trial in trials if member.rank not in unfit_ranks]
        if len(fitting) != 1:
            return draft.refuse_kind(setting, self)
        draft.adopt(fitting[0])
        return REFUSED

    def __str__(self) -> str:
        return " or ".join(str(member) for member in self.members)


def _read_items(kinds: Sequence[Kind], items: Sequence[Setting], draft: Draft, current: object) -> list[object]:
    """Returns the items of a list, each merged into the one that is there, if there are as many."""
    is_merged = isinstance(current, list | tuple) and len(current) == len(items)
    old: Any = current if is_merged else [None] * len(items)
    return [kind.read(items[i], draft.child(f"[{i}]"), current=old[i]) for i, kind in enumerate(kinds)]


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


def _parse_whole(text: str) -> int | None:
    """Returns a whole number, also if it is written `1e6` or `1_000`."""
    try:
        whole = int(text, 0)
    except ValueError:
        number = _parse_number(text) if re.search("[eE]", text) else None
        if number is None or not number.is_integer():
            return None
        whole = int(number)
    return whole if abs(whole) <= _LARGEST_WHOLE else None


def _parse_number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


KINDS: dict[Any, Kind] = {
    Any: AnyKind(),
    object: AnyKind(),
    None: NoneKind(),
    type(None): NoneKind(),
    bool: FlagKind(),
    int: NumberKind(int, _parse_whole, "a whole number", rank=3),
    float: NumberKind(float, _parse_number, "a number", rank=4),
    str: TextKind(),
    list: SequenceKind(AnyKind(), FixedList),
    tuple: SequenceKind(AnyKind(), tuple),
    dict: MappingKind(TextKind(), AnyKind()),
}
"""By annotation, the kinds that need no more to be said."""
