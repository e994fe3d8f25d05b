"""Step 0 with parameters from elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Variables
from trellis.errors import CheckpointFileError, CheckpointMismatchError
from trellis.extensions import checkpoint_storage as storage, newest_file
from trellis.remote import fetched
from trellis.tasks.bound_model import BoundModel, ModelWithItems


def read_warm_start(init_checkpoint: str, *, model: BoundModel) -> Variables:
    """The model's variables, with the parameters of a checkpoint file in the place of its own.

    A model with `checkpoint_items` takes those parts only, from where the file has them; any other takes everything.
    What is to be taken must be in the file, of the same shape; what else the file holds does not matter.

    Args:
        init_checkpoint: A checkpoint file, or a directory whose newest one is meant; empty for none.
    """
    if not init_checkpoint:
        return model.variables
    path = _find(fetched(init_checkpoint, name="task.init_checkpoint"))
    tree: dict[str, str] = storage.read_manifest(path)["tree"]
    sources = _sources(model)
    _check(path, tree, {source: storage.describe(leaf) for source, leaf in sources.values()})
    arrays = storage.read_arrays(path, {source: tree[source] for source, _ in sources.values()})

    def pick(at: Any, leaf: Any) -> Any:
        source, _ = sources.get(_name(at), (None, leaf))
        return leaf if source is None else jnp.asarray(arrays[source], leaf.dtype)

    variables: Variables = jax.tree_util.tree_map_with_path(pick, dict(model.variables))
    return variables


def _find(path: Path) -> Path:
    if storage.is_checkpoint_file(path):
        return path
    newest = newest_file(path)
    if newest is None:
        what = "holds no checkpoint file" if path.is_dir() else "does not exist"
        raise CheckpointFileError(
            f"task.init_checkpoint: `{path}` {what}. Give a checkpoint file, such as …/regular_1000, or the model_dir "
            f"of a run."
        )
    return newest


def _sources(model: BoundModel) -> dict[str, tuple[str, np.ndarray]]:
    """By the name of each variable that is taken: where the file has it, and the variable."""
    variables = model.variables
    items = {"": ""}
    if isinstance(model.model, ModelWithItems):
        variables = {"params": model.params}
        items = {
            source.replace(".", "/"): target.replace(".", "/")
            for source, target in model.model.checkpoint_items.items()
        }
    sources = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(variables)):
        name = _name(path)
        collection, _, inner = name.partition("/")
        tree = "model_params" if collection == "params" else f"model_state/{collection}"
        for source, target in items.items():
            if not target or inner == target or inner.startswith(f"{target}/"):
                rest = inner[len(target) :].lstrip("/")
                sources[name] = ("/".join(part for part in (tree, source, rest) if part), leaf)
    return sources


def _check(path: Path, tree: Mapping[str, str], needed: Mapping[str, str]) -> None:
    differing = [name for name in sorted(needed) if tree.get(name) != needed[name]]
    if not needed:
        raise CheckpointMismatchError(f"The model's checkpoint_items name nothing that it has, to take from `{path}`.")
    if differing:
        raise CheckpointMismatchError(
            f"task.init_checkpoint: `{path}` lacks what the model takes:\n{storage.compare(tree, needed, differing)}\n"
            f"Give a file of the same model, or let the model's checkpoint_items name the parts that the file has."
        )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
