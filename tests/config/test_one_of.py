"""OneOfConfig: a type that names one of several fields."""

from dataclasses import dataclass

import pytest

from trellis.config import Config, OneOfConfig
from trellis.errors import ConfigError


@dataclass
class WheelConfig(Config):
    size: int = 26
    label: str = "plain"


@dataclass
class LampConfig(Config):
    bright: bool = False


@dataclass
class ChoiceConfig(OneOfConfig):
    wheel: WheelConfig = WheelConfig()
    lamp: LampConfig = LampConfig()
    count: int = 3


def test_one_of_returns_what_its_type_names() -> None:
    assert ChoiceConfig().get() is None
    assert ChoiceConfig(type="lamp").get() == LampConfig()
    assert ChoiceConfig({"type": "count", "count": 1000}).get() == 1000


def test_one_of_refuses_a_type_that_it_does_not_have_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"type takes one of wheel, lamp, count, not 'wheels'.\n  Write:\n.*type = wheel"
    ):
        ChoiceConfig(type="wheels")


def test_one_of_exports_the_choice_and_whatever_was_changed() -> None:
    assert ChoiceConfig().as_dict() == {"type": None}
    choice = ChoiceConfig({"type": "lamp", "wheel": {"size": 3}})
    assert choice.as_dict() == {"type": "lamp", "wheel": {"size": 3, "label": "plain"}, "lamp": {"bright": False}}
    assert ChoiceConfig(choice.as_dict()) == choice
