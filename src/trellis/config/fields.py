"""The fields of configs: what each takes, and how a mapping is merged into them."""

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

from trellis.config.containers import (
    AnyKind,
    FixedDict,
    FixedList,
    MappingKind,
    SequenceKind,
    TupleKind,
    UnionKind,
)
from trellis.config.drafts import REFUSED, Place, Refused, Write
from trellis.config.given import Given, written
from trellis.config.problems import Problem
from trellis.config.scalars import ChoiceKind, FlagKind, Kind, NoneKind, NumberKind, TextKind, WholeKind
from trellis.errors import ConfigError

_SIMPLE: dict[Any, Kind] = {
    Any: AnyKind(),
    object: AnyKind(),
    None: NoneKind(),
    type(None): NoneKind(),
    bool: FlagKind(),
    int: WholeKind(),
    float: NumberKind(),
    str: TextKind(),
    list: SequenceKind(AnyKind(), FixedList),
    tuple: SequenceKind(AnyKind(), tuple),
    dict: MappingKind(TextKind(), AnyKind()),
}
RESERVED = (
    "as_dict",
    "as_json",
    "as_yaml",
    "from_json",
    "from_yaml",
    "lock",
    "no_effect",
    "override",
    "replace",
    "selector",
    "validate",
)


class Branch:
    """A value with fields of its own; `Config` is the one class of them."""

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Fields that are accepted for the sake of existing files and do nothing, each with the reason."""
    selector: ClassVar[str | None] = None
    """The field, if any, that takes only the names of the other fields."""


@dataclass(frozen=True)
class BranchKind:
    """Takes a config of a class, or a mapping, which is merged into the one that is there."""

    cls: type[Branch]
    rank = 6

    def read(self, given: Given, place: Place, *, current: object = None) -> Branch | Refused:
        """Returns a copy of the config given, the current one, or a new one of the annotated class."""
        if isinstance(given.value, self.cls):
            return copied(given.value)
        if not isinstance(given.value, dict):
            found = f"a {type(given.value).__name__}" if isinstance(given.value, Branch) else written(given)
            advice = f"Set them one by one, such as {place.path}.{next(iter(fields_of(self.cls)), 'name')}."
            return place.refuse(given, f"takes {self}, not {found}.", advice=advice)
        branch = current if isinstance(current, self.cls) else self.cls()
        plan(branch, given, place)
        return branch

    def __str__(self) -> str:
        return f"the fields of {self.cls.__name__}"


@dataclass(frozen=True)
class Field:
    """A field of a config class."""

    name: str
    kind: Kind
    default: Callable[[], object]


def fields_of(cls: type[Branch]) -> Mapping[str, Field]:
    """Returns the fields that a config class declares or inherits, in order."""
    return _fields(cast(Any, cls))


@cache
def _fields(cls: type[Branch]) -> Mapping[str, Field]:
    try:
        own, hints = inspect.get_annotations(cls), get_type_hints(cls)
    except NameError as error:
        error.add_note(f"while reading the annotations of {cls.__name__}, whose names must exist in its module")
        raise
    if own and "__dataclass_fields__" not in vars(cls):
        raise ConfigError(f"{cls.__name__} declares fields but is not a dataclass. Write @dataclass above it.")
    found = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in RESERVED:
            raise ConfigError(f"{cls.__name__}.{field.name} hides a method of that name. Give the field another one.")
        kind = _kind(hints[field.name], where=f"{cls.__name__}.{field.name}")
        if field.default is None and not isinstance(kind, AnyKind | UnionKind):
            kind = UnionKind((kind, NoneKind()))
        default = field.default_factory if field.default_factory is not MISSING else _returns(field.default)
        found[field.name] = Field(field.name, kind, default)
    if cls.selector:
        choices = tuple(name for name in found if name != cls.selector)
        found[cls.selector] = replace(found[cls.selector], kind=UnionKind((ChoiceKind(choices), NoneKind())))
    return types.MappingProxyType(found)


def plan(branch: Branch, given: Given, place: Place, *, fresh: bool = False) -> None:
    """Drafts the writes that a mapping asks for, on a config and below it.

    Args:
        fresh: Whether mappings make new configs of the annotated class instead of being merged.
    """
    if not isinstance(given.value, dict):
        message = f"{place.path or type(branch).__name__} takes a mapping, not {written(given)}."
        place.draft.problems.append(Problem(message, given.origin, place.path))
        return
    if vars(branch)["_locked"]:
        message = f"{place.path or type(branch).__name__} is locked."
        advice = "Change a copy instead: config.replace(field=value)"
        place.draft.problems.append(Problem(message, given.origin, place.path, advice))
        return
    names = fields_of(type(branch))
    for key, item in given.value.items():
        if key not in names:
            place.refuse_key(str(key), item, owner=type(branch).__name__, names=names)
            continue
        current = None if fresh else vars(branch).get(key)
        value = names[key].kind.read(item, place.child(key), current=current)
        if value is not REFUSED and (value is not current or not isinstance(current, Branch)):
            place.draft.writes.append(Write(branch, key, value, item.origin))


def copied(value: Branch) -> Branch:
    """Returns an unlocked copy that shares nothing that can change, with the same origins."""
    other = type(value).__new__(type(value))
    vars(other).update(vars(value), _locked=False, _origins=dict(vars(value)["_origins"]))
    for name in fields_of(type(value)):
        vars(other)[name] = _copied_inside(vars(value)[name])
    return other


def branches(branch: Branch, prefix: str = "") -> Iterator[tuple[str, Branch]]:
    """Yields the path and the config of every config below one."""
    for name in fields_of(type(branch)):
        for path, inner in _branches_in(vars(branch).get(name), f"{prefix}.{name}" if prefix else name):
            yield path, inner
            yield from branches(inner, path)


def paths(branch: Branch) -> Iterator[str]:
    """Yields the dotted path of every field, also of those below a field that is None."""
    for prefix, inner in [("", branch), *branches(branch)]:
        for name, field in fields_of(type(inner)).items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            declared = branch_class(field.kind)
            if declared is not None and not isinstance(vars(inner).get(name), Branch):
                yield from _class_paths(declared, path, (type(inner),))


def branch_class(kind: Kind) -> type[Branch] | None:
    """Returns the config class that a kind takes, if it takes one."""
    members = kind.members if isinstance(kind, UnionKind) else (kind,)
    return next((member.cls for member in members if isinstance(member, BranchKind)), None)


def _class_paths(cls: type[Branch], prefix: str, above: tuple[type[Branch], ...]) -> Iterator[str]:
    for name, field in fields_of(cls).items():
        yield f"{prefix}.{name}"
        inner = branch_class(field.kind)
        if inner is not None and inner not in (*above, cls):
            yield from _class_paths(inner, f"{prefix}.{name}", (*above, cls))


def _branches_in(value: object, path: str) -> Iterator[tuple[str, Branch]]:
    if isinstance(value, Branch):
        yield path, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _branches_in(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _branches_in(item, f"{path}.{key}")


def _copied_inside(value: object) -> object:
    if isinstance(value, Branch):
        return copied(value)
    if isinstance(value, list):
        return FixedList(map(_copied_inside, value))
    if isinstance(value, tuple):
        return tuple(map(_copied_inside, value))
    return FixedDict({key: _copied_inside(item) for key, item in value.items()}) if isinstance(value, dict) else value


def _kind(annotation: Any, *, where: str) -> Kind:
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Branch):
        return BranchKind(annotation)
    builder = _GENERIC.get(get_origin(annotation))
    if builder is None:
        raise ConfigError(
            f"{where} is annotated {annotation!r}, which a config cannot hold. Use bool, int, float, str, Literal, "
            "Any, a Config class, or list, tuple, dict, Optional and unions of them."
        )
    return builder(get_args(annotation), where)


def _union(members: tuple[Any, ...], where: str) -> Kind:
    return UnionKind(tuple(_kind(member, where=where) for member in members))


def _list(items: tuple[Any, ...], where: str) -> Kind:
    return SequenceKind(_kind(items[0], where=where), FixedList)


def _tuple(items: tuple[Any, ...], where: str) -> Kind:
    if len(items) == 2 and items[1] is Ellipsis:
        return SequenceKind(_kind(items[0], where=where), tuple)
    return TupleKind(tuple(_kind(item, where=where) for item in items))


def _sequence(items: tuple[Any, ...], where: str) -> Kind:
    return SequenceKind(_kind(items[0], where=where), tuple)


def _mapping(items: tuple[Any, ...], where: str) -> Kind:
    return MappingKind(_kind(items[0], where=where), _kind(items[1], where=where))


_GENERIC: dict[Any, Callable[[tuple[Any, ...], str], Kind]] = {
    Union: _union,
    types.UnionType: _union,
    Literal: lambda choices, where: ChoiceKind(choices),
    list: _list,
    tuple: _tuple,
    Sequence: _sequence,
    dict: _mapping,
    Mapping: _mapping,
}


def _returns(value: object) -> Callable[[], object]:
    return lambda: value
