"""Relations that validate checks."""

from dataclasses import dataclass

import pytest

from trellis.config import Config
from trellis.errors import ConfigError


@dataclass
class PartConfig(Config):
    steps: int = 1
    name: str = "a"
    on: bool | None = None


@dataclass
class WholeConfig(Config):
    part: PartConfig = PartConfig()
    other: PartConfig = PartConfig()
    steps: int = 2
    rate: float | None = None


@pytest.mark.parametrize(
    "restriction",
    [
        "part.steps < steps",
        "part.steps<=1",
        "steps >= part.steps",
        "steps > 1.5",
        "part.steps == 1",
        "steps != -3",
        "rate == None",
        "part.name == 'a'",
        "part.on != True",
        "part == other",
    ],
)
def test_a_restriction_that_holds_passes(restriction: str) -> None:
    WholeConfig(restrictions=[restriction]).validate()


@pytest.mark.parametrize(
    ("restriction", "message"),
    [
        ("part.steps > steps", "Restriction 'part.steps > steps' does not hold: it is 1 > 2."),
        ("part.on != None", "'part.on != None' does not hold: it is None != None.\n  part.on comes from default."),
        ("part.step < 1", "there is no part.step.\n  Did you mean part.steps?"),
        ("steps.part < 1", "there is no steps.part."),
        ("rate < 3", "does not hold: None and 3.0 cannot be ordered."),
    ],
)
def test_a_restriction_that_does_not_hold_is_told_with_its_values(restriction: str, message: str) -> None:
    config = WholeConfig(restrictions=[restriction])
    with pytest.raises(ConfigError, match=message):
        config.validate()


@pytest.mark.parametrize(
    ("restriction", "message"),
    [
        ("steps == 1 == 1", "is not one relation between two operands"),
        ("steps ~ 1", "is not one relation between two operands"),
        ("steps ==", "is not one relation between two operands"),
        ("steps == 1abc", "'1abc' is neither a number nor a path"),
    ],
)
def test_a_malformed_restriction_is_told_at_once(restriction: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WholeConfig(restrictions=[restriction])


def test_all_restrictions_are_told_also_those_of_the_configs_inside() -> None:
    config = WholeConfig(part=PartConfig(restrictions=["steps > 5"]), restrictions=["steps < 0", "steps > 0"])
    with pytest.raises(ConfigError) as caught:
        config.validate()
    assert len(caught.value.problems) == 2
    assert "part.steps comes from" in caught.value.problems[1]


def test_restrictions_are_checked_by_validate_only_and_survive_replace() -> None:
    config = WholeConfig(restrictions=["steps < 2"])
    with pytest.raises(ConfigError, match="does not hold"):
        config.replace(rate=1.0).validate()
    config.replace(steps=1).validate()
