"""The legacy way: a `trainer_fn` that returns an estimator, trained, exported and laid out as it used to be."""

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import text_format

from trellis.errors import ArgumentError, RunFailedError, shown
from trellis.executor.artifacts import EVAL, SERVING, only_entry
from trellis.executor.example_schema import read_schema
from trellis.executor.fn_args import FnArgs

_PARTS = ("estimator", "train_spec", "eval_spec", "eval_input_receiver_fn")


class Estimator(Protocol):
    """What a legacy module trains: an estimator of TensorFlow's, or anything else with these methods."""

    def train(self, input_fn: Any, *, max_steps: int | None = None) -> Any:
        """Trains up to a step."""

    def evaluate(self, input_fn: Any, *, steps: int | None = None, name: str | None = None) -> Mapping[str, Any]:
        """Measures what was trained."""

    def export_saved_model(self, export_dir_base: str, serving_input_receiver_fn: Any) -> Any:
        """Writes the model to a new directory below one, and returns its path."""


def run_trainer_fn(
    trainer_fn: Callable[[FnArgs, Any], Mapping[str, Any]], *, fn_args: FnArgs, is_chief: bool = True
) -> None:
    """Trains what a `trainer_fn` returns; a chief exports it and copies it to where a `run_fn` would write.

    As the legacy executor did, the estimator works below `model_run_dir`: it finds there the serving and the eval
    directory, and what its exporters leave is copied to the model.
    """
    run_dir = Path(str(fn_args.model_run_dir))
    working = replace(fn_args, serving_model_dir=str(run_dir / SERVING), eval_model_dir=str(run_dir / EVAL))
    spec = trainer_fn(working, _legacy_schema(str(fn_args.schema_path)))
    missing = [name for name in _PARTS if name not in (spec or {})]
    if missing:
        raise ArgumentError(
            f"trainer_fn returned {shown(spec)}, which lacks {', '.join(missing)}. "
            f"It returns a dict of {', '.join(_PARTS)}."
        )
    _train_and_evaluate(spec["estimator"], spec["train_spec"], spec["eval_spec"], run_dir / SERVING)
    if not is_chief:
        return
    exported = _export_for_eval(spec["estimator"], run_dir / EVAL, spec["eval_input_receiver_fn"])
    serving = run_dir / SERVING / "export"
    if not serving.is_dir():
        raise RunFailedError(
            f"The exporters of eval_spec have left nothing in `{serving}`. Give eval_spec an exporter."
        )
    shutil.copytree(max(only_entry(serving).iterdir()), str(fn_args.serving_model_dir), dirs_exist_ok=True)
    shutil.copytree(exported, str(fn_args.eval_model_dir), dirs_exist_ok=True)


def _train_and_evaluate(estimator: Estimator, train_spec: Any, eval_spec: Any, model_dir: Path) -> None:
    if type(estimator).__module__.partition(".")[0] in ("tensorflow", "tensorflow_estimator"):
        tensorflow: Any = importlib.import_module("tensorflow")
        tensorflow.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
        return
    estimator.train(train_spec.input_fn, max_steps=train_spec.max_steps)
    result = estimator.evaluate(eval_spec.input_fn, steps=eval_spec.steps, name=getattr(eval_spec, "name", None))
    exporters = eval_spec.exporters or ()
    for exporter in exporters if isinstance(exporters, list | tuple) else (exporters,):
        exporter.export(
            estimator,
            export_path=str(model_dir / "export" / exporter.name),
            checkpoint_path=None,
            eval_result=result,
            is_the_final_export=True,
        )


def _export_for_eval(estimator: Estimator, folder: Path, receiver_fn: Any) -> Path:
    if importlib.util.find_spec("tensorflow_model_analysis") is not None:
        analysis: Any = importlib.import_module("tensorflow_model_analysis")
        path = analysis.export.export_eval_savedmodel(
            estimator=estimator, export_dir_base=str(folder), eval_input_receiver_fn=receiver_fn
        )
    else:
        path = estimator.export_saved_model(str(folder), receiver_fn)
    return Path(path.decode() if isinstance(path, bytes) else str(path))


def _legacy_schema(path: str) -> Any:
    """Returns the schema as TensorFlow's own message, which published modules expect, if that is installed."""
    if importlib.util.find_spec("tensorflow_metadata") is None:
        return read_schema(path)
    messages: Any = importlib.import_module("tensorflow_metadata.proto.v0.schema_pb2")
    content = Path(path).read_bytes()
    is_binary = Path(path).suffix == ".pb"
    return messages.Schema.FromString(content) if is_binary else text_format.Parse(content, messages.Schema())
