"""Every module in examples/modules runs, learns, and leaves a model that answers as it was trained to."""

import ast
import importlib.util
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import pytest
from jax import export

from trellis.executor import (
    DataAccessor,
    Examples,
    Executor,
    HyperParameters,
    Model,
    ModelRun,
    Schema,
    TensorFlowDatasetOptions,
)

MODULES = Path(__file__).parents[2] / "examples" / "modules"
SERVED = Path("model/Format-Serving")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def penguins() -> Any:
    """The module that makes the data."""
    spec = importlib.util.spec_from_file_location("penguins_of_the_tests", MODULES / "penguins.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _examples() -> None:
    penguins().write_penguins(Path())


def run(name: str, *, train_steps: int = 100, **inputs: Any) -> None:
    """Runs an example."""
    Executor().Do(
        {"examples": [Examples("examples")], "schema": [Schema("schema")]} | inputs,
        {"model": [Model("model")], "model_run": [ModelRun("model_run")]},
        {"module_file": str(MODULES / name), "train_args": {"num_steps": train_steps}, "eval_args": {}},
    )


def share_of_right_answers(predict: Callable[[Any], Any]) -> float:
    """How often the species is told rightly, of examples that were not trained on."""
    module = penguins()
    options = TensorFlowDatasetOptions(batch_size=96, label_key=module.LABEL)
    batch = next(DataAccessor().numpy_factory("examples/Split-eval/*", options, "schema/schema.pbtxt"))
    inputs, labels = module.as_arrays(batch)
    return float(np.mean(np.argmax(predict(inputs), -1) == labels))


def exported_model() -> Callable[[Any], Any]:
    call: Callable[[Any], Any] = export.deserialize(bytearray((SERVED / "model.jax_export").read_bytes())).call
    return call


def test_every_module_is_tested_short_and_says_what_it_is_for() -> None:
    tested = {"flax_module.py", "trellis_module.py", "keras_module.py", "sklearn_module.py", "penguins.py"}
    assert {path.name for path in MODULES.glob("*.py")} == tested
    for path in MODULES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 80
        assert ast.get_docstring(ast.parse(path.read_text()))


def test_a_flax_loop_by_hand() -> None:
    run("flax_module.py")
    assert share_of_right_answers(exported_model()) > 0.9


def test_a_loop_of_trellis_which_goes_on_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    run("trellis_module.py")
    assert "  eval/accuracy 0." in capsys.readouterr().out
    run("trellis_module.py", train_steps=200)
    out = capsys.readouterr().out
    assert "Step 100 of" not in out
    assert "Step 200 of 200  loss " in out
    assert share_of_right_answers(exported_model()) > 0.9


def test_the_fit_of_keras_with_what_a_tuner_found_and_then_from_a_base_model() -> None:
    Path("tuned").mkdir()
    Path("tuned/best_hyperparameters.txt").write_text('{"space": [], "values": {"learning_rate": 0.02}}')
    with jax.numpy_rank_promotion("allow"):
        run("keras_module.py", hyperparameters=[HyperParameters("tuned")])
        model = keras.saving.load_model(SERVED / "model.keras")
        assert share_of_right_answers(model.predict_on_batch) > 0.9
        assert float(model.optimizer.learning_rate) == pytest.approx(0.02)
        Path("model").rename("base")
        run("keras_module.py", train_steps=1, base_model=[Model("base")])
        warm = keras.saving.load_model(SERVED / "model.keras")
        assert int(warm.optimizer.iterations) == 101


def test_an_estimator_of_scikit_learn() -> None:
    run("sklearn_module.py")
    model = pickle.loads((SERVED / "model.pkl").read_bytes())
    assert share_of_right_answers(model.predict_proba) > 0.9
