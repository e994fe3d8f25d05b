"""What every word of the command tells programs."""

import json
import math
import sys
from pathlib import Path

import pytest

from trellis.cli.main import WORDS, load, main
from trellis.cli.parser import Parser
from trellis.runtime import answering_in_json, print_error, print_json, print_line

DO_AND_DO_NOT_ANSWER = {"train", "launch", "run", "report", "completion", "serve"}


@pytest.mark.parametrize("word", sorted(WORDS.keys() - DO_AND_DO_NOT_ANSWER))
def test_a_word_that_answers_has_the_flag_for_json(word: str) -> None:
    parser = Parser(word, WORDS[word].summary)
    load(WORDS[word].flags_function)(parser)
    assert "--json" in list(parser.flag_texts())


def test_stdout_is_the_answer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with answering_in_json():
        print_line("for people")
        print(1)
        print_error("wrong")
        print_json({"loss": math.nan, "path": Path("a"), "ü": [1]})
        print_json({"loss": 1.0}, is_one_of_many=True)
    print_line("again")
    told = capsys.readouterr()
    answer, rest = told.out.split("}\n", 1)
    assert json.loads(answer + "}") == {"loss": "nan", "path": "a", "ü": [1]}
    assert rest == '{"loss": 1.0}\nagain\n'
    assert told.err == "for people\n1\nwrong\n"
    assert sys.stdout is not sys.stderr


def test_experiments_and_configs_are_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*arguments: str) -> object:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    experiments = answer("experiments")
    assert isinstance(experiments, dict)
    assert "digits/classifier" in [one["name"] for one in experiments["experiments"]]
    shown = answer("config", "show", "--experiment=digits/classifier", "--set=trainer.train_steps=7")
    assert isinstance(shown, dict)
    values = {one["field"]: one for one in shown["values"]}
    assert values["trainer.train_steps"] == {"field": "trainer.train_steps", "value": 7, "origin": "--set"}
    assert "task.train_data.cache" not in values
    (tmp_path / "a.yaml").write_text("trainer: {train_steps: 7}\n")
    (tmp_path / "b.yaml").write_text("trainer: {train_steps: 8}\nruntime: {seed: 1}\n")
    assert answer("config", "diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")) == {
        "differences": [
            {
                "field": "trainer.train_steps",
                "first": {"value": 7, "origin": f"{tmp_path / 'a.yaml'}:1"},
                "second": {"value": 8, "origin": f"{tmp_path / 'b.yaml'}:1"},
            },
            {"field": "runtime.seed", "first": None, "second": {"value": 1, "origin": f"{tmp_path / 'b.yaml'}:2"}},
        ]
    }


def test_errors_stay_off_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--experiment=digits/classifer", "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "digits/classifier" in told.err
