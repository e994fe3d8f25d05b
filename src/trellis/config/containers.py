"""The kinds of values that hold others: lists, tuples, mappings, unions and configs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from trellis.config.drafts import REFUSED, Place
from trellis.config.given import Given, Text, written
from trellis.config.scalars import Kind, plain_value
from trellis.errors import ConfigError

Item = TypeVar("Item")


def _fixed(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise ConfigError(
        "A list or a mapping inside a config does not change in place, because that would go unchecked. "
        "Assign a new one: config.field = [*config.field, item]"
    )


class FixedList(list[Item]):
    """A list in a config: equal to the same plain list, but it does not change in place."""

    append = extend = insert = pop = remove = clear = sort = reverse = _fixed
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _fixed

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedList, (list(self),)


class FixedDict(dict[str, Item]):
    """A mapping in a config: equal to the same plain dict, but it does not change in place."""

    update = setdefault = pop = popitem = clear = __setitem__ = __delitem__ = __ior__ = _fixed

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedDict, (dict(self),)


@dataclass(frozen=True)
class AnyKind:
    """Takes plain data: text, numbers, true, false, null, and lists and mappings of them."""

    rank = 10

    def read(self, given: Given, place: Place, *, current: object = None) -> object:
        """Returns the data, read as YAML reads it."""
        if isinstance(given.value, Text):
            return plain_value(given.value)
        if isinstance(given.value, list):
            return FixedList(self.read(item, place.child(f"[{i}]")) for i, item in enumerate(given.value))
        if isinstance(given.value, dict):
            return FixedDict({str(key): self.read(item, place.child(str(key))) for key, item in given.value.items()})
        if given.value is None or isinstance(given.value, str | int | float):
            return given.value
        return place.refuse(given, f"takes {self}, not {written(given)}.")

    def __str__(self) -> str:
        return "plain data"


@dataclass(frozen=True)
class SequenceKind:
    """Takes a list of one kind of item, and keeps it as a list or a tuple.

    A list of mappings that is as long as the list of configs that is there is merged into it item by item; any other
    list replaces it.
    """

    item: Kind
    build: Callable[[Iterable[object]], object]
    rank = 5

    def read(self, given: Given, place: Place, *, current: object = None) -> object:
        """Returns a FixedList or a tuple."""
        if not isinstance(given.value, list):
            return place.refuse(given, f"takes {self}, not {written(given)}.", **_listed(given))
        old = (
            current
            if isinstance(current, list | tuple) and len(current) == len(given.value)
            else [None] * len(given.value)
        )
        items = [self.item.read(item, place.child(f"[{i}]"), current=old[i]) for i, item in enumerate(given.value)]
        return REFUSED if REFUSED in items else self.build(items)

    def __str__(self) -> str:
        return f"a list, each {self.item}"


@dataclass(frozen=True)
class TupleKind:
    """Takes as many values as it has kinds, in order."""

    items: tuple[Kind, ...]
    rank = 5

    def read(self, given: Given, place: Place, *, current: object = None) -> object:
        """Returns a tuple."""
        if not isinstance(given.value, list) or len(given.value) != len(self.items):
            return place.refuse(given, f"takes {self}, not {written(given)}.")
        old = current if isinstance(current, tuple) else (None,) * len(self.items)
        values = tuple(
            kind.read(item, place.child(f"[{i}]"), current=old[i])
            for i, (kind, item) in enumerate(zip(self.items, given.value, strict=True))
        )
        return REFUSED if REFUSED in values else values

    def __str__(self) -> str:
        return f"a list of {len(self.items)}: {', '.join(map(str, self.items))}"


@dataclass(frozen=True)
class MappingKind:
    """Takes a mapping from names to one kind of value; what is given is merged into what is there."""

    key: Kind
    item: Kind
    rank = 5

    def read(self, given: Given, place: Place, *, current: object = None) -> object:
        """Returns a FixedDict."""
        if not isinstance(given.value, dict):
            return place.refuse(given, f"takes {self}, not {written(given)}.")
        values: dict[Any, object] = dict(current) if isinstance(current, dict) else {}
        for name, item in given.value.items():
            inner = place.child(str(name))
            key = self.key.read(Given(Text(name) if isinstance(name, str) else name, item.key_origin), inner)
            values[key] = self.item.read(item, inner, current=values.get(key))
        return REFUSED if REFUSED in [*values, *values.values()] else FixedDict(values)

    def __str__(self) -> str:
        return f"a mapping from {self.key} to {self.item}"


@dataclass(frozen=True)
class UnionKind:
    """Takes what one of its members takes; the strictest is asked first and text last."""

    members: tuple[Kind, ...]
    rank = 8

    def read(self, given: Given, place: Place, *, current: object = None) -> object:
        """Returns what the first member that accepts the value makes of it."""
        trials = []
        for member in sorted(self.members, key=lambda member: member.rank):
            trial = place.trial()
            value = member.read(given, trial, current=current)
            if value is not REFUSED and not trial.draft.problems:
                place.adopt(trial)
                return value
            trials.append((member, trial))
        nested = isinstance(given.value, dict | list)
        apart = (0, 6) if not nested else (0, 1, 2, 3, 4, 9)
        fitting = [trial for member, trial in trials if member.rank not in apart]
        if len(fitting) == 1:
            return place.adopt(fitting[0])
        return place.refuse(given, f"takes {self}, not {written(given)}.")

    def __str__(self) -> str:
        return " or ".join(str(member) for member in self.members)


def _listed(given: Given) -> dict[str, str]:
    return {"value": f"[{written(given)}]"} if isinstance(given.value, Text) and given.value.text else {}
