"""A `tuner_fn` of a module, as the published tuner runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.executor.pipeline import write_examples, write_module
from trellis.errors import ArgumentError, RunFailedError
from trellis.executor import Artifact, Examples, Executor, Model, ModelRun, TunerTrial, run_tuner_fn

MODULE = """
from collections import namedtuple
from types import SimpleNamespace

Result = namedtuple("Result", "tuner fit_kwargs")

class Values:
    def __init__(self, rate):
        self.values = {"rate": rate}

    def get_config(self):
        return {"space": [], "values": self.values}

class Tuner:
    def __init__(self):
        self.oracle = self
        self.trials = []

    def search(self, rates):
        for number, rate in enumerate(rates):
            status = "COMPLETED" if rate else "FAILED"
            trial = dict(trial_id=str(number), score=rate, status=status, hyperparameters=Values(rate))
            self.trials.append(SimpleNamespace(**trial))

    def get_best_trials(self, n):
        return sorted(self.trials, key=lambda trial: -trial.score)[:n]

    def get_best_hyperparameters(self, num_trials=1):
        return [trial.hyperparameters for trial in self.get_best_trials(num_trials)]

def tuner_fn(fn_args):
    assert fn_args.serving_model_dir is None and fn_args.working_dir == "out/working" and fn_args.train_steps == 7
    return Result(Tuner(), {"rates": RATES})

def run_fn(fn_args):
    import pathlib
    pathlib.Path(fn_args.serving_model_dir).mkdir()
    rate = fn_args.hyperparameters["values"]["rate"]
    pathlib.Path(fn_args.serving_model_dir, "model.pkl").write_text(str(rate))
"""


def tune(module: str) -> Any:
    write_module(module)
    if not Path("data").exists():
        write_examples(Path("data"))
    properties = {"module_file": "my_module.py", "train_args": {"num_steps": 7}, "eval_args": {}}
    return run_tuner_fn(Path("out"), {"examples": [Examples("data")]}, properties)


def test_what_its_tuner_finds_is_written_as_published_and_a_run_takes_it() -> None:
    trials = tune(MODULE.replace("RATES", "[0.1, 0.3, 0, 0.2]"))
    assert trials == [
        TunerTrial("1", score=0.3, values={"rate": 0.3}),
        TunerTrial("3", score=0.2, values={"rate": 0.2}),
        TunerTrial("0", score=0.1, values={"rate": 0.1}),
    ]
    rows = json.loads(Path("out/tuner_results.json").read_text())
    assert rows[0] == {"trial_id": "1", "score": 0.3, "rate": 0.3}
    Executor().Do(
        {"examples": [Examples("data")], "hyperparameters": [Artifact("out/best_hyperparameters.txt")]},
        {"model": [Model("model")], "model_run": [ModelRun("run")]},
        {"module_file": "my_module.py", "train_args": {}, "eval_args": {}},
    )
    assert Path("model/Format-Serving/model.pkl").read_text() == "0.3"


def test_a_search_without_a_complete_trial_is_a_failure() -> None:
    with pytest.raises(RunFailedError, match="no trial of its tuner is complete"):
        tune(MODULE.replace("RATES", "[]"))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("None", "has returned a NoneType. Return TunerFnResult"),
        ("Result(object(), {})", "the tuner object, which has no search and no get_best_hyperparameters and no oracle"),
        ("Result(Tuner(), [1])", "fit_kwargs that are a list"),
    ],
)
def test_what_is_no_tuner_is_refused(result: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tune(f"{MODULE}\ndef tuner_fn(fn_args):\n    return {result}\n")


def test_a_module_without_a_tuner_fn_is_refused() -> None:
    with pytest.raises(ArgumentError, match="has no 'tuner_fn'"):
        tune(MODULE.replace("def tuner_fn", "def tune_all"))
