"""Typed, nested settings that refuse what they do not know."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from trellis.config.drafts import Draft
from trellis.config.fields import Branch, branches, draft_changes, fields_of, paths, unlocked_copy
from trellis.config.problems import Problem, raise_if_any
from trellis.config.restrictions import Restriction, violations
from trellis.config.settings import CODE, Setting, as_setting, caller
from trellis.config.yaml_text import dump, read_file
from trellis.errors import ConfigError
from trellis.spelling import did_you_mean


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
            raise AttributeError(f"{type(self).__name__} has no field {name!r}.{suggestion}")

        def __delattr__(self, name: str) -> None:
            """Refuses: every field has a value."""
            raise ConfigError(f"{type(self).__name__}.{name} cannot be deleted. Set it to its default instead.")

    def override(self, params: "Mapping[str, Any] | Config") -> None:
        """Merges nested settings into this config: all of them or, if anything is wrong, none."""
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
