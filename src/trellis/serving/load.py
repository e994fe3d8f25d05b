"""Served models, loaded: they answer without the code that made them."""

import os
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from trellis.aliases import JSON, PyTree
from trellis.errors import ArgumentError, DataError, MissingPackageError, ServedModelError
from trellis.remote import fetched
from trellis.runtime import print_error
from trellis.serving.export import Signature, build_manifest, export_functions, path_name
from trellis.serving.lifetime import lifetime_notice, refresh_command, written_line
from trellis.serving.manifest import (
    FILES_OF,
    PARAMETERS,
    ArraySpec,
    Manifest,
    SignatureSpec,
    find_served_model,
    read_manifest,
)
from trellis.serving.tensor_file import read_tensors
from trellis.serving.trial import try_out
from trellis.spelling import did_you_mean


class LoadedSignature:
    """One function of a served model: `signature(inputs)` gives the outputs."""

    def __init__(self, name: str, *, spec: SignatureSpec, exported: export.Exported, variables: PyTree) -> None:
        self.name = name
        self.spec = spec
        self._variables = variables
        (_, inputs), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
        self._structure = jax.tree.structure(inputs)
        self._call = jax.jit(exported.call)

    def __call__(self, inputs: PyTree) -> PyTree:
        """The outputs for a batch; each size of batches is compiled once."""
        leaves = jax.tree_util.tree_leaves_with_path(inputs, is_leaf=_is_list_of_numbers)
        return self.call_by_name({path_name(path, "inputs"): np.asarray(leaf) for path, leaf in leaves})

    def call_by_name(self, arrays_by_name: Mapping[str, np.ndarray]) -> PyTree:
        """The same for inputs that are not in a tree, but named as in `spec`."""
        self.check_names(arrays_by_name)
        arrays = [checked_array(arrays_by_name[spec.name], spec, owner=self.name) for spec in self.spec.inputs]
        sizes = {spec.name: len(array) for spec, array in zip(self.spec.inputs, arrays, strict=True)}
        if len(set(sizes.values())) > 1:
            raise DataError(f"The inputs of {self.name} differ in their batch size: {sizes}.")
        return self._call(self._variables, jax.tree.unflatten(self._structure, arrays))

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, side)) for side in (self.spec.inputs, self.spec.outputs))
        return f"{self.name}({inputs}) -> {outputs}"

    def check_names(self, inputs: Collection[str]) -> None:
        """Raises an error if these are not the names of the inputs."""
        names = [spec.name for spec in self.spec.inputs]
        problems = []
        if missing := [name for name in names if name not in inputs]:
            problems.append(f"lack {', '.join(missing)}")
        if unknown := [name for name in inputs if name not in names]:
            problems.append(f"have {', '.join(unknown)}")
        if problems:
            raise DataError(f"The inputs of {self.name} {' and '.join(problems)}. It takes: {self!r}.")


class LoadedModel:
    """A served model: `model(inputs)` answers, and `model.signatures[name](inputs)` with a function of that name.

    `model.files` has what came along, such as a vocabulary, by name; `model.manifest` all that is known of it.

    Example:
        model = trellis.load_model("served/digits")
        logits = model(images)
    """

    def __init__(self, directory: Path, *, manifest: Manifest, signatures: Mapping[str, LoadedSignature]) -> None:
        self.manifest = manifest
        self.signatures = signatures
        prefix = f"{FILES_OF['jax_export']}/"
        self.files = {
            name.removeprefix(prefix): directory / name for name in manifest.checksums if name.startswith(prefix)
        }

    @property
    def categories(self) -> dict[str, list[str]]:
        """The names that the numbers of a column stand for, by column, if they were exported as metadata."""
        columns = self.manifest.metadata.get("categories")
        named = columns.items() if isinstance(columns, dict) else ()
        return {name: list(map(str, names)) for name, names in named if isinstance(names, list)}

    def __call__(self, inputs: PyTree, *, signature: str | None = None) -> PyTree:
        """The outputs for a batch, by default those of the model's first signature."""
        name = signature or self.manifest.default_signature
        if name not in self.signatures:
            suggestion = did_you_mean(name, self.signatures, show=str)
            raise ArgumentError(f"There is no signature {name!r}.{suggestion} There are: {', '.join(self.signatures)}.")
        return self.signatures[name](inputs)

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self.signatures.values()), written_line(self.manifest)])


def load_model(directory: str | os.PathLike[str]) -> LoadedModel:
    """Loads what `export_model` or `trellis export` wrote; needs neither the model's code nor its task.

    JAX promises to read what a JAX of half a year before has exported. When that time is nearly over, or is over, and
    the model still loads, a line on stderr says so, and how to make it new.

    Args:
        directory: That of the model, or one with numbered versions of it, of which the newest is taken.
    """
    path = find_served_model(directory) or fetched(directory, name="directory")
    manifest = read_manifest(path)
    platform = export.default_export_platform()
    if platform not in manifest.platforms:
        raise ServedModelError(
            f"`{path}` is exported for {', '.join(manifest.platforms)}, and this process runs on {platform}. "
            f"Export it with --platforms={platform}, or set JAX_PLATFORMS={manifest.platforms[0]}."
        )
    arrays = read_tensors(path / PARAMETERS)
    notice = lifetime_notice(manifest, place=str(path))
    try:
        functions = {name: _deserialized(path / spec.file, arrays) for name, spec in manifest.signatures.items()}
    except ServedModelError as error:
        if manifest.packages.get("jaxlib") != version("jaxlib"):
            error.add_note(f"{written_line(manifest)} Make it new for this JAX: {refresh_command(str(path))}")
        raise
    if notice:
        print_error(notice)
    # JAX on a CPU takes arrays as they lie in memory, if it can: here that is the file, which may be overwritten.
    variables = {name: jax.device_put(np.array(array)) for name, array in arrays.items()}
    signatures = {
        name: LoadedSignature(name, spec=spec, exported=functions[name], variables=variables)
        for name, spec in manifest.signatures.items()
    }
    return LoadedModel(path, manifest=manifest, signatures=signatures)


def model_in_memory(
    *,
    variables: PyTree,
    signatures: Mapping[str, Signature],
    metadata: Mapping[str, JSON] | None = None,
    batch_size: int,
) -> LoadedModel:
    """A model that answers in this process as it would if it was exported and loaded; nothing is written.

    Args:
        signatures: As for `export_model`.
        metadata: What to tell of the model.
        batch_size: That of all batches.
    """
    platform = export.default_export_platform()
    arrays, exported = export_functions(variables, signatures, batch_size=batch_size, platforms=[platform])
    manifest = build_manifest(exported, metadata or {})
    on_device = jax.device_put(arrays)
    loaded = {
        name: LoadedSignature(name, spec=manifest.signatures[name], exported=function, variables=on_device)
        for name, function in exported.items()
    }
    return LoadedModel(Path(), manifest=manifest, signatures=loaded)


def find_parameters(directory: Path) -> Path | None:
    """Where a served model lies whose parameters `read_parameters` reads, if there is one in a directory."""
    path = find_served_model(directory)
    return path if path is not None and (path / PARAMETERS).is_file() else None


def read_parameters(directory: Path) -> dict[str, np.ndarray]:
    """The variables of a served model by their paths, such as `params/encoder/kernel`."""
    read_manifest(directory)
    return read_tensors(directory / PARAMETERS)


def _deserialized(path: Path, arrays: Mapping[str, np.ndarray]) -> export.Exported:
    """Returns the function in a file; an error if it is none, or none of these arrays and of inputs."""
    # JAX's reader may end the process that gives it anything else than what JAX has written.
    try_out(path)
    try:
        exported = export.deserialize(bytearray(path.read_bytes()))
        (variables, _), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
        fits = {name: (leaf.shape, leaf.dtype) for name, leaf in variables.items()} == {
            name: (array.shape, array.dtype) for name, array in arrays.items()
        }
    except ImportError:
        raise MissingPackageError("flatbuffers", "serving") from None
    except Exception as error:  # noqa: BLE001  (it is raised, as another: JAX's own may go on with pages of a program)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ServedModelError(
            f"`{path}` is no function that JAX can read: {reason:.200} Export the model again."
        ) from None
    if not fits:
        raise ServedModelError(f"`{path}` takes other parameters than those in {PARAMETERS}. Export the model again.")
    return exported


def checked_array(array: np.ndarray, spec: ArraySpec, *, owner: str) -> np.ndarray:
    """An array as an input of a function takes it; an error tells what does not fit.

    Args:
        owner: The name of the function.
    """
    described = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    if array.ndim and not len(array):
        way_out = "Give a batch of one or more."
        raise DataError(f"The input {spec.name} of {owner} is {described}, which has no example. {way_out}")
    fits = array.ndim == len(spec.shape) and all(
        isinstance(expected, str) or size == expected for size, expected in zip(array.shape, spec.shape, strict=True)
    )
    if not fits or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise DataError(f"The input {spec.name} of {owner} is {described}, but it takes {spec}.")
    cast = array.astype(spec.dtype, copy=False)
    if np.issubdtype(cast.dtype, np.integer) and not np.array_equal(cast, array):
        raise DataError(f"The input {spec.name} of {owner} has numbers that {spec.dtype} cannot hold.")
    return cast


def _is_list_of_numbers(node: Any) -> bool:
    # Plain numbers in lists are an array, not a tree of them.
    return isinstance(node, list) and all(
        isinstance(item, int | float | bool) or _is_list_of_numbers(item) for item in node
    )
