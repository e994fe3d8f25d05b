"""Step 0 with parameters from elsewhere."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Variables
from trellis.errors import CheckpointFileError, CheckpointMismatchError
from trellis.extensions import checkpoint_storage as storage, newest_file
from trellis.optimizers import check_matches, matches, parameter_paths
from trellis.remote import fetched
from trellis.runtime import print_line
from trellis.serving import find_parameters, read_parameters
from trellis.tasks.bound_model import BoundModel, ModelWithItems
from trellis.tasks.configs import BASE

_FINGERPRINT = f"model_state/{BASE}/fingerprint"
PARTS = "task.init_parts"
"""Where a config names the parts of a model that a warm start takes."""


def read_warm_start(init_checkpoint: str, *, model: BoundModel, parts: Sequence[str] = ()) -> Variables:
    """The model's variables, with those of a checkpoint file or of a served model in the place of its own.

    Without `parts` a model with `checkpoint_items` takes these, and any other everything. What is to be taken must be
    there, of the same shape; what else is there does not matter. A line tells what was taken and what is new.

    Args:
        init_checkpoint: A checkpoint file, a directory of some, of which the newest is meant, or a served model; empty
            for none.
        parts: The paths of what is taken, as patterns. Items are taken from where they are, all else from its own path.
    """
    if not init_checkpoint:
        return model.variables
    check_parts(parts, model=model)
    source = _read_source(fetched(init_checkpoint, name="task.init_checkpoint"))
    names = _source_names(model, parts)
    leaves = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(model.variables))}
    _check(source, {theirs: storage.describe(leaves[own]) for own, theirs in names.items()}, model)
    arrays = source.read([*names.values()])
    tell_warm_start(str(source.path), taken=names, own=leaves)

    def pick(at: Any, leaf: Any) -> Any:
        theirs = names.get(_name(at))
        return leaf if theirs is None else jnp.asarray(arrays[theirs], leaf.dtype)

    variables: Variables = jax.tree_util.tree_map_with_path(pick, dict(model.variables))
    return variables


def check_parts(parts: Sequence[str], *, model: BoundModel) -> None:
    """Raises an error if a pattern names nothing that a model has."""
    paths = [path for tree in model.variables.values() for path in parameter_paths(tree)]
    for pattern in parts:
        check_matches(pattern, paths, place=PARTS)


def tell_warm_start(source: str, *, taken: Collection[str], own: Collection[str]) -> None:
    """Prints which parts of a model come from elsewhere and which are new.

    Args:
        taken: The names of variables, such as `params/encoder/kernel`.
        own: The names of all variables of the model.
    """
    new = [name for name in own if name not in taken]
    print_line(f"Weights of `{source}` are taken: {_parts(taken, new)}; new are {_parts(new, taken)}.")


def _parts(names: Collection[str], others: Collection[str]) -> str:
    """The parts of a model that some variables make up, named by as little as tells them from the others."""
    mixed = {_beginning(name, 1) for name in others}
    parts = {_beginning(name, 2 if _beginning(name, 1) in mixed else 1) for name in names}
    return ", ".join(sorted(parts)) or "none"


def _beginning(name: str, n_names: int) -> str:
    """The first names of a variable's path, without that of its collection."""
    return "/".join(name.split("/")[1 : 1 + n_names])


@dataclass(frozen=True)
class _Source:
    """Arrays that are there to be taken."""

    path: Path
    tree: Mapping[str, str]
    """The dtype and shape of each, by the path that a checkpoint file has for it."""
    arrays: Mapping[str, np.ndarray] | None = None
    """None if they are those of a checkpoint file."""

    def read(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """The arrays of some names."""
        if self.arrays is not None:
            return self.arrays
        return storage.read_arrays(self.path, {name: self.tree[name] for name in names})


def _read_source(path: Path) -> _Source:
    served = find_parameters(path)
    if served is not None:
        arrays = {_in_file(name): array for name, array in read_parameters(served).items()}
        return _Source(served, {name: storage.describe(array) for name, array in arrays.items()}, arrays)
    file = path if storage.is_checkpoint_file(path) else newest_file(path) or _newest_of_any_kind(path)
    if file is None:
        what = "holds no checkpoint file" if path.is_dir() else "does not exist"
        raise CheckpointFileError(
            f"task.init_checkpoint: `{path}` {what}. Give a checkpoint file, such as …/regular_1000, or the model_dir "
            f"of a run."
        )
    try:
        return _Source(file, storage.read_manifest(file)["tree"])
    except CheckpointMismatchError:
        raise
    except CheckpointFileError as error:
        raise CheckpointFileError(
            f"task.init_checkpoint: `{file}` is damaged: {error}. Give another file, such as one of an earlier step."
        ) from None


def _newest_of_any_kind(directory: Path) -> Path | None:
    """The checkpoint file in a directory that was written last, such as the best of a run."""
    folders = [path for path in directory.glob("[!.]*") if storage.is_checkpoint_file(path)]
    return max(folders, key=storage.written_at, default=None)


def _source_names(model: BoundModel, parts: Sequence[str]) -> dict[str, str]:
    """The path that the file has for each variable that is taken, by names such as `params/encoder/kernel`."""
    items: dict[str, str] = {}
    if isinstance(model.model, ModelWithItems):
        items = {
            target.replace(".", "/"): theirs.replace(".", "/")
            for theirs, target in model.model.checkpoint_items.items()
        }
    takes_all = not parts and not isinstance(model.model, ModelWithItems)
    names = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(dict(model.variables)):
        name = _name(path)
        collection, _, inner = name.partition("/")
        item = next((target for target in items if inner == target or inner.startswith(f"{target}/")), None)
        is_item = item is not None and collection == "params"
        if takes_all or (matches(inner, parts) if parts else is_item):
            theirs = f"{items[str(item)]}{inner[len(str(item)) :]}" if is_item else inner
            names[name] = _in_file("/".join(part for part in (collection, theirs) if part))
    return names


def _in_file(name: str) -> str:
    """The path that a checkpoint file has for a variable."""
    collection, _, inner = name.partition("/")
    tree = "model_params" if collection == "params" else f"model_state/{collection}"
    return f"{tree}/{inner}" if inner else tree


def _check(source: _Source, needed: Mapping[str, str], model: BoundModel) -> None:
    differing = [name for name in sorted(needed) if source.tree.get(name) != needed[name]]
    if not needed:
        raise CheckpointMismatchError(
            f"The model's checkpoint_items name nothing that it has, to take from `{source.path}`."
        )
    if not differing:
        return
    if _FINGERPRINT in source.tree:
        raise CheckpointMismatchError(
            f"task.init_checkpoint: `{source.path}` holds adapters alone (trainer.lora), not the weights beside which "
            f"they were trained. Export the run, which merges them, and give what `trellis export` has written."
        )
    fitting = _fitting_parts(source, model)
    advice = f"take the parts that fit: --set={PARTS}=[{','.join(fitting)}]" if fitting else f"name others in {PARTS}"
    raise CheckpointMismatchError(
        f"task.init_checkpoint: `{source.path}` lacks what the model takes:\n"
        f"{storage.compare(source.tree, needed, differing)}\n"
        f"Give a file of the same model, or {advice}."
    )


def _fitting_parts(source: _Source, model: BoundModel) -> list[str]:
    """The parts of a model that are there as they are."""
    fits: dict[str, bool] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(model.variables)):
        name = _name(path)
        part = _beginning(name, 1)
        fits[part] = fits.get(part, True) and source.tree.get(_in_file(name)) == storage.describe(leaf)
    return [part for part, is_fitting in fits.items() if is_fitting]


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
