"""The six modes, by what they do."""

import pytest

from trellis.errors import ArgumentError
from trellis.experiments import MODES, Mode, get_mode

DOES = {
    "train": {"trains"},
    "eval": {"evaluates"},
    "train_and_eval": {"trains", "evaluates", "evaluates_while_training"},
    "continuous_eval": {"evaluates", "follows"},
    "continuous_train_and_eval": {"trains", "evaluates", "follows"},
    "train_and_post_eval": {"trains", "evaluates", "evaluates_after_training"},
}
ANSWERS = {name for name in Mode.__slots__ if name != "name"}


def test_the_modes_are_the_published_ones() -> None:
    assert tuple(DOES) == MODES


@pytest.mark.parametrize("name", MODES)
def test_a_mode_is_known_by_what_it_does(name: str) -> None:
    mode = get_mode(name)
    assert str(mode) == name
    assert {answer for answer in ANSWERS if getattr(mode, answer)} == DOES[name]
    assert mode.needs_checkpoint == (name == "eval")


def test_a_name_that_is_none_is_told_the_nearest() -> None:
    with pytest.raises(
        ArgumentError, match="There is no mode 'train_eval'. Did you mean train_and_eval\\? Modes are: train"
    ):
        get_mode("train_eval")
