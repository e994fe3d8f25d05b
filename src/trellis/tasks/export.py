"""A task's model, exported to be served, or its weights to be loaded elsewhere."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from trellis.aliases import JSON, PyTree, Variables
from trellis.errors import ArgumentError, ServedModelError, TrellisError
from trellis.json_text import parse_json
from trellis.serving import (
    Format,
    LoadedModel,
    ModelToRefresh,
    Refreshed,
    ServingFunction,
    Signature,
    export_model,
    model_in_memory,
    refresh_model,
)
from trellis.tasks.adapters import PeftTask
from trellis.tasks.bound_model import BoundModel, InferenceStep
from trellis.tasks.configs import LoraConfig
from trellis.tasks.task import Task

PARAMS = "params.yaml"
_INPUTS = "inputs.json"


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
            f"The model of {task.name} is none that Hugging Face has too: those are encoders of text, such as BERT, "
            f"with their heads. Take the format jax_export."
        )
    task.write_hugging_face(params, output_dir=output_dir)
    return Path(output_dir)


def export_adapters(
    task: Task,
    *,
    trained: PyTree,
    params: PyTree,
    config: LoraConfig | None,
    output_dir: str | os.PathLike[str],
) -> Path:
    """Writes the adapters of a task's model as a directory of PEFT's; returns the directory.

    Args:
        trained: The parameters that were trained.
        params: All parameters of the model.
        config: What the adapters were trained as; None if there are none.
        output_dir: One that is not there yet.
    """
    if config is None:
        raise ArgumentError(
            "The run has trained no adapters (trainer.lora is null), so there are none to write. Take the format "
            "hugging_face for the whole model."
        )
    if not isinstance(task, PeftTask):
        raise ArgumentError(
            f"The model of {task.name} is none that PEFT has too: those are encoders that transformers has as well, "
            f"with their heads. Take the format jax_export, which has the adapters merged."
        )
    task.write_peft(trained, params=params, config=config, output_dir=output_dir)
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
    params_yaml: str = "",
) -> Path:
    """Writes what `load_model` answers from: the task's serving functions with a model, and its files.

    Args:
        inputs: As `inference_step` takes them; shapes, dtypes, and the least and the greatest values count.
        metadata: What to tell of the model, beside the names of the task and the model.
        batch_size: The default is any.
        platforms: The default is every one that JAX can export the model for.
        format: `saved_model` is for TensorFlow.
        params_yaml: The config of the experiment, with which the model can be made again.

    Example:
        export_task(task, model=trainer.bound_model(checkpoint), inputs=images, output_dir="served/digits")
    """
    served = task.serving_inputs(inputs)
    return export_model(
        output_dir,
        variables=dict(model.variables),
        signatures=_signatures(task, model, served),
        files=task.serving_files(),
        metadata=_metadata(task, model, metadata),
        batch_size=batch_size,
        platforms=platforms,
        format=format,
        made_from=_made_from(task, served, params_yaml) if params_yaml else None,
    )


def refresh_task(
    task: Task, *, to_refresh: ModelToRefresh, build_model: Callable[[Variables], BoundModel]
) -> Refreshed:
    """Puts the program of a task's code of today in the place of a served model's, if it answers as that did.

    Args:
        build_model: Makes the task's model with the variables of the one that is served.
    """
    try:
        served = _tree_of(parse_json(to_refresh.made_from[_INPUTS])["inputs"])
        model = build_model(to_refresh.variables)
        signatures = _signatures(task, model, served)
        return refresh_model(to_refresh, signatures=signatures)
    except TrellisError:
        raise
    except Exception as error:  # noqa: BLE001  (it is raised, as another: the code may be of any later time)
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ServedModelError(
            f"`{to_refresh.directory}` was not refreshed, and is left as it is: the code of {task.name}, as it is now, "
            f"cannot run its weights ({type(error).__name__}: {reason:.200}). Refresh it with the code that it was "
            f"made with."
        ) from None


def made_by(to_refresh: ModelToRefresh) -> str:
    """The module that has the code of a served model's task; an error if no task has made it."""
    try:
        return str(parse_json(to_refresh.made_from[_INPUTS])["module"])
    except KeyError:
        raise ServedModelError(
            f"`{to_refresh.directory}` was written by export_model, and not of an experiment: what made its functions "
            f"is not known here. Export it again with the script that did, or give the functions: "
            f"serving.refresh_model(serving.read_to_refresh(directory), signatures={{…}})"
        ) from None
    except (TypeError, ValueError) as error:
        raise ServedModelError(f"`{to_refresh.directory}`: {_INPUTS} cannot be read ({error!r:.80}).") from None


def _made_from(task: Task, served: PyTree, params_yaml: str) -> dict[str, bytes]:
    """What a refresh reads: the config, and what the serving functions take."""
    shapes = jax.eval_shape(lambda tree: tree, served)
    content = {"module": type(task).__module__, "inputs": _plain(shapes)}
    return {PARAMS: params_yaml.encode(), _INPUTS: f"{json.dumps(content, indent=1)}\n".encode()}


def _plain(tree: PyTree) -> JSON:
    """A tree of shapes in JSON: mappings as they are, lists and tuples under a name of their kind."""
    if isinstance(tree, Mapping):
        return {"mapping": {str(name): _plain(value) for name, value in tree.items()}}
    if isinstance(tree, list | tuple):
        return {"list" if isinstance(tree, list) else "tuple": [_plain(value) for value in tree]}
    return {"dtype": tree.dtype.name, "shape": list(tree.shape)}


def _tree_of(plain: Any) -> PyTree:
    if "mapping" in plain:
        return {name: _tree_of(value) for name, value in plain["mapping"].items()}
    for name, kind in (("list", list), ("tuple", tuple)):
        if name in plain:
            return kind(_tree_of(value) for value in plain[name])
    return jax.ShapeDtypeStruct(tuple(plain["shape"]), jnp.dtype(plain["dtype"]))


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
        signatures=_signatures(task, model, task.serving_inputs(inputs)),
        metadata=_metadata(task, model, metadata),
        batch_size=batch_size,
    )


def _signatures(task: Task, model: BoundModel, served: PyTree) -> dict[str, Signature]:
    return {name: Signature(_with_variables(step, model), served) for name, step in task.serving_functions().items()}


def _metadata(task: Task, model: BoundModel, metadata: Mapping[str, JSON] | None) -> dict[str, JSON]:
    return {"task": task.name, "model": type(model.model).__name__, **task.serving_metadata(), **(metadata or {})}


def _with_variables(step: InferenceStep, model: BoundModel) -> ServingFunction:
    def function(variables: Mapping[str, Any], inputs: PyTree, /) -> PyTree:
        return step(inputs, model.with_variables(variables))

    return function
