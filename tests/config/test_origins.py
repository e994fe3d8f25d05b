"""Where values come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from trellis.config import DEFAULT, Config, Origin, origin_of, registered_name, stamp, without_effect
from trellis.errors import ConfigError


@dataclass
class PartConfig(Config):
    size: int = 1
    old: bool = False
    older: bool = False

    no_effect: ClassVar[Mapping[str, str]] = {"old": "it went out of use", "older": "nobody knows"}


@dataclass
class WholeConfig(Config):
    part: PartConfig = PartConfig()
    spare: PartConfig | None = None
    name: str = "a"


def test_what_nobody_has_set_is_a_default() -> None:
    assert origin_of(WholeConfig(), "part.size") == DEFAULT
    assert str(origin_of(WholeConfig(name="a"), "name")) == "default"


def test_what_was_given_to_the_constructor_is_from_code_until_it_is_stamped() -> None:
    config = WholeConfig(name="b", part=PartConfig(size=2))
    assert str(origin_of(config, "part.size")) == "code"
    stamp(config, Origin("factory test/one"))
    assert str(origin_of(config, "part.size")) == "factory test/one"
    assert str(origin_of(config, "name")) == "factory test/one"
    assert str(origin_of(config, "part.old")) == "default"


def test_an_assignment_is_known_by_its_line() -> None:
    config = WholeConfig()
    config.part.size = 3
    config.override({"name": "c"})
    assert origin_of(config, "part.size").source.endswith("test_origins.py")
    line = origin_of(config, "part.size").line
    assert line is not None
    assert origin_of(config, "name").line == line + 1


def test_a_copy_has_the_same_origins() -> None:
    config = WholeConfig()
    config.part.size = 3
    other = config.replace(name="z")
    assert origin_of(other, "part.size") == origin_of(config, "part.size")


def test_a_copy_keeps_the_name_of_its_factory() -> None:
    config = WholeConfig()
    assert registered_name(config) is None
    stamp(config, Origin("factory test/one"), name="test/one")
    config.lock()
    assert registered_name(config.replace(name="z")) == "test/one"
    assert "_name" not in config.as_dict()
    with pytest.raises(ConfigError, match="_name is not a field of WholeConfig"):
        WholeConfig().override({"_name": "test/two"})


def test_a_path_that_does_not_exist_is_told() -> None:
    with pytest.raises(ConfigError, match="WholeConfig has no field part.sise"):
        origin_of(WholeConfig(), "part.sise")


def test_fields_without_effect_are_told_once_set() -> None:
    config = WholeConfig(spare=PartConfig())
    assert list(without_effect(config)) == []
    config.override({"part": {"old": True, "older": False}})
    (idle,) = without_effect(config)
    assert (idle.path, idle.reason) == ("part.old", "it went out of use")
