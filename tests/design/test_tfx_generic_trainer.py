"""Programs with the calls of TFX's design of a generic trainer, one for each sketch in it."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import pytest

from tests.executor.pipeline import SCHEMA, write_examples, write_module
from trellis.executor import (
    Examples,
    Executor,
    FnArgs,
    HyperParameters,
    Model,
    ModelRun,
    Schema,
    TensorFlowDatasetOptions,
)

# By name, so that modules of these tests say what those of the document say.
HERE = "from tests.design.test_tfx_generic_trainer import *\n"
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(autouse=True)
def _artifacts() -> Any:
    write_examples(Path("examples"), n=16)
    Path("schema").mkdir()
    Path("schema/schema.pbtxt").write_text(SCHEMA)
    with jax.numpy_rank_promotion("allow"):
        yield


def do(text: str, *, more_inputs: Any = None, **properties: Any) -> None:
    """Runs a module as a pipeline runs it."""
    input_dict = {"examples": [Examples("examples")], "schema": [Schema("schema")]}
    output_dict = {"model": [Model("model")], "model_run": [ModelRun("model_run")]}
    exec_properties = {
        "module_file": str(write_module(HERE + text)),
        "train_args": '{"num_steps": 2}',
        "eval_args": '{"num_steps": 1}',
    }
    Executor().Do(input_dict | (more_inputs or {}), output_dict, exec_properties | properties)


def _build_keras_model() -> keras.Model:
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def _input_fn(fn_args: FnArgs, files: Any) -> Any:
    options = TensorFlowDatasetOptions(batch_size=8, label_key="kind")
    batches = fn_args.data_accessor.numpy_factory(files, options, fn_args.schema_path)  # type: ignore[union-attr]
    return ((features["size"], labels.astype(np.float32)) for features, labels in batches)


def model_to_estimator(keras_model: keras.Model) -> Any:
    """A Keras model with the methods of an estimator."""

    def save(export_dir_base: str, receiver_fn: Any) -> str:
        Path(export_dir_base, "1").mkdir(parents=True)
        keras_model.save(Path(export_dir_base, "1", f"{receiver_fn()}.keras"))
        return f"{export_dir_base}/1"

    return SimpleNamespace(
        train=lambda input_fn, max_steps: keras_model.fit(
            input_fn(), steps_per_epoch=max_steps, shuffle=False, verbose=0
        ),
        evaluate=lambda input_fn, steps, name: {"loss": keras_model.evaluate(input_fn(), steps=steps, verbose=0)},
        export_saved_model=save,
    )


def _trainer_fn(trainer_fn_args: FnArgs, schema: Any) -> dict[str, Any]:
    """What the document's `trainer_fn` returns."""
    assert schema.names == ("size", "kind")
    exporter = SimpleNamespace(
        name="exporter",
        export=lambda estimator, export_path, **others: estimator.export_saved_model(export_path, lambda: "serving"),
    )
    return {
        "estimator": model_to_estimator(keras_model=_build_keras_model()),
        "train_spec": SimpleNamespace(
            input_fn=lambda: _input_fn(trainer_fn_args, trainer_fn_args.train_files),
            max_steps=trainer_fn_args.train_steps,
        ),
        "eval_spec": SimpleNamespace(
            input_fn=lambda: _input_fn(trainer_fn_args, trainer_fn_args.eval_files),
            steps=trainer_fn_args.eval_steps,
            exporters=[exporter],
        ),
        "eval_input_receiver_fn": lambda: "eval",
    }


def answers(path: str) -> Any:
    """What a saved model says."""
    return keras.saving.load_model(path)(np.ones((1, 1), np.float32))


def test_a_module_with_a_trainer_fn_is_trained_by_the_executor() -> None:
    do("from tests.design.test_tfx_generic_trainer import _trainer_fn as trainer_fn\n")
    np.testing.assert_array_equal(
        answers("model/Format-Serving/serving.keras"), answers("model/Format-TFMA/eval.keras")
    )


def test_a_run_fn_is_given_the_six_things_of_the_document() -> None:
    Path("tuned").mkdir()
    Path("tuned/best.txt").write_text('{"values": {"rate": 0.1}}')
    Path("base/Format-Serving").mkdir(parents=True)
    do(
        """
import os, pickle

def run_fn(run_fn_args):
    os.makedirs(run_fn_args.serving_model_dir)
    seen = {
        "data": [run_fn_args.train_files, run_fn_args.eval_files],
        "output": os.path.basename(run_fn_args.serving_model_dir),
        "steps": [run_fn_args.train_steps, run_fn_args.eval_steps],
        "base_model": run_fn_args.base_model,
        "tuning": run_fn_args.hyperparameters,
        "custom": run_fn_args.custom_config,
    }
    with open(os.path.join(run_fn_args.serving_model_dir, "seen.pkl"), "wb") as file:
        pickle.dump(seen, file)
""",
        more_inputs={"base_model": [Model("base")], "hyperparameters": [HyperParameters("tuned")]},
        custom_config='{"epochs": 3}',
    )
    assert pickle.loads(Path("model/Format-Serving/seen.pkl").read_bytes()) == {
        "data": [["examples/Split-train/*"], ["examples/Split-eval/*"]],
        "output": "Format-Serving",
        "steps": [2, 1],
        "base_model": "base/Format-Serving",
        "tuning": {"values": {"rate": 0.1}},
        "custom": {"epochs": 3},
    }


def _fit_and_save(args: FnArgs, model: keras.Model) -> None:
    model.fit(_input_fn(args, args.train_files), steps_per_epoch=args.train_steps, shuffle=False, verbose=0)
    Path(str(args.serving_model_dir)).mkdir()
    model.save(Path(str(args.serving_model_dir), "model.keras"))


def test_a_run_fn_builds_fits_and_saves() -> None:
    do(
        """
from tests.design.test_tfx_generic_trainer import _build_keras_model, _fit_and_save

def run_fn(args: FnArgs) -> None:
    model = _build_keras_model()
    _fit_and_save(args, model)
"""
    )
    assert answers("model/Format-Serving/model.keras").shape == (1, 1)


def test_a_module_is_converted_by_a_run_fn_that_trains_what_its_trainer_fn_returns() -> None:
    do(
        """
import absl
from tests.design.test_tfx_generic_trainer import _trainer_fn as trainer_fn
from trellis.executor import read_schema

def run_fn(fn_args: FnArgs):
    schema = read_schema(fn_args.schema_file)
    training_spec = trainer_fn(fn_args, schema)
    absl.logging.info("Training model.")
    estimator, train_spec, eval_spec = (training_spec[name] for name in ("estimator", "train_spec", "eval_spec"))
    estimator.train(train_spec.input_fn, max_steps=train_spec.max_steps)
    estimator.evaluate(eval_spec.input_fn, steps=eval_spec.steps, name="eval")
    for exporter in eval_spec.exporters:
        exporter.export(estimator, export_path=f"{fn_args.serving_model_dir}/export/{exporter.name}")
    absl.logging.info("Training complete. Model written to %s", fn_args.serving_model_dir)
    estimator.export_saved_model(fn_args.eval_model_dir, training_spec["eval_input_receiver_fn"])
"""
    )
    # The layout of an estimator, which a next run finds as its base model.
    do(
        """
def run_fn(fn_args):
    Path(fn_args.serving_model_dir).mkdir()
    Path(fn_args.serving_model_dir, "base.pkl").write_bytes(pickle.dumps(fn_args.base_model))
""",
        more_inputs={"base_model": [Model(str(Path("model").rename("first")))]},
    )
    assert pickle.loads(Path("model/Format-Serving/base.pkl").read_bytes()) == "first/Format-Serving/export/exporter/1"


def test_a_model_that_is_built_in_a_scope_is_trained_on_all_devices_of_the_worker() -> None:
    do(
        """
from tests.design.test_tfx_generic_trainer import _build_keras_model, _fit_and_save

def run_fn(args: FnArgs) -> None:
    mirrored_strategy = keras.distribution.DataParallel(devices=[f"cpu:{index}" for index in range(8)])
    with mirrored_strategy.scope():
        model = _build_keras_model()
        _fit_and_save(args, model)
    assert len(model.weights[0].value.devices()) == 8
"""
    )
    assert answers("model/Format-Serving/model.keras").shape == (1, 1)


WORKER = '''
import json, os, pickle
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def _is_chief() -> bool:
    """Decides by TF_CONFIG, which is set where there are many workers."""
    return json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief"


def run_fn(args) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
    )
    shares = multihost_utils.process_allgather(jnp.float32(1 + jax.process_index()))
    if _is_chief():
        Path(args.serving_model_dir).mkdir()
        Path(args.serving_model_dir, "total.pkl").write_bytes(pickle.dumps([jax.process_count(), float(shares.sum())]))
'''


def test_workers_find_each_other_train_together_and_the_chief_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setitem(globals(), "HERE", "")
    do(WORKER, custom_config={"trellis_run_args": {"workers": 2, "timeout": 120}})
    assert pickle.loads(Path("model/Format-Serving/total.pkl").read_bytes()) == [2, 3.0]
