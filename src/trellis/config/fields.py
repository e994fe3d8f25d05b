"""The fields of configs: what each takes, how a mapping is merged into them, and where their values came from."""

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trellis.config.drafts import REFUSED, Draft, Refused, Write
from trellis.config.kinds import (
    KINDS,
    AnyKind,
    ChoiceKind,
    FixedDict,
    FixedList,
    Kind,
    MappingKind,
    NoneKind,
    SequenceKind,
    TupleKind,
    UnionKind,
)
from trellis.config.problems import Problem
from trellis.config.settings import CODE, DEFAULT, Origin, Setting, join_path
from trellis.errors import ConfigError

BranchType = TypeVar("BranchType", bound="Branch")


class Branch:
    """A value with fields of its own; `Config` is the one class of them.

    What is known of a config beside its fields is in attributes that are written by `vars(config)`, because a plain
    assignment sets a field.
    """

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Fields that are accepted for the sake of existing files and do nothing, each with the reason."""
    selector: ClassVar[str | None] = None
    """The field, if any, that takes only the names of the other fields."""
    BUILDER: ClassVar[Callable[..., Any] | None] = None
    """What is built from configs of the class, if `bind` has told; a subclass inherits it."""

    _origins: dict[str, Origin]
    """By field, where a value that somebody has set came from."""
    _locked: bool = False
    _restrictions: tuple[Any, ...] = ()
    _name: str | None = None
    """The name that the config's factory is registered under."""
    _construction: Draft | None = None
    """What is wrong with the arguments, while the config is being constructed."""


@dataclass(frozen=True)
class BranchKind(Kind):
    """Takes a config of a class, or a mapping, which is merged into the config that is there."""

    cls: type[Branch]
    rank = 6

    def read(self, setting: Setting, draft: Draft, *, current: object = None) -> Branch | Refused:
        """Returns a copy of the config that was passed, the current one, or a new one of the annotated class."""
        if isinstance(setting.value, self.cls):
            return unlocked_copy(setting.value)
        if not isinstance(setting.value, dict):
            value = f"a {type(setting.value).__name__}" if isinstance(setting.value, Branch) else str(setting)
            advice = f"Set them one by one, such as {draft.path}.{next(iter(fields_of(self.cls)), 'name')}."
            return draft.refuse(setting, f"takes {self}, not {value}.", advice=advice)
        branch = current if isinstance(current, self.cls) else self.cls()
        draft_changes(branch, setting, draft)
        return branch

    def __str__(self) -> str:
        return f"the fields of {self.cls.__name__}"


@dataclass(frozen=True)
class Field:
    """A field of a config class."""

    kind: Kind
    value: object
    factory: Callable[[], object] | None

    def default(self) -> object:
        """Returns the value that the field has if nobody sets it."""
        return self.factory() if self.factory else self.value


def fields_of(cls: type[Branch]) -> Mapping[str, Field]:
    """Returns the fields that a config class declares or inherits, in order."""
    return _fields(cast(Any, cls))


@cache
def _fields(cls: type[Branch]) -> Mapping[str, Field]:
    try:
        annotations = inspect.get_annotations(cls)
        hints = get_type_hints(cls)
    except NameError as error:
        error.add_note(f"while reading the annotations of {cls.__name__}, whose names must exist in its module")
        raise
    if annotations and "__dataclass_fields__" not in vars(cls):
        raise ConfigError(f"{cls.__name__} declares fields but is not a dataclass. Write @dataclass above it.")
    declared = {}
    for field in fields(cls):  # type: ignore[arg-type]
        name = field.name
        if name in vars(Branch) or any(_has_method(base, name) for base in cls.__mro__):
            raise ConfigError(f"{cls.__name__}.{name} hides a method of that name. Give the field another one.")
        kind = _kind(hints[name], where=f"{cls.__name__}.{name}")
        if field.default is None and not isinstance(kind, AnyKind | UnionKind):
            kind = UnionKind((kind, NoneKind()))
        factory = None if field.default_factory is MISSING else field.default_factory
        declared[name] = Field(kind, field.default, factory)
    if cls.selector:
        choices = tuple(name for name in declared if name != cls.selector)
        declared[cls.selector] = replace(declared[cls.selector], kind=UnionKind((ChoiceKind(choices), NoneKind())))
    return types.MappingProxyType(declared)


def _has_method(cls: type, name: str) -> bool:
    # A field is no method, though its default may be something that can be called.
    return name not in vars(cls).get("__dataclass_fields__", {}) and callable(getattr(cls, name, None))


def draft_changes(branch: Branch, setting: Setting, draft: Draft) -> None:
    """Drafts the writes that a mapping asks for, on a config and below it."""
    if not isinstance(setting.value, dict):
        message = f"{draft.path or type(branch).__name__} takes a mapping, not {setting}."
        draft.problems.append(Problem(message, setting.origin, draft.path))
        return
    if branch._locked:
        message = f"{draft.path or type(branch).__name__} is locked."
        advice = "Change a copy instead: config.replace(field=value)"
        draft.problems.append(Problem(message, setting.origin, draft.path, advice))
        return
    names = fields_of(type(branch))
    for key, item in setting.value.items():
        if key not in names:
            draft.refuse_key(str(key), item, owner=type(branch).__name__, names=names)
            continue
        current = vars(branch).get(key)
        value = names[key].kind.read(item, draft.child(key), current=current)
        if value is not REFUSED and (value is not current or not isinstance(current, Branch)):
            draft.writes.append(Write(branch, key, value, item.origin))


def unlocked_copy(branch: BranchType) -> BranchType:
    """Returns a copy that can be changed and shares nothing that can change, with the same origins."""
    other = type(branch).__new__(type(branch))
    vars(other).update(vars(branch), _locked=False, _origins=dict(branch._origins))
    for name in fields_of(type(branch)):
        vars(other)[name] = _copied(vars(branch)[name])
    return other


def _copied(value: Any) -> object:
    if isinstance(value, Branch):
        return unlocked_copy(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return FixedDict({key: _copied(item) for key, item in value.items()}) if isinstance(value, dict) else value


def branches(root: Branch, path: str = "") -> Iterator[tuple[str, Branch]]:
    """Yields a config and every config below it, each with its path, which is empty for the first."""
    yield path, root
    for name in fields_of(type(root)):
        yield from _branches_in(vars(root).get(name), join_path(path, name))


def _branches_in(value: object, path: str) -> Iterator[tuple[str, Branch]]:
    if isinstance(value, Branch):
        yield from branches(value, path)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _branches_in(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _branches_in(item, f"{path}.{key}")


def paths(root: Branch) -> Iterator[str]:
    """Yields the dotted path of every field, also of those below a field that is None."""
    for prefix, branch in branches(root):
        for name, field in fields_of(type(branch)).items():
            path = join_path(prefix, name)
            yield path
            declared = _branch_class(field.kind)
            if declared is not None and not isinstance(vars(branch).get(name), Branch):
                yield from _class_paths(declared, path, (type(branch),))


def _class_paths(cls: type[Branch], prefix: str, above: tuple[type[Branch], ...]) -> Iterator[str]:
    # Of the class and not of a config of it, which a user's own code may refuse to make.
    for name, field in fields_of(cls).items():
        yield f"{prefix}.{name}"
        inner = _branch_class(field.kind)
        if inner is not None and inner not in (*above, cls):
            yield from _class_paths(inner, f"{prefix}.{name}", (*above, cls))


def _branch_class(kind: Kind) -> type[Branch] | None:
    """Returns the config class that a kind takes, if it takes one."""
    members = kind.members if isinstance(kind, UnionKind) else (kind,)
    return next((member.cls for member in members if isinstance(member, BranchKind)), None)


def owner_of(root: Branch, path: str) -> tuple[Branch, str] | None:
    """Returns the config that has the field at a dotted path, and the field's name; None if there is no such field."""
    prefix, _, name = path.rpartition(".")
    owner = dict(branches(root)).get(prefix) if prefix else root
    return (owner, name) if owner is not None and name in fields_of(type(owner)) else None


def origin_of(config: Branch, path: str) -> Origin:
    """Returns where the value at a dotted path came from.

    A value that equals its class's default and that nobody has set since is a default.
    """
    field = owner_of(config, path)
    if field is None:
        raise ConfigError(f"{type(config).__name__} has no field {path}.")
    owner, name = field
    origin = owner._origins.get(name, CODE)
    return DEFAULT if origin == CODE and not _is_changed(owner, name) else origin


def stamp(config: Branch, origin: Origin, *, name: str | None = None) -> None:
    """Marks a config that a factory has made.

    Args:
        origin: The origin of every value that was set in code while the config was being made.
        name: The name that the factory is registered under; copies of the config keep it.
    """
    vars(config)["_name"] = name
    for _, branch in branches(config):
        for field in fields_of(type(branch)):
            old = origin_of(branch, field)
            if old.form == "code" and old != DEFAULT:
                branch._origins[field] = origin


def registered_name(config: Branch) -> str | None:
    """Returns the name that a config's factory is registered under; None if no factory has made it."""
    return config._name


@dataclass(frozen=True, slots=True)
class Idle:
    """A field that somebody has set although it has no effect."""

    path: str
    reason: str
    origin: Origin


def without_effect(config: Branch) -> Iterator[Idle]:
    """Yields the fields that were set to something and that their classes declare to be without effect."""
    for prefix, branch in branches(config):
        for name, reason in type(branch).no_effect.items():
            # A run's params.yaml has every field; only another value than the default asks for something.
            if _is_changed(branch, name):
                yield Idle(join_path(prefix, name), reason, origin_of(branch, name))


def _is_changed(branch: Branch, name: str) -> bool:
    return bool(vars(branch)[name] != fields_of(type(branch))[name].default())


def _kind(annotation: Any, *, where: str) -> Kind:
    """Returns the kind of value that an annotation stands for.

    Args:
        where: The class and the field that have the annotation, for errors.
    """
    if annotation in KINDS:
        return KINDS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Branch):
        return BranchKind(annotation)
    generic = get_origin(annotation)
    arguments = get_args(annotation)
    if generic is Literal:
        return ChoiceKind(arguments)
    if generic is Sequence or (generic is tuple and arguments[1:] == (Ellipsis,)):
        return SequenceKind(_kind(arguments[0], where=where), tuple)
    if generic not in (Union, types.UnionType, list, tuple, dict, Mapping):
        raise ConfigError(
            f"{where} is annotated {annotation!r}, which a config cannot hold. Use bool, int, float, str, Literal, "
            "Any, a Config class, or list, tuple, dict, Optional and unions of them."
        )
    kinds = tuple(_kind(argument, where=where) for argument in arguments)
    if generic is list:
        return SequenceKind(kinds[0], FixedList)
    if generic is tuple:
        return TupleKind(kinds)
    if generic in (dict, Mapping):
        return MappingKind(*kinds)
    return UnionKind(kinds)
