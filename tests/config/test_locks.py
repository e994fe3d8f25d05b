"""lock and replace."""

from dataclasses import dataclass, field

import pytest

from trellis.config import Config
from trellis.errors import ConfigError


@dataclass
class WheelConfig(Config):
    size: int = 26


@dataclass
class SpokedWheelConfig(WheelConfig):
    tension: float = 1.5


@dataclass
class LampConfig(Config):
    bright: bool = False


@dataclass
class BikeConfig(Config):
    front: WheelConfig = WheelConfig()
    spare: WheelConfig | None = None
    bags: list[WheelConfig] = field(default_factory=list)
    pair: tuple[WheelConfig, ...] = (SpokedWheelConfig(), WheelConfig())
    lamps: dict[str, LampConfig] = field(default_factory=dict)
    gears: int | None = None


def test_lock_is_deep_and_replace_is_the_way_out() -> None:
    bike = BikeConfig(bags=[WheelConfig()], lamps={"rear": LampConfig()}, spare=WheelConfig())
    bike.lock()
    for config in (bike.front, bike.spare, bike.bags[0], bike.pair[0]):
        assert config is not None
        with pytest.raises(ConfigError, match=r"is locked.\n  Change a copy instead: config.replace"):
            config.size = 1
        with pytest.raises(ConfigError, match="is locked"):
            config.override({"size": 1})
    with pytest.raises(ConfigError, match="is locked"):
        bike.lamps["rear"].bright = True
    with pytest.raises(ConfigError, match="BikeConfig is locked"):
        bike.override({"front": {"size": 1}})
    other = bike.replace(front={"size": 1})
    other.front.size = 2
    assert bike.front.size == 26


def test_a_locked_config_inside_an_open_one_stays_as_it_is() -> None:
    bike = BikeConfig()
    bike.front.lock()
    with pytest.raises(ConfigError, match="front is locked"):
        bike.override({"front": {"size": 1}})


def test_a_copy_of_a_locked_config_can_be_changed_until_it_is_locked_itself() -> None:
    bike, wheel = BikeConfig(bags=[WheelConfig()]), SpokedWheelConfig(size=3)
    bike.lock()
    wheel.lock()
    other = bike.replace(front=wheel)
    other.front.size = 4
    other.bags[0].size = 5
    assert (bike.bags[0].size, wheel.size) == (26, 3)
    other.lock()
    for config in (other.front, other.bags[0]):
        with pytest.raises(ConfigError, match="WheelConfig is locked"):
            config.size = 6
    assert bike.replace().front.size == 26


def test_replace_keeps_classes_and_leaves_the_original() -> None:
    bike = BikeConfig(front=SpokedWheelConfig())
    other = bike.replace(front={"size": 4}, gears=3)
    assert other.front == SpokedWheelConfig(size=4)
    assert (bike.front.size, bike.gears) == (26, None)
    with pytest.raises(ConfigError, match="wheels is not a field of BikeConfig"):
        bike.replace(wheels=3)
