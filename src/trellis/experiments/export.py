"""A run's model: exported to be served, asked where it is, or its weights to be loaded elsewhere."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from trellis.aliases import JSON
from trellis.data import Columns, ExampleStream
from trellis.errors import ArgumentError, DataError, MissingPackageError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.mode import get_mode
from trellis.experiments.overrides import read_params
from trellis.experiments.run import build_trainer, find_checkpoint
from trellis.extensions import best_file, checkpoint_storage
from trellis.loops import Checkpoint
from trellis.runtime import MeshConfig
from trellis.serving import ARRAY_BATCH_SIZE, ArrayPredictor, check_format, find_served_model, load_model
from trellis.tasks import export_task, export_weights, task_in_memory
from trellis.trainer import StagedTrainer

ExportFormat = Literal["jax_export", "saved_model", "hugging_face"]
"""What a run is exported as: a served model of ours or of TensorFlow's, or weights that `transformers` loads."""


def export_experiment(
    params: ExperimentConfig,
    *,
    model_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    checkpoint_file: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    platforms: Sequence[str] | None = None,
    format: ExportFormat = "jax_export",
) -> Path:
    """Writes the model of a run, with the averages of its parameters if it keeps some; returns the directory.

    The first batch of the validation data tells what the model takes.

    Args:
        checkpoint_file: The default is the best of the run if it keeps one, else its newest.
        batch_size: The default is any.
        platforms: The default is every one that JAX can export the model for.
        format: `saved_model` is for TensorFlow, `hugging_face` for `transformers`.

    Example:
        export_experiment(params, model_dir="runs/digits", output_dir="served/digits")
        logits = trellis.load_model("served/digits")(images)
    """
    if format == "hugging_face":
        _check_weights_only(batch_size=batch_size, platforms=platforms)
    else:
        check_format(format)
    trainer, checkpoint = _read_run(params, Path(model_dir), checkpoint_file)
    if format == "hugging_face":
        return export_weights(trainer.task, params=trainer.bound_model(checkpoint).params, output_dir=output_dir)
    return export_task(
        trainer.task,
        model=trainer.bound_model(checkpoint),
        inputs=trainer.inference_inputs(checkpoint.step),
        output_dir=output_dir,
        metadata=_metadata(trainer, checkpoint),
        batch_size=batch_size,
        platforms=platforms,
        format=format,
    )


def load_array_predictor(
    model_dir: str | os.PathLike[str],
    *,
    params: ExperimentConfig | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> ArrayPredictor:
    """Returns what asks a model with arrays and records: that of a run, or a served one, which needs no code.

    Args:
        model_dir: Of a run, or what `trellis export` wrote.
        params: The config of a run; the default is the one that it was trained with.
        checkpoint: `best`, a step, or a checkpoint file of the run; the default is the best if it keeps one, else the
            newest.

    Example:
        predictor = trellis.experiments.load_array_predictor("runs/digits")
        logits = predictor(images)
    """
    served = find_served_model(model_dir)
    if served is not None:
        if checkpoint is not None:
            raise ArgumentError(f"checkpoint is {checkpoint!r}, but `{model_dir}` is no run of ours. Leave it out.")
        return ArrayPredictor(load_model(served))
    directory = Path(model_dir)
    params = params or read_params(directory)
    file = None if checkpoint is None else find_checkpoint(checkpoint, params=params, model_dir=directory)
    try:
        trainer, read = _read_run(params, directory, file)
        inputs = trainer.inference_inputs(read.step)
    except DataError as error:
        error.add_note("The validation data of a run tell what its model takes; a model that was exported needs none.")
        raise
    model = task_in_memory(
        trainer.task,
        model=trainer.bound_model(read),
        inputs=inputs,
        metadata=_metadata(trainer, read),
        batch_size=ARRAY_BATCH_SIZE,
    )
    return ArrayPredictor(model)


def _read_run(
    params: ExperimentConfig, model_dir: Path, checkpoint_file: str | os.PathLike[str] | None
) -> tuple[StagedTrainer, Checkpoint]:
    """The trainer of a run that only answers, and the checkpoint of a file: by default the best, or else the newest."""
    path = best_of_run(params, model_dir) if checkpoint_file is None else Path(checkpoint_file)
    if path is not None and not checkpoint_storage.is_checkpoint_file(path):
        raise ArgumentError(f"`{path}` is no checkpoint file. Give one, such as {model_dir / 'regular_1000'}.")
    # A file is read on any devices: how the run had arranged its own says nothing of those that are here.
    here = params.replace(
        runtime={"distribution_strategy": "one_device", "num_gpus": 0, "mesh": MeshConfig().as_dict()}
    )
    trainer = build_trainer(here, mode=get_mode("eval"), model_dir=model_dir, save_summary=False)
    return trainer, trainer.read_checkpoint(path)


def _metadata(trainer: StagedTrainer, checkpoint: Checkpoint) -> dict[str, JSON]:
    """The step, and how the cells of the data's columns became numbers, unless the task tells that itself."""
    data = trainer.validation_data(checkpoint.step)
    columns = data.examples if isinstance(data, ExampleStream) else None
    known: dict[str, Any] = {}
    if isinstance(columns, Columns):
        known = {"categories": columns.categories, "missing": columns.missing}
    told = trainer.task.serving_metadata()
    return {"step": checkpoint.step, **{name: value for name, value in known.items() if value and name not in told}}


def _check_weights_only(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{name} is {value}, but the format hugging_face has weights only. Leave it out.")
    if find_spec("safetensors") is None:
        raise MissingPackageError("safetensors", "nlp")


def best_of_run(params: ExperimentConfig, model_dir: Path) -> Path | None:
    """The best checkpoint file of a run; None if it keeps none."""
    subdir = params.trainer.best_checkpoint_export_subdir
    return best_file(model_dir / subdir) if subdir else None
