"""A task's model, exported to be served."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trellis.aliases import JSON, PyTree
from trellis.serving import Format, ServingFunction, Signature, export_model
from trellis.tasks.bound_model import BoundModel, InferenceStep
from trellis.tasks.task import Task


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
    inputs = task.serving_inputs(inputs)
    return export_model(
        output_dir,
        variables=dict(model.variables),
        signatures={
            name: Signature(_with_variables(step, model), inputs) for name, step in task.serving_functions().items()
        },
        files=task.serving_files(),
        metadata={
            "task": task.name,
            "model": type(model.model).__name__,
            **task.serving_metadata(),
            **(metadata or {}),
        },
        batch_size=batch_size,
        platforms=platforms,
        format=format,
    )


def _with_variables(step: InferenceStep, model: BoundModel) -> ServingFunction:
    def function(variables: Mapping[str, Any], inputs: PyTree, /) -> PyTree:
        return step(inputs, model.with_variables(variables))

    return function
