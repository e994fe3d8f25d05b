"""Modules with a trainer_fn alone: trained, exported and laid out as they used to be."""

import json
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.executor.pipeline import SCHEMA, do, files_below, write_module
from trellis.errors import ArgumentError, RunFailedError
from trellis.executor import Artifact, Executor

MODULE = """
from tests.executor.test_legacy_training import spec_of

def trainer_fn(fn_args, schema):
    return spec_of(fn_args, schema)
"""


@dataclass
class MeanEstimator:
    """Learns the mean of what its input function yields; has an estimator's methods, and no TensorFlow."""

    model_dir: str
    calls: list[Any] = field(default_factory=list)

    def train(self, input_fn: Any, *, max_steps: int | None = None) -> None:
        values = input_fn()[:max_steps]
        self.mean = sum(values) / len(values)
        self.calls.append(("train", max_steps))

    def evaluate(self, input_fn: Any, *, steps: int | None = None, name: str | None = None) -> dict[str, float]:
        self.calls.append(("evaluate", steps, name))
        return {"loss": abs(input_fn()[0] - self.mean)}

    def export_saved_model(self, export_dir_base: str, serving_input_receiver_fn: Any) -> bytes:
        path = os.path.join(export_dir_base, "1700000000")
        os.makedirs(path)
        Path(path, "mean.pkl").write_bytes(pickle.dumps({"mean": self.mean, "form": serving_input_receiver_fn()}))
        Path(path, "calls.json").write_text(json.dumps(self.calls))
        return path.encode()


class FinalExporter:
    """Exports for serving."""

    name = "penguins"

    def export(self, estimator: Any, *, export_path: str, eval_result: Any, **others: Any) -> None:
        assert others == {"checkpoint_path": None, "is_the_final_export": True}
        estimator.calls.append(("export", eval_result))
        estimator.export_saved_model(export_path, lambda: "serving")


def spec_of(fn_args: Any, schema: Any) -> dict[str, Any]:
    """What a published trainer_fn returns."""
    assert [feature.name for feature in schema.feature] == ["size", "kind"]
    return {
        "estimator": MeanEstimator(model_dir=fn_args.serving_model_dir),
        "train_spec": SimpleNamespace(input_fn=lambda: [1.0, 2.0, 3.0, 100.0], max_steps=fn_args.train_steps),
        "eval_spec": SimpleNamespace(input_fn=lambda: [2.5], steps=7, name="eval", exporters=[FinalExporter()]),
        "eval_input_receiver_fn": lambda: "eval",
    }


def do_legacy(**properties: Any) -> None:
    """Runs with a schema."""
    Path("schema").mkdir(exist_ok=True)
    Path("schema/schema.pbtxt").write_text(SCHEMA)
    do(inputs={"schema": [Artifact("schema")]}, **properties)


def test_an_estimator_is_trained_evaluated_exported_and_copied() -> None:
    write_module(MODULE)
    do_legacy()
    assert pickle.loads(Path("out/model/Format-Serving/mean.pkl").read_bytes()) == {"mean": 2.0, "form": "serving"}
    assert pickle.loads(Path("out/model/Format-TFMA/mean.pkl").read_bytes()) == {"mean": 2.0, "form": "eval"}
    calls = json.loads(Path("out/model/Format-TFMA/calls.json").read_text())
    assert calls == [["train", 3], ["evaluate", 7, "eval"], ["export", {"loss": 0.5}]]
    assert files_below("out/run") == [
        "Format-Serving/export/penguins/1700000000/calls.json",
        "Format-Serving/export/penguins/1700000000/mean.pkl",
        "Format-TFMA/1700000000/calls.json",
        "Format-TFMA/1700000000/mean.pkl",
    ]


def test_a_dotted_trainer_fn_is_run() -> None:
    write_module(MODULE, name="legacy_module.py")
    do_legacy(module_file=None, trainer_fn="legacy_module.trainer_fn")
    assert Path("out/model/Format-Serving/mean.pkl").is_file()


def test_a_run_fn_goes_before_a_trainer_fn() -> None:
    write_module(MODULE + "\ndef run_fn(fn_args):\n    raise KeyError('run_fn')\n")
    with pytest.raises(KeyError, match="run_fn"):
        do_legacy()


def test_of_several_workers_the_chief_alone_exports() -> None:
    write_module(MODULE.replace("return spec_of(fn_args, schema)", _SEPARATE))
    do_legacy(executor=Executor(), custom_config={"trellis_run_args": {"workers": 2}})
    assert files_below("out/model") == [
        "Format-Serving/calls.json",
        "Format-Serving/mean.pkl",
        "Format-TFMA/calls.json",
        "Format-TFMA/mean.pkl",
    ]
    assert Path("trained").read_text().split() == ["trained", "trained"]


_SEPARATE = """
    with open("trained", "a") as file:
        file.write("trained ")
    spec = spec_of(fn_args, schema)
    import os
    if os.environ["JAX_PROCESS_ID"] != "0":
        spec["eval_spec"].exporters = None
    return spec
"""


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            "return None",
            ArgumentError,
            "trainer_fn returned None, which lacks estimator, train_spec, eval_spec, eval_inp",
        ),
        ("return {'estimator': 1}", ArgumentError, "which lacks train_spec, eval_spec, eval_input_receiver_fn"),
        (
            "spec = spec_of(fn_args, schema); spec['eval_spec'].exporters = None; return spec",
            RunFailedError,
            "have left nothing in `out/run/Format-Serving/export`. Give eval_spec an exporter",
        ),
    ],
)
def test_what_a_trainer_fn_must_return_is_told(body: str, error: type[Exception], message: str) -> None:
    write_module(MODULE.replace("return spec_of(fn_args, schema)", body))
    with pytest.raises(error, match=message):
        do_legacy()


def test_a_trainer_fn_needs_a_schema() -> None:
    write_module(MODULE)
    with pytest.raises(
        ArgumentError, match="trainer_fn of my_module.py needs a schema: give the input `schema`, or write a run_fn"
    ):
        do()


def test_a_trainer_fn_takes_two_arguments() -> None:
    write_module("def trainer_fn(fn_args): ...\n")
    with pytest.raises(ArgumentError, match=r"called as trainer_fn\(fn_args, schema\), which it does not take"):
        do_legacy()
