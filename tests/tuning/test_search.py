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
    assert "task.hidden_size does not take 2.11, which lies between the ends of uniform" in message
    assert "Search whole numbers: int(1, 8)" in message
    assert "Write one of: log(1e-5, 1e-3)," in message and "Write, for example: {log: [1e-5, 1e-3]}" in message
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


def test_a_range_may_have_steps_that_lead_to_its_end() -> None:
    config = resolve("digits/classifier")
    space = read_search(["task.hidden_size=int(8, 64, 8)", "task.dropout_rate=uniform(0, 0.5, 0.1)"], config=config)
    assert [range_.step for range_ in space.ranges] == [8, 0.1]
    assert str(space.ranges[0]) == "int(8, 64, 8)"
    wrong = {
        "int(8, 64, 9)": "its last value would be 62",
        "int(8, 64, 0)": "has the step 0",
        "int(8, 64, .nan)": "no whole number",
        "int(8, 64, 2.5)": "no whole number",
        "log(8, 64, 8)": "a step, which a logarithm has none of",
        "int(8, 64, 8, 8)": "not 4 values",
    }
    for text, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            read_search([f"task.hidden_size={text}"], config=config)
