"""Where the values of a config came from."""

from collections.abc import Iterator
from dataclasses import dataclass

from trellis.config.fields import Branch, branches, fields_of
from trellis.config.given import CODE, DEFAULT, Origin
from trellis.errors import ConfigError


def origin_of(config: Branch, path: str) -> Origin:
    """Returns where the value at a dotted path came from.

    A value that equals its class's default and that nobody has set since is a default.
    """
    owner, _, name = path.rpartition(".")
    branch = dict(branches(config)).get(owner) if owner else config
    if branch is None or name not in fields_of(type(branch)):
        raise ConfigError(f"{type(config).__name__} has no field {path}.")
    origin: Origin = vars(branch)["_origins"].get(name, CODE)
    is_default = origin == CODE and vars(branch)[name] == fields_of(type(branch))[name].default()
    return DEFAULT if is_default else origin


def stamp(config: Branch, origin: Origin) -> None:
    """Names the origin of every value that was set in code while the config was being made."""
    for _, branch in [("", config), *branches(config)]:
        for name in fields_of(type(branch)):
            if origin_of(branch, name).form == "code" and origin_of(branch, name) != DEFAULT:
                vars(branch)["_origins"][name] = origin


@dataclass(frozen=True, slots=True)
class Idle:
    """A field that somebody has set although it has no effect."""

    path: str
    reason: str
    origin: Origin


def without_effect(config: Branch) -> Iterator[Idle]:
    """Yields the fields that were set to something and that their classes declare to be without effect."""
    for prefix, branch in [("", config), *branches(config)]:
        for name, reason in type(branch).no_effect.items():
            # A run's params.yaml gives every field; only another value than the default asks for something.
            if vars(branch)[name] != fields_of(type(branch))[name].default():
                yield Idle(f"{prefix}.{name}" if prefix else name, reason, origin_of(branch, name))
