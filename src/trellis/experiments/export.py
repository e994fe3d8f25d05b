"""A run's model: exported to be served, asked where it is, or its weights to be loaded elsewhere."""

import os
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from trellis.aliases import JSON
from trellis.data import Columns, ExampleStream
from trellis.disk import scratch_directory
from trellis.errors import ArgumentError, DataError, MissingPackageError, RegistryError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.mode import get_mode
from trellis.experiments.overrides import read_params
from trellis.experiments.reports import params_text
from trellis.experiments.run import build_trainer, find_checkpoint
from trellis.extensions import best_file, checkpoint_storage
from trellis.loops import Checkpoint
from trellis.runtime import MeshConfig
from trellis.serving import (
    ARRAY_BATCH_SIZE,
    MADE_FROM,
    ArrayPredictor,
    Refreshed,
    check_format,
    find_served_model,
    load_model,
    read_to_refresh,
)
from trellis.tasks import (
    TaskConfig,
    export_adapters,
    export_task,
    export_weights,
    made_by,
    refresh_task,
    task_in_memory,
    with_addresses,
)
from trellis.trainer import StagedTrainer

ExportFormat = Literal["jax_export", "saved_model", "hugging_face", "peft"]
"""What a run is exported as: a served model of ours or of TensorFlow's, weights that `transformers` loads, or adapters
that PEFT loads."""
_OF_WEIGHTS = ("hugging_face", "peft")


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
        format: `saved_model` is for TensorFlow, `hugging_face` for `transformers`, `peft` has the adapters of a run
            alone. In all others they are merged into the weights.

    Example:
        export_experiment(params, model_dir="runs/digits", output_dir="served/digits")
        logits = trellis.load_model("served/digits")(images)
    """
    if format in _OF_WEIGHTS:
        _check_weights_only(format, batch_size=batch_size, platforms=platforms)
    else:
        check_format(format)
    trainer, checkpoint = _read_run(params, Path(model_dir), checkpoint_file)
    if format == "hugging_face":
        return export_weights(trainer.task, params=trainer.bound_model(checkpoint).params, output_dir=output_dir)
    if format == "peft":
        return export_adapters(
            trainer.task,
            trained=trainer.trained_params(checkpoint),
            params=trainer.bound_model(checkpoint).params,
            config=params.trainer.lora,
            output_dir=output_dir,
        )
    return export_task(
        trainer.task,
        model=trainer.bound_model(checkpoint),
        inputs=trainer.inference_inputs(checkpoint.step),
        output_dir=output_dir,
        metadata=_metadata(trainer, checkpoint),
        batch_size=batch_size,
        platforms=platforms,
        format=format,
        params_yaml=_answering_params(params, trainer),
    )


def refresh_export(directory: str | os.PathLike[str]) -> Refreshed:
    """Puts a new program in the place of an exported model's, made by the code and the JAX that are here.

    It has to answer the questions beside the model as the old one did; else an error says why not, and the old one
    stays. Experiments of one's own have to be registered.

    Args:
        directory: What `trellis export` wrote, or one with numbered versions of it, of which the newest is meant.

    Example:
        refresh_export("served/digits")
    """
    to_refresh = read_to_refresh(directory)
    module = made_by(to_refresh)
    try:
        params = read_params(to_refresh.directory / MADE_FROM)
    except (ArgumentError, RegistryError) as error:
        error.add_note(f"`{to_refresh.directory}` is left as it is. Its task is of the module {module}.")
        if not module.startswith("trellis."):
            error.add_note(f"It needs that code: --module={module}, or the path of its file.")
        raise
    with scratch_directory() as scratch:
        trainer = build_trainer(_on_one_device(params), mode=get_mode("eval"), model_dir=scratch, save_summary=False)
        step = to_refresh.manifest.metadata.get("step")
        build = partial(trainer.model_with, step=step if isinstance(step, int) else 0)
        return refresh_task(trainer.task, to_refresh=to_refresh, build_model=build)


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
    trainer = build_trainer(_on_one_device(params), mode=get_mode("eval"), model_dir=model_dir, save_summary=False)
    return trainer, trainer.read_checkpoint(path)


def _answering_params(params: ExperimentConfig, trainer: StagedTrainer) -> str:
    """The config with which a served model can be made again; empty if its task has one that no file tells."""
    config = trainer.task.answering_config()
    return params_text(params.replace(task=with_addresses(config))) if isinstance(config, TaskConfig) else ""


def _on_one_device(params: ExperimentConfig) -> ExperimentConfig:
    """The config for a run that only answers: how one had arranged its devices says nothing of those that are here."""
    return params.replace(
        runtime={"distribution_strategy": "one_device", "num_gpus": 0, "mesh": MeshConfig().as_dict()}
    )


def _metadata(trainer: StagedTrainer, checkpoint: Checkpoint) -> dict[str, JSON]:
    """The step, and how the cells of the data's columns became numbers, unless the task tells that itself."""
    data = trainer.validation_data(checkpoint.step)
    columns = data.examples if isinstance(data, ExampleStream) else None
    known: dict[str, Any] = {}
    if isinstance(columns, Columns):
        known = {"categories": columns.categories, "missing": columns.missing}
    told = trainer.task.serving_metadata()
    return {"step": checkpoint.step, **{name: value for name, value in known.items() if value and name not in told}}


def _check_weights_only(format: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{name} is {value}, but the format {format} has weights only. Leave it out.")
    if find_spec("safetensors") is None:
        raise MissingPackageError("safetensors", "nlp")


def best_of_run(params: ExperimentConfig, model_dir: Path) -> Path | None:
    """The best checkpoint file of a run; None if it keeps none."""
    subdir = params.trainer.best_checkpoint_export_subdir
    return best_file(model_dir / subdir) if subdir else None
