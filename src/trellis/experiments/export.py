"""A run's model, exported to be served."""

import os
from collections.abc import Sequence
from pathlib import Path

from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.mode import get_mode
from trellis.experiments.run import build_trainer
from trellis.extensions import best_file, checkpoint_storage
from trellis.runtime import MeshConfig
from trellis.serving import Format, check_format
from trellis.tasks import export_task


def export_experiment(
    params: ExperimentConfig,
    *,
    model_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    checkpoint_file: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    platforms: Sequence[str] | None = None,
    format: Format = "jax_export",
) -> Path:
    """Writes the model of a run, with the averages of its parameters if it keeps some; returns the directory.

    The first batch of the validation data tells what the model takes.

    Args:
        checkpoint_file: The default is the best of the run if it keeps one, else its newest.
        batch_size: The default is any.
        platforms: The default is every one that JAX can export the model for.
        format: `saved_model` is for TensorFlow.

    Example:
        export_experiment(params, model_dir="runs/digits", output_dir="served/digits")
        logits = trellis.load_model("served/digits")(images)
    """
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


def best_of_run(params: ExperimentConfig, model_dir: Path) -> Path | None:
    """The best checkpoint file of a run; None if it keeps none."""
    subdir = params.trainer.best_checkpoint_export_subdir
    return best_file(model_dir / subdir) if subdir else None
