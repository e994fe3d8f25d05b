"""A model as files that answer without its code: compiled functions, parameters, and what else it needs."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from trellis.aliases import JSON, PyTree
from trellis.disk import check_free, checksum, files_in, local_path, whole_directory
from trellis.errors import ArgumentError, ModelError
from trellis.loops import batch_size as size_of_batch
from trellis.runtime import print_line
from trellis.serving.manifest import (
    BATCH,
    FILES_OF,
    MADE_FROM,
    PARAMETERS,
    ArraySpec,
    Format,
    Manifest,
    SignatureSpec,
    check_format,
    digest,
)
from trellis.serving.questions import QUESTIONS, as_arrays, ask, draw_questions
from trellis.serving.saved_model import write_saved_model
from trellis.serving.tensor_file import can_store, write_tensors
from trellis.serving.trial import note_trial
from trellis.version import __version__

PLATFORMS = ("cpu", "cuda", "tpu")
"""The platforms that a model is exported for, where JAX can."""
_PACKAGES = ("jax", "jaxlib", "flax")


class ServingFunction(Protocol):
    """What a model answers with, to be traced and compiled."""

    def __call__(self, variables: PyTree, inputs: PyTree, /) -> PyTree:
        """The outputs, as arrays in dicts, lists and tuples."""


@dataclass(frozen=True)
class Signature:
    """A function that a served model offers, and inputs for it."""

    function: ServingFunction
    inputs: PyTree
    """A batch, of any size: shapes and dtypes count, and between which values each array lies.

    Between these, questions are drawn that are kept with the answers. No example is."""


def export_model(
    output_dir: str | os.PathLike[str],
    *,
    variables: PyTree,
    signatures: Mapping[str, Signature],
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    metadata: Mapping[str, JSON] | None = None,
    batch_size: int | None = None,
    platforms: Sequence[str] | None = None,
    format: Format = "jax_export",
    made_from: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes a model that `load_model` answers from, whole or not at all; returns the directory.

    Parameters are stored once, beside the functions, which take them as an argument. Inputs in a mapping that no
    function looks at, such as labels, are left out of its signature.

    Args:
        signatures: The first is the one that the loaded model answers with if none is named.
        files: What goes along, by the name to give it: a vocabulary.
        metadata: What to tell of the model, for people and programs.
        batch_size: The default is any; a model that cannot be traced without one needs it.
        platforms: The default is all of `PLATFORMS`, or this machine's if the model has parts that run on it alone.
        format: `saved_model` is for TensorFlow, which has to be installed: `tf.saved_model.load` needs nothing else.
        made_from: Files that tell how the functions were made, for whoever makes them again.

    Example:
        export_model(
            "served/digits",
            variables={"params": checkpoint.model_params},
            signatures={"inference_step": Signature(model.apply, images)},
        )
    """
    check_format(format)
    target = local_path(output_dir, name="output_dir")
    check_free(target)
    _check_files(files or {})
    _check_platforms(platforms or ())
    if not signatures:
        raise ArgumentError("export_model was given no signatures, so there is nothing that the model could answer.")
    arrays, exported = export_functions(variables, signatures, batch_size=batch_size, platforms=platforms)
    manifest = build_manifest(exported, metadata or {}, random_keys=_random_keys(variables))
    with whole_directory(target) as directory:
        _copy_files(files or {}, directory / FILES_OF[format])
        if format == "saved_model":
            write_saved_model(directory, arrays=arrays, exported=exported, manifest=manifest)
        else:
            questions = ask_functions(exported, signatures, arrays=arrays, manifest=manifest)
            write_jax_export(
                directory,
                arrays=arrays,
                exported=exported,
                manifest=manifest,
                questions=questions,
                made_from=made_from or {},
            )
    return target


def export_functions(
    variables: PyTree,
    signatures: Mapping[str, Signature],
    *,
    batch_size: int | None = None,
    platforms: Sequence[str] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, export.Exported]]:
    """The arrays of variables by path, and each signature as a function of those and of inputs.

    Args:
        batch_size: None is any.
        platforms: None is all of `PLATFORMS`, where that can be.
    """
    arrays, rebuild = _named_arrays(variables)
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()}
    exported = {
        name: _export(signature, shapes, rebuild, name=name, batch_size=batch_size, platforms=platforms)
        for name, signature in signatures.items()
    }
    return arrays, exported


def _check_files(files: Mapping[str, str | os.PathLike[str]]) -> None:
    for name, source in files.items():
        if not Path(source).is_file():
            raise ArgumentError(f"The file {name!r} cannot go along with the model: there is no file `{source}`.")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArgumentError(f"The name {name!r} for `{source}` leads out of the model's directory.")


def _check_platforms(platforms: Sequence[str]) -> None:
    for name in platforms:
        if name not in (*PLATFORMS, "rocm"):
            raise ArgumentError(f"There is no platform {name!r}. There are: {', '.join(PLATFORMS)}, rocm.")


def _named_arrays(variables: PyTree) -> tuple[dict[str, np.ndarray], Callable[[Mapping[str, Any]], PyTree]]:
    """The arrays of variables by path, and a function that makes variables of such arrays."""
    structure = jax.tree.structure(variables)
    leaves = _leaves_by_path(variables)
    # The state of a model may hold random keys, which are stored as the numbers that they are made of.
    keys = {name: jax.random.key_impl(leaf) for name, leaf in leaves.items() if _is_key(leaf)}
    arrays = {name: np.asarray(jax.random.key_data(leaf) if name in keys else leaf) for name, leaf in leaves.items()}

    def rebuild(arrays: Mapping[str, Any]) -> PyTree:
        wrapped = {name: jax.random.wrap_key_data(arrays[name], impl=kind) for name, kind in keys.items()}
        return jax.tree.unflatten(structure, [wrapped.get(name, arrays[name]) for name in leaves])

    return arrays, rebuild


def _leaves_by_path(variables: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _random_keys(variables: PyTree) -> dict[str, str]:
    leaves = _leaves_by_path(variables)
    return {name: str(jax.random.key_impl(leaf)) for name, leaf in leaves.items() if _is_key(leaf)}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _export(
    signature: Signature,
    shapes: Mapping[str, Any],
    rebuild: Callable[[Mapping[str, Any]], PyTree],
    *,
    name: str,
    batch_size: int | None,
    platforms: Sequence[str] | None,
) -> export.Exported:
    # Imported here, as it loads Flax, which a model that is only loaded does not need.
    from trellis.runtime import Placement

    # Exact: a model takes its plain formula, as JAX guarantees no kernel of cuDNN for as long as a file is kept.
    placement = Placement(jax.local_devices()[:1], exact=True)

    def call(arrays: Mapping[str, Any], inputs: PyTree) -> PyTree:
        with placement.tracing():
            return signature.function(rebuild(arrays), inputs)

    size_of_batch(signature.inputs)
    # First with the sizes of the example: an error that is raised here is the function's own.
    example = jax.eval_shape(lambda tree: tree, signature.inputs)
    jax.eval_shape(call, shapes, example)
    used, function = _without_unused(call, shapes, example, name=name)
    (symbol,) = export.symbolic_shape(BATCH) if batch_size is None else (batch_size,)
    inputs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((symbol, *leaf.shape[1:]), leaf.dtype), used)
    try:
        jax.eval_shape(function, shapes, inputs)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"{name} cannot be exported for batches of {batch_size or 'any size'}: {reason} Give a batch_size that it "
            f"takes, or let it use x.shape[0] where it needs the size of a batch as a number."
        ) from error
    targets = tuple(platforms or PLATFORMS)
    try:
        return _lowered(function, shapes, inputs, name=name, platforms=targets)
    except ModelError as error:
        own = export.default_export_platform()
        if platforms or targets == (own,):
            raise
        exported = _lowered(function, shapes, inputs, name=name, platforms=(own,))
        print_line(f"{name} is exported for {own} alone. {error}")
        return exported


def _lowered(
    function: Callable[[Any, Any], PyTree],
    shapes: Mapping[str, Any],
    inputs: PyTree,
    *,
    name: str,
    platforms: Sequence[str],
) -> export.Exported:
    """What JAX makes of a function for platforms; an error has JAX's first line, as pages of a program follow it."""
    try:
        return export.export(jax.jit(function), platforms=platforms)(shapes, inputs)
    except Exception as error:  # noqa: BLE001  (it is raised, as another)
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        # Nobody has to know what JAX translates to.
        reason = first_line.replace("MLIR translation rule", "rule")[:300].rstrip(".")
        raise ModelError(
            f"{name} cannot be exported for {', '.join(platforms)}: JAX says: {reason}. Write it with operations of "
            f"jax.numpy and jax.lax alone, without callbacks such as jax.debug.print, or choose platforms that have "
            f"all of its operations."
        ) from None


def _without_unused(
    call: Callable[[Any, Any], PyTree], shapes: Mapping[str, Any], inputs: PyTree, *, name: str
) -> tuple[PyTree, Callable[[Any, Any], PyTree]]:
    """The inputs of a mapping that a function uses, and the function of those alone."""
    if not isinstance(inputs, Mapping):
        return inputs, call
    # With the sizes of an example JAX tells which arguments it has dropped.
    own = export.default_export_platform()
    used_indices = _lowered(call, shapes, inputs, name=name, platforms=(own,)).module_kept_var_idx
    leaves = jax.tree_util.tree_leaves_with_path((dict(shapes), inputs))
    used_keys = {leaves[index][0][1].key for index in used_indices if leaves[index][0][0].idx == 1}
    used = {key: value for key, value in inputs.items() if key in used_keys}
    if not used or len(used) == len(inputs):
        return inputs, call
    unused = {key: value for key, value in inputs.items() if key not in used}

    def call_with_used(arrays: Any, inputs: Mapping[str, Any]) -> PyTree:
        size = jax.tree.leaves(inputs)[0].shape[0]
        blank = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape[1:]), leaf.dtype), unused)
        return call(arrays, {**blank, **inputs})

    return used, call_with_used


def ask_functions(
    exported: Mapping[str, export.Exported],
    signatures: Mapping[str, Signature],
    *,
    arrays: Mapping[str, np.ndarray],
    manifest: Manifest,
) -> dict[str, np.ndarray]:
    """Questions to functions, drawn at random, and their answers; none for a function that this machine cannot run."""
    stored: dict[str, np.ndarray] = {}
    for name, function in exported.items():
        (_, shapes), _ = jax.tree.unflatten(function.in_tree, function.in_avals)
        if export.default_export_platform() not in function.platforms:
            continue
        if not all(can_store(leaf.dtype) for leaf in (*jax.tree.leaves(shapes), *function.out_avals)):
            continue
        example = signatures[name].inputs
        if isinstance(example, Mapping):
            example = {key: example[key] for key in shapes}
        size = jax.tree.leaves(shapes)[0].shape[0]
        inputs = draw_questions(shapes, example, batch_size=size if isinstance(size, int) else None)
        stored |= as_arrays(name, manifest.signatures[name], inputs=inputs, outputs=ask(function, arrays, inputs))
    return stored


def build_manifest(
    exported: Mapping[str, export.Exported],
    metadata: Mapping[str, JSON],
    *,
    random_keys: Mapping[str, str] | None = None,
) -> Manifest:
    """All that is known of functions and their model, but for the files that they are in."""
    return Manifest(
        signatures={name: _describe(name, function) for name, function in exported.items()},
        default_signature=next(iter(exported)),
        platforms=_shared_platforms(exported),
        packages={"trellis": __version__, **{name: _version(name) for name in _PACKAGES}},
        metadata=dict(metadata),
        written=datetime.now(UTC).date().isoformat(),
        random_keys=dict(random_keys or {}),
    )


def _describe(name: str, exported: export.Exported) -> SignatureSpec:
    (_, inputs), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return SignatureSpec(
        _file_of(name), inputs=_array_specs(inputs, "inputs"), outputs=_array_specs(outputs, "outputs")
    )


def _array_specs(shapes: PyTree, alone: str) -> tuple[ArraySpec, ...]:
    return tuple(
        ArraySpec(
            path_name(path, alone),
            leaf.dtype.name,
            tuple(size if isinstance(size, int) else str(size) for size in leaf.shape),
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    )


def path_name(path: Any, alone: str) -> str:
    """The name of an array in a tree; `alone` if it is the whole tree."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or alone


def _shared_platforms(exported: Mapping[str, export.Exported]) -> tuple[str, ...]:
    first, *others = (function.platforms for function in exported.values())
    return tuple(name for name in first if all(name in platforms for platforms in others))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _copy_files(files: Mapping[str, str | os.PathLike[str]], folder: Path) -> None:
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)


def write_jax_export(
    directory: Path,
    *,
    arrays: Mapping[str, np.ndarray],
    exported: Mapping[str, export.Exported],
    manifest: Manifest,
    questions: Mapping[str, np.ndarray],
    made_from: Mapping[str, bytes],
) -> None:
    """Writes all of a model but the files that go along, which are there already."""
    write_tensors(directory / PARAMETERS, arrays)
    write_tensors(directory / QUESTIONS, questions)
    for name, content in made_from.items():
        (directory / MADE_FROM).mkdir(exist_ok=True)
        (directory / MADE_FROM / name).write_bytes(content)
    for name, function in exported.items():
        (directory / _file_of(name)).write_bytes(_serialized(function))
    checksums = {
        path.relative_to(directory).as_posix(): {**checksum(path), **digest(path)} for path in files_in(directory)
    }
    # What was just made here needs no trial when it is loaded here.
    for name in exported:
        note_trial(checksums[_file_of(name)]["sha256"])
    replace(manifest, checksums=checksums).write(directory)


def _file_of(name: str) -> str:
    return f"{name}.jax_export"


def _serialized(exported: export.Exported) -> bytes:
    try:
        return bytes(exported.serialize())
    except ValueError as error:
        raise ModelError(
            f"What {exported.fun_name} takes or returns cannot be stored: {error}. Return dicts, lists or tuples."
        ) from error
