"""Typed, nested settings that refuse what they do not know."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from trellis.config.drafts import Draft
from trellis.config.fields import Branch, branches, draft_changes, fields_of, paths, unlocked_copy
from trellis.config.problems import Problem, raise_if_any
from trellis.config.restrictions import Restriction, violations
from trellis.config.settings import CODE, Setting, as_setting, caller
from trellis.config.yaml_text import dump, read_file
from trellis.errors import ArgumentError, ConfigError, RegistryError, shown
from trellis.spelling import did_you_mean

Builder = TypeVar("Builder", bound=Callable[..., Any])


class ConfigType(type):
    """Constructs configs so that one error lists everything that is wrong with the arguments."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a checked config."""
        config: Any = object.__new__(cast(Any, cls))
        draft = Draft(lambda: paths(config))
        vars(config).update(_origins={}, _construction=draft)
        names = fields_of(type(config))
        for name in [name for name in kwargs if name not in {*names, "default_params", "restrictions"}]:
            draft.refuse_key(name, as_setting(kwargs.pop(name), CODE), owner=cls.__name__, names=names)
        try:
            config.__init__(*args, **kwargs)
        except Exception:
            raise_if_any(draft.problems)
            raise
        raise_if_any(draft.problems)
        del vars(config)["_construction"]
        return config


@dataclass
class Config(Branch, metaclass=ConfigType):
    """A dataclass of settings: typed, nested, overridable, and able to say where each value came from.

    Subclasses are dataclasses whose fields all have defaults. A field takes bool, int, float, str, Literal, Any,
    another config, or lists, tuples, dicts, Optional and unions of them. A mapping in the place of a config becomes
    the annotated class, or is merged into the config that is there. Whenever something is set, types are checked and
    unknown names refused, and one error lists all that is wrong.

    `restrictions` are relations between values, which `validate` checks.

    Example:
        >>> @dataclass
        ... class DecayConfig(Config):
        ...     rate: float = 0.5
        >>> @dataclass
        ... class RunConfig(Config):
        ...     steps: int = 100
        ...     decay: DecayConfig = DecayConfig()
        >>> config = RunConfig(steps=10, decay={"rate": 0.1}, restrictions=["decay.rate < 1"])
        >>> config.override({"decay": {"rate": 0.2}})
        >>> config.decay
        DecayConfig(rate=0.2)
        >>> config.validate()
    """

    default_params: InitVar[Mapping[str, Any] | None] = None
    restrictions: InitVar[Sequence[str] | None] = field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        """Lets a config be another class's default, which is safe because values are copied on their way in."""
        cls.__hash__ = Config.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        """Refuses: what can change cannot be a key."""
        raise TypeError(f"a {type(self).__name__} can change, so it has no hash")

    def __post_init__(self, default_params: Mapping[str, Any] | None, restrictions: Sequence[str] | None) -> None:
        """Merges `default_params` over the fields and keeps the restrictions for `validate`."""
        vars(self)["_restrictions"] = tuple(Restriction.parse(text) for text in restrictions or ())
        if default_params:
            problems = merge(self, as_setting(_as_mapping(default_params), CODE))
            vars(self)["_construction"].problems.extend(problems)

    if not TYPE_CHECKING:  # A type checker that saw these would let every attribute pass.

        def __setattr__(self, name: str, value: object) -> None:
            """Checks and sets a field."""
            if self._construction is None:
                self.override({name: value})
            else:
                self._construction.problems.extend(merge(self, as_setting({name: value}, CODE)))

        def __getattr__(self, name: str) -> object:
            """Raises an error that names the nearest field, because there is none of this name."""
            suggestion = "" if name.startswith("_") else did_you_mean(name, fields_of(type(self)), show=str)
            if name == "get":  # Model Garden's configs have one, because theirs may lack a field.
                suggestion = " A config has every field of its class: write config.name, or getattr(config, name)."
            raise AttributeError(f"{type(self).__name__} has no field {name!r}.{suggestion}")

        def __delattr__(self, name: str) -> None:
            """Refuses: every field has a value."""
            raise ConfigError(f"{type(self).__name__}.{name} cannot be deleted. Set it to its default instead.")

    def override(self, params: "Mapping[str, Any] | Config", *, is_strict: bool = True) -> None:
        """Merges nested settings into this config: all of them or, if anything is wrong, none.

        Args:
            is_strict: True, as published; a config never takes a field that its class does not declare.
        """
        if not is_strict:
            raise ConfigError(
                f"override(is_strict=False) would add fields to {type(self).__name__}, but a config has the fields of "
                "its class. Declare them there, and leave is_strict out."
            )
        draft = _draft(self, as_setting(_as_mapping(params), caller()))
        raise_if_any(draft.problems)
        draft.commit()

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, which leaves this config as it is.

        The copy and everything in it can be changed, also if this config, or a config among the changes, is locked:
        whoever makes a copy of a locked config locks it when it is complete.
        """
        other = unlocked_copy(self)
        other.override(changes)
        return other

    def lock(self) -> None:
        """Makes this config and everything in it read-only, for good."""
        for _, branch in branches(self):
            vars(branch)["_locked"] = True

    def validate(self) -> None:
        """Raises one error that lists all restrictions, here and below, that do not hold."""
        raise_if_any(violations(self))

    def as_dict(self) -> dict[str, Any]:
        """Returns plain nested data, fields in the order of their declaration."""
        return {name: _plain(vars(self)[name]) for name in fields_of(type(self))}

    def as_yaml(self) -> str:
        """Returns YAML text that `from_yaml` reads back to the same values."""
        return dump(self.as_dict())

    def as_json(self) -> str:
        """Returns JSON text that `from_json` reads back to the same values."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_yaml(cls, config_file: str | Path) -> Self:
        """Returns the defaults with a file's values merged in."""
        config = cls()
        setting, problems = read_file(config_file)
        raise_if_any([*problems, *merge(config, setting)])
        return config

    @classmethod
    def from_args(cls, *args: Any, **kwargs: Any) -> Self:
        """Returns the defaults with values merged in: by position for the fields that the class itself declares.

        Those that it inherits, and all others, are given by name.
        """
        own = [name for name in inspect.get_annotations(cls) if name in fields_of(cls)]
        if len(args) > len(own):
            raise ConfigError(
                f"{cls.__name__}.from_args got {len(args)} values by position, but the class declares {len(own)} "
                f"fields itself: {', '.join(own) or 'none'}. Give the others by name: from_args(name=value)."
            )
        by_position = dict(zip(own, args, strict=False))
        twice = [name for name in by_position if name in kwargs]
        if twice:
            raise ConfigError(f"{cls.__name__}.from_args got {', '.join(twice)} by position and by name. Give it once.")
        return cls(default_params=by_position | kwargs)

    @classmethod
    def from_json(cls, config_file: str | Path) -> Self:
        """Returns the defaults with a file's values merged in."""
        return cls.from_yaml(config_file)


@dataclass
class OneOfConfig(Config):
    """A config whose field `type` names one of its other fields.

    `type` takes only those names, or null for none.

    Example:
        >>> @dataclass
        ... class CosineConfig(Config):
        ...     steps: int = 100
        >>> @dataclass
        ... class ScheduleConfig(OneOfConfig):
        ...     cosine: CosineConfig = CosineConfig()
        >>> ScheduleConfig({"type": "cosine", "cosine": {"steps": 10}}).get()
        CosineConfig(steps=10)
    """

    type: str | None = None

    selector: ClassVar[str | None] = "type"

    def get(self) -> Any:
        """Returns the value of the field that `type` names; None if it names none."""
        return None if self.type is None else vars(self)[self.type]

    def as_dict(self) -> dict[str, Any]:
        """Returns the choice, and what was changed in the fields that are not chosen, so that nothing is lost."""
        values = {"type": self.type}
        for name, declared in fields_of(type(self)).items():
            if name == self.type or (name != "type" and vars(self)[name] != declared.default()):
                values[name] = _plain(vars(self)[name])
        return values


def bind(config_cls: type[Config]) -> Callable[[Builder], Builder]:
    """Returns a decorator that makes a class or a function what is built from configs of a class: its `BUILDER`.

    A subclass of the config class inherits the builder, until one is bound to it.

    Example:
        >>> @dataclass
        ... class SquareConfig(Config):
        ...     size: int = 2
        >>> @bind(SquareConfig)
        ... def area(config: SquareConfig) -> int:
        ...     return config.size**2
        >>> config = SquareConfig(size=3)
        >>> config.BUILDER(config)
        9
    """
    if not (isinstance(config_cls, type) and issubclass(config_cls, Config)):
        raise ArgumentError(
            f"bind takes a Config class, not {shown(config_cls)}. Write @bind(MyConfig) above its builder."
        )

    def put(builder: Builder) -> Builder:
        if not callable(builder):
            raise ArgumentError(f"bind({config_cls.__name__}) takes a class or a function, not {shown(builder)}.")
        if "BUILDER" in vars(config_cls):
            name = getattr(config_cls.BUILDER, "__qualname__", repr(config_cls.BUILDER))
            raise RegistryError(
                f"{config_cls.__name__} is bound to {name} already. Give the second a config of its own."
            )
        # A function would else be a method, and take the config that it is reached by as its first argument.
        config_cls.BUILDER = staticmethod(builder)
        return builder

    return put


def merge(config: Config, setting: Setting) -> list[Problem]:
    """Sets what can be set and returns the problems with the rest.

    Unlike `override` this is not atomic: throw the config away if there are problems.
    """
    draft = _draft(config, setting)
    draft.commit()
    return draft.problems


def _draft(config: Config, setting: Setting) -> Draft:
    draft = Draft(lambda: paths(config))
    draft_changes(config, setting, draft)
    return draft


def _plain(value: object) -> Any:
    """Returns a field's value as plain data."""
    if isinstance(value, Config):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else list(map(_plain, value))
    return value


def _as_mapping(params: Mapping[str, Any] | Config) -> Mapping[str, Any]:
    return params.as_dict() if isinstance(params, Config) else params
