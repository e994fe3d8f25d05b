"""A task's model, exported to be served, or its weights to be loaded elsewhere."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trellis.aliases import JSON, PyTree
from trellis.errors import ArgumentError
from trellis.serving import Format, LoadedModel, ServingFunction, Signature, export_model, model_in_memory
from trellis.tasks.bound_model import BoundModel, InferenceStep
from trellis.tasks.task import Task


@runtime_checkable
class HuggingFaceTask(Protocol):
    """A task whose model `transformers` has too."""

    def write_hugging_face(self, params: PyTree, *, output_dir: str | os.PathLike[str]) -> None:
        """Writes a directory that `transformers` loads: the settings, the weights, the labels, the tokenizer."""


def export_weights(task: Task, *, params: PyTree, output_dir: str | os.PathLike[str]) -> Path:
    """Writes the parameters of a task's model as a directory of Hugging Face's; returns the directory.

    Args:
        output_dir: One that is not there yet.
    """
    if not isinstance(task, HuggingFaceTask):
        raise ArgumentError(
            f"The model of {task.name} is none that Hugging Face has too: those are encoders of BERT, ALBERT and "
            f"MobileBERT with their heads. Take the format jax_export."
        )
    task.write_hugging_face(params, output_dir=output_dir)
    return Path(output_dir)


def export_task(
    task: Task,
    *,
    model: BoundModel,
    inputs: PyTree,
    output_dir: str | os.PathLike[str],
    metadata: Mapping[str, JSON] | None = None,
    batch_size: int | None = None,
    platforms: Sequence[str] | None = None,
    format: Format = "jax_export",
) -> Path:
    """Writes what `load_model` answers from: the task's serving functions with a model, and its files.

    Args:
        inputs: As `inference_step` takes them; only shapes and dtypes count.
        metadata: What to tell of the model, beside the names of the task and the model.
        batch_size: The default is any.
        platforms: The default is every one that JAX can export the model for.
        format: `saved_model` is for TensorFlow.

    Example:
        export_task(task, model=trainer.bound_model(checkpoint), inputs=images, output_dir="served/digits")
    """
    return export_model(
        output_dir,
        variables=dict(model.variables),
        signatures=_signatures(task, model, inputs),
        files=task.serving_files(),
        metadata=_metadata(task, model, metadata),
        batch_size=batch_size,
        platforms=platforms,
        format=format,
    )


def task_in_memory(
    task: Task, *, model: BoundModel, inputs: PyTree, metadata: Mapping[str, JSON] | None = None, batch_size: int
) -> LoadedModel:
    """The task's serving functions with a model, as they would answer if they were exported; nothing is written.

    Args:
        inputs: As `inference_step` takes them; only shapes and dtypes count.
        metadata: What to tell of the model, beside the names of the task and the model.
        batch_size: That of all batches.
    """
    return model_in_memory(
        variables=dict(model.variables),
        signatures=_signatures(task, model, inputs),
        metadata=_metadata(task, model, metadata),
        batch_size=batch_size,
    )


def _signatures(task: Task, model: BoundModel, inputs: PyTree) -> dict[str, Signature]:
    served = task.serving_inputs(inputs)
    return {name: Signature(_with_variables(step, model), served) for name, step in task.serving_functions().items()}


def _metadata(task: Task, model: BoundModel, metadata: Mapping[str, JSON] | None) -> dict[str, JSON]:
    return {"task": task.name, "model": type(model.model).__name__, **task.serving_metadata(), **(metadata or {})}


def _with_variables(step: InferenceStep, model: BoundModel) -> ServingFunction:
    def function(variables: Mapping[str, Any], inputs: PyTree, /) -> PyTree:
        return step(inputs, model.with_variables(variables))

    return function
