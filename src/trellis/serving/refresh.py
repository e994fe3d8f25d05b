"""A served model, made new by the JAX that is here, if that answers as it did when it was first written."""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from trellis.aliases import PyTree
from trellis.disk import exchange, files_in, hidden_path, local_path, remove_whole, sweep, sync, sync_all
from trellis.errors import ServedModelError
from trellis.serving.export import Signature, build_manifest, export_functions, write_jax_export
from trellis.serving.manifest import (
    FILES_OF,
    MADE_FROM,
    MANIFEST,
    PARAMETERS,
    Manifest,
    find_served_model,
    read_manifest,
)
from trellis.serving.questions import QUESTIONS, ask, differences, stored_inputs, tolerance_of
from trellis.serving.tensor_file import read_tensors

_AGAIN = "Export it again from its run: trellis export --model_dir=RUN --output_dir=DIR"
_MOST_LISTED = 5


@dataclass(frozen=True)
class Refreshed:
    """What was made new."""

    directory: Path
    before: Manifest
    after: Manifest
    n_answers: int
    """How many arrays of answers were compared."""
    dtype: str
    """The coarsest type of number that it computes in."""
    tolerance: float
    """How far apart answers might have been, as a part of the greatest of an array."""


@dataclass(frozen=True)
class ModelToRefresh:
    """A served model, with all that its maker has left beside it."""

    directory: Path
    manifest: Manifest
    arrays: Mapping[str, np.ndarray]
    made_from: Mapping[str, bytes]
    """Files that tell how its functions were made."""

    @property
    def variables(self) -> PyTree:
        """The variables as a nested mapping."""
        nested: dict[str, Any] = {}
        for name, array in self.arrays.items():
            *groups, last = name.split("/")
            level = nested
            for group in groups:
                level = level.setdefault(group, {})
            kind = self.manifest.random_keys.get(name)
            level[last] = array if kind is None else jax.random.wrap_key_data(jnp.asarray(array), impl=kind)
        return nested


def read_to_refresh(directory: str | os.PathLike[str]) -> ModelToRefresh:
    """Reads a served model that can be made new; an error says why another cannot. Nothing is unpickled or run.

    Args:
        directory: That of the model, or one with numbered versions, of which the newest is meant.
    """
    folder = local_path(directory, name="--refresh")
    _put_back(folder)
    path = find_served_model(folder)
    if path is None and (folder / "saved_model.pb").is_file():
        raise ServedModelError(f"`{folder}` is a SavedModel, which does not expire: TensorFlow reads old ones.")
    path = path or folder
    manifest = read_manifest(path)
    if QUESTIONS not in manifest.checksums:
        raise ServedModelError(
            f"`{path}` was written by a Trellis that kept no questions and answers beside a model, so nothing could "
            f"prove that a new program answers as this one does. It is left as it is. {_AGAIN}"
        )
    names = [name for name in manifest.checksums if name.startswith(f"{MADE_FROM}/")]
    made_from = {name.removeprefix(f"{MADE_FROM}/"): (path / name).read_bytes() for name in names}
    return ModelToRefresh(path, manifest=manifest, arrays=read_tensors(path / PARAMETERS), made_from=made_from)


def refresh_model(model: ModelToRefresh, *, signatures: Mapping[str, Signature]) -> Refreshed:
    """Puts a new program in the place of a served model's own, if it answers the questions beside it as that did.

    The weights, the files, the metadata, and the questions with their first answers stay. If answers differ, or
    anything else goes wrong, the model that was there stays. At every moment one of the two is there, whole.

    Args:
        signatures: Functions of the variables and of inputs, by the names that the model has.

    Example:
        model = read_to_refresh("served/digits")
        refresh_model(model, signatures={"inference_step": Signature(digits.apply, images)})
    """
    before = model.manifest
    if set(signatures) != set(before.signatures):
        raise _refusal(model, f"it has {', '.join(before.signatures)}, and its code has {', '.join(signatures)} now.")
    ordered = {name: signatures[name] for name in before.signatures}
    size = next(iter(before.signatures.values())).inputs[0].shape[0]
    _, exported = export_functions(
        model.variables,
        ordered,
        batch_size=size if isinstance(size, int) else None,
        platforms=before.platforms,
    )
    after = build_manifest(exported, before.metadata, random_keys=before.random_keys)
    after = replace(after, default_signature=before.default_signature)
    for name, spec in after.signatures.items():
        if spec != before.signatures[name]:
            listed = "; ".join(_changes(before.signatures[name], spec))
            raise _refusal(model, f"{name} takes or returns other arrays now: {listed}.")
    questions = read_tensors(model.directory / QUESTIONS)
    dtype, tolerance = tolerance_of(_dtypes(model, exported))
    found = [
        difference
        for name, function in exported.items()
        for difference in differences(
            name,
            after.signatures[name],
            stored=questions,
            outputs=_answers(model, name, function, questions),
            tolerance=tolerance,
        )
    ]
    if found:
        listed = "; ".join(map(str, found[:_MOST_LISTED]))
        raise _refusal(model, f"its answers are not what they were ({dtype}): {listed}.")
    _replace(model, exported=exported, manifest=after, questions=questions)
    n_answers = sum(len(spec.outputs) for spec in after.signatures.values())
    return Refreshed(model.directory, before=before, after=after, n_answers=n_answers, dtype=dtype, tolerance=tolerance)


def _answers(
    model: ModelToRefresh, name: str, function: export.Exported, questions: Mapping[str, np.ndarray]
) -> PyTree:
    platform = export.default_export_platform()
    if platform not in function.platforms:
        raise ServedModelError(
            f"`{model.directory}` is for {', '.join(function.platforms)}, and this process runs on {platform}, so its "
            f"answers cannot be compared. Refresh it where it runs."
        )
    spec = model.manifest.signatures[name]
    try:
        leaves = stored_inputs(name, spec, questions)
    except KeyError:
        raise _refusal(
            model, f"there are no questions to {name}: where it was exported, it could not be run."
        ) from None
    (_, shapes), _ = jax.tree.unflatten(function.in_tree, function.in_avals)
    return ask(function, model.arrays, jax.tree.unflatten(jax.tree.structure(shapes), leaves))


def _refusal(model: ModelToRefresh, reason: str) -> ServedModelError:
    return ServedModelError(
        f"`{model.directory}` was not refreshed, and is left as it is: {reason} Refresh it with the code and the "
        f"settings that it was made with. {_AGAIN}"
    )


def _changes(before: Any, after: Any) -> Iterator[str]:
    for side in ("inputs", "outputs"):
        old, new = (", ".join(map(str, getattr(spec, side))) for spec in (before, after))
        if old != new:
            yield f"{side} were {old}, and are {new}"


def _dtypes(model: ModelToRefresh, exported: Mapping[str, export.Exported]) -> Iterator[str]:
    """Yields the types of all numbers that a model computes in."""
    yield from (array.dtype.name for array in model.arrays.values())
    yield from (leaf.dtype.name for function in exported.values() for leaf in function.out_avals)
    for function in exported.values():
        program = function.mlir_module()
        yield from (name for text, name in (("xbf16>", "bfloat16"), ("xf16>", "float16")) if text in program)


def _replace(
    model: ModelToRefresh, *, exported: Mapping[str, export.Exported], manifest: Manifest, questions: Mapping[str, Any]
) -> None:
    """Puts a new program, with all else that lies beside it, in the place of the old one, in one step."""
    path = model.directory.absolute()
    sweep(path.parent)
    new = hidden_path(path.parent)
    new.mkdir()
    try:
        files = FILES_OF["jax_export"]
        if (path / files).is_dir():
            shutil.copytree(path / files, new / files)
        write_jax_export(
            new,
            arrays=model.arrays,
            exported=exported,
            manifest=manifest,
            questions=questions,
            made_from=model.made_from,
        )
        # What others have put there belongs to no manifest, and goes along as it is.
        known = {*model.manifest.checksums, MANIFEST}
        for file in files_in(path):
            name = file.relative_to(path)
            if name.as_posix() not in known:
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, new / name)
        shutil.copymode(path, new)
        sync_all(new)
        if not exchange(new, path):
            # Not in one step, then. If this process is killed between these two, the next refresh does the second.
            path.rename(_aside(path))
            new.rename(path)
            remove_whole(_aside(path))
        sync(path.parent)
    finally:
        if new.exists():
            remove_whole(new)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.before-refresh")


def _put_back(path: Path) -> None:
    aside = _aside(path.absolute())
    if aside.is_dir() and not path.exists():
        aside.rename(path)
