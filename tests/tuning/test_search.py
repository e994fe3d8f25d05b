from pathlib import Path

import pytest

from trellis.errors import ConfigError
from trellis.experiments import resolve
from trellis.tuning import Range, read_search

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"


def test_a_file_and_flags_give_ranges_and_later_ones_win(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(f"{RATE}: {{log: [1e-5, 1e-3]}}\ntask:\n  hidden_size: {{choice: [16, 32]}}\n")
    space = read_search([str(file), "task.hidden_size=int(8, 64)"], config=resolve("digits/classifier"))
    assert space.ranges == (Range(RATE, "log", (1e-5, 1e-3)), Range("task.hidden_size", "int", (8, 64)))
    config = space.config_of({"task.hidden_size": 9, RATE: 1e-4}, source="trial 0")
    assert config.task.as_dict()["hidden_size"] == 9


def test_all_problems_with_a_search_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text("task:\n  hiden_size: {int: [1, 8]}\ntrainer.train_steps: {log: [0, 10]}\n")
    flags = ["task.hidden_size=uniform(1, 4)", "trainer.max_to_keep=range(1, 2)", "trainer.steps_per_loop=int(9, 2)"]
    with pytest.raises(ConfigError) as error:
        read_search([str(file), *flags], config=resolve("digits/classifier"))
    message = str(error.value)
    assert "search.yaml:2" in message and "Did you mean task.hidden_size?" in message
    assert "search.yaml:3" in message and "needs more than 0" in message
    assert "task.hidden_size takes a whole number" in message
    assert "range, which is no kind of range" in message
    assert "wrong order" in message


def test_a_range_of_a_part_that_is_not_chosen_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no effect: its part of the config is not chosen"):
        read_search(
            ["trainer.optimizer_config.optimizer.sgd.momentum=uniform(0, 1)"], config=resolve("digits/classifier")
        )


def test_a_search_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="Nothing is searched"):
        read_search([], config=resolve("digits/classifier"))
