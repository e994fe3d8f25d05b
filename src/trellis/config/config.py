"""Typed, nested settings that refuse what they do not know."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from trellis.config.drafts import Draft, Place
from trellis.config.fields import Branch, branches, copied, fields_of, paths, plan
from trellis.config.given import CODE, Given, as_given, caller
from trellis.config.problems import Problem, raise_if_any
from trellis.config.restrictions import Restriction, violations
from trellis.config.yaml_text import dump, read_file
from trellis.errors import ConfigError
from trellis.spelling import nearest


class ConfigType(type):
    """Constructs configs so that everything wrong with the arguments is told at once."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a checked config."""
        config: Any = object.__new__(cast(Any, cls))
        draft = Draft(lambda: paths(config))
        vars(config).update(_origins={}, _locked=False, _restrictions=(), _construction=draft)
        names = fields_of(type(config))
        for name in [name for name in kwargs if name not in {*names, "default_params", "restrictions"}]:
            Place(draft).refuse_key(name, as_given(kwargs.pop(name), CODE), owner=cls.__name__, names=names)
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
    another config, or lists, tuples, dicts, Optional and unions of them. A mapping given for a config becomes the
    annotated class, or is merged into the config that is there. Types are checked and unknown names refused whenever
    something is set, and an error tells all that is wrong.

    Example:
        >>> @dataclass
        ... class DecayConfig(Config):
        ...     rate: float = 0.5
        >>> @dataclass
        ... class RunConfig(Config):
        ...     steps: int = 100
        ...     decay: DecayConfig = DecayConfig()
        >>> config = RunConfig(steps=10, decay={"rate": 0.1})
        >>> config.override({"decay": {"rate": 0.2}})
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
            vars(self)["_construction"].problems += merge(self, as_given(_as_mapping(default_params), CODE))

    if not TYPE_CHECKING:  # A type checker that saw these would let every attribute pass.

        def __setattr__(self, name: str, value: object) -> None:
            """Checks and sets a field."""
            construction = vars(self).get("_construction")
            given = as_given(value, CODE if construction else caller())
            draft = Draft(lambda: paths(self))
            plan(self, Given({name: given}, given.origin), Place(draft), fresh=bool(construction))
            if construction:
                vars(self)[name] = value
                construction.problems += draft.problems
            else:
                raise_if_any(draft.problems)
            draft.commit()

        def __getattr__(self, name: str) -> object:
            """Tells the nearest field for a name that is none."""
            close = None if name.startswith("_") else nearest(name, fields_of(type(self)))
            meant = f" Did you mean {close}?" if close else ""
            raise AttributeError(f"{type(self).__name__} has no field {name!r}.{meant}")

        def __delattr__(self, name: str) -> None:
            """Refuses: every field has a value."""
            raise ConfigError(f"{type(self).__name__}.{name} cannot be deleted. Set it to its default instead.")

    def override(self, params: "Mapping[str, Any] | Config") -> None:
        """Merges nested settings into this config: all of them or, if anything is wrong, none."""
        draft = Draft(lambda: paths(self))
        plan(self, as_given(_as_mapping(params), caller()), Place(draft))
        raise_if_any(draft.problems)
        draft.commit()

    def replace(self, **changes: Any) -> Self:
        """Returns an unlocked copy with some fields changed."""
        other = cast(Self, copied(self))
        other.override(changes)
        return other

    def lock(self) -> None:
        """Makes this config and everything in it read-only, for good."""
        for _, branch in [("", self), *branches(self)]:
            vars(branch)["_locked"] = True

    def validate(self) -> None:
        """Raises one error that tells all restrictions, here and below, that do not hold."""
        raise_if_any(violations(self))

    def as_dict(self) -> dict[str, Any]:
        """Returns plain nested data, fields in the order of their declaration."""
        return {name: plain(vars(self)[name]) for name in fields_of(type(self))}

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
        given, problems = read_file(config_file)
        raise_if_any([*problems, *merge(config, given)])
        return config

    @classmethod
    def from_json(cls, config_file: str | Path) -> Self:
        """Returns the defaults with a file's values merged in."""
        return cls.from_yaml(config_file)


def merge(config: Config, given: Given) -> list[Problem]:
    """Sets what can be set and returns the problems with the rest.

    Unlike `override` this is not atomic: throw the config away if there are problems.
    """
    draft = Draft(lambda: paths(config))
    plan(config, given, Place(draft))
    draft.commit()
    return draft.problems


def plain(value: object) -> Any:
    """Returns a field's value as plain data."""
    if isinstance(value, Config):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(plain, value)) if isinstance(value, tuple) else list(map(plain, value))
    return value


def _as_mapping(params: Mapping[str, Any] | Config) -> Mapping[str, Any]:
    return params.as_dict() if isinstance(params, Config) else params
