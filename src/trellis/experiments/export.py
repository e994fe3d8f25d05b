"""A run's model, exported to be served, or its weights to be loaded elsewhere."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from trellis.errors import ArgumentError, MissingPackageError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.mode import get_mode
from trellis.experiments.run import build_trainer
from trellis.extensions import best_file, checkpoint_storage
from trellis.runtime import MeshConfig
from trellis.serving import check_format
from trellis.tasks import export_task, export_weights

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
    path = best_of_run(params, Path(model_dir)) if checkpoint_file is None else Path(checkpoint_file)
    if path is not None and not checkpoint_storage.is_checkpoint_file(path):
        raise ArgumentError(f"`{path}` is no checkpoint file. Give one, such as {Path(model_dir) / 'regular_1000'}.")
    # A file is read on any devices: how the run had arranged its own says nothing of those that are here.
    here = params.replace(
        runtime={"distribution_strategy": "one_device", "num_gpus": 0, "mesh": MeshConfig().as_dict()}
    )
    trainer = build_trainer(here, mode=get_mode("eval"), model_dir=Path(model_dir), save_summary=False)
    checkpoint = trainer.read_checkpoint(path)
    if format == "hugging_face":
        return export_weights(trainer.task, params=trainer.bound_model(checkpoint).params, output_dir=output_dir)
    return export_task(
        trainer.task,
        model=trainer.bound_model(checkpoint),
        inputs=trainer.inference_inputs(checkpoint.step),
        output_dir=output_dir,
        metadata={"step": checkpoint.step},
        batch_size=batch_size,
        platforms=platforms,
        format=format,
    )


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
