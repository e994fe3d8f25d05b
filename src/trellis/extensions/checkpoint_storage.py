"""A checkpoint on disk: arrays written by Orbax, and a manifest with checksums, written last."""

import json
import logging
import os
import sys
import zlib
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import JSON, PyTree
from trellis.disk import checksum, describe_failure, files_in, sync_all
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError
from trellis.loops import Checkpoint, Summary
from trellis.runtime import fetch, spans_processes

STATE = ("model_params", "model_state", "optimizer_state")
"""The trees that every checkpoint has."""
_MANIFEST = "manifest.json"
_ARRAYS = "arrays"
_VERSION = 1
_OPEN_FILES = Path("/proc/self/fd")
"""Where Linux shows what a process has open, by number."""
_MOST_COMPARED = 12
_TREES = (*STATE, "totals")
_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")


@dataclass(frozen=True)
class Snapshot:
    """Copies of a checkpoint's arrays in host memory."""

    arrays: Mapping[str, np.ndarray]
    """By path, such as `model_params/Dense_0/kernel`; of a random key its data."""
    keys: Mapping[str, str]
    """The kinds of those that are random keys."""
    structure: Mapping[str, JSON]
    """What holds the arrays, for each tree by its name, as `describe_structure` says it."""
    spans_processes: bool
    """Whether other processes have a part of an array, and so take the same snapshot."""


class Snapshots:
    """Takes snapshots of one checkpoint; what several of its writers have in common is copied once.

    A copy is of one array and not of one checkpoint, because an extension between two writers may have replaced some
    arrays. The content of a JAX array never changes.
    """

    def __init__(self) -> None:
        # The array is kept beside its copy, so that no other one gets its id.
        self._copies: dict[int, tuple[jax.Array, np.ndarray]] = {}

    def take(self, checkpoint: Checkpoint) -> Snapshot:
        """Copies a checkpoint to the host."""
        leaves = dict(flatten(checkpoint))
        arrays = {id(leaf): leaf for leaf in leaves.values() if isinstance(leaf, jax.Array)}
        new = {key: array for key, array in arrays.items() if key not in self._copies}
        for array in new.values():
            array.copy_to_host_async()
        self._copies |= {key: (array, _host_copy(array)) for key, array in new.items()}
        return Snapshot(
            arrays={path: self._copy_of(leaf) for path, leaf in leaves.items()},
            keys={path: str(key_kind(leaf)) for path, leaf in leaves.items() if is_key(leaf)},
            structure={name: describe_structure(getattr(checkpoint, name), name) for name in STATE},
            spans_processes=any(map(spans_processes, leaves.values())),
        )

    def _copy_of(self, leaf: Any) -> np.ndarray:
        # NumPy arrays are not shared: they may be changed in place.
        return self._copies[id(leaf)][1] if isinstance(leaf, jax.Array) else _host_copy(leaf)


def flatten(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """The leaves that a file holds, with their paths."""
    trees = {name: getattr(checkpoint, name) for name in _TREES}
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        yield _path_text(path), leaf


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a random key, or the shape of one."""
    is_of_jax = isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
    return is_of_jax and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def key_kind(key: Any) -> Any:
    """The implementation of a random key, or of the shape of one, such as `rbg`."""
    kinds: list[Any] = []
    # JAX has this for arrays and for what is traced, but not for shapes.
    jax.eval_shape(lambda traced: kinds.append(jax.random.key_impl(traced)), key)
    return kinds[0]


def describe(leaf: Any) -> str:
    """A leaf's dtype and shape, such as `float32[784,128]`; of a random key those of its data."""
    if is_key(leaf):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def write(
    path: Path, checkpoint: Checkpoint, snapshot: Snapshot, notes: Mapping[str, JSON] = MappingProxyType({})
) -> None:
    """Writes a whole checkpoint into a new directory.

    Args:
        notes: What else its manifest is to say.
    """
    import orbax.checkpoint as ocp

    path.mkdir(parents=True)
    # Orbax refuses arrays without elements; their shapes in the manifest say all about them.
    arrays = {name: array for name, array in snapshot.arrays.items() if array.size}
    checkpointer = _checkpointer()
    with _silent_orbax(), _plainly_named(path) as plain:
        checkpointer.save(plain / _ARRAYS, args=ocp.args.PyTreeSave(arrays))
        checkpointer.close()
    tree = {name: describe(array) for name, array in snapshot.arrays.items()}
    _check_readable(path, arrays, tree)
    manifest = {
        "version": _VERSION,
        "step": checkpoint.step,
        "metrics": checkpoint.metrics if isinstance(checkpoint, Summary) else {},
        "position": checkpoint.position,
        "n_completed_steps": checkpoint.n_completed_steps,
        "elapsed_time": checkpoint.elapsed_time,
        "packages": {name: version(name) for name in _PACKAGES},
        "tree": tree,
        "keys": dict(snapshot.keys),
        "structure": dict(snapshot.structure),
        "notes": dict(notes),
        "files": {str(file.relative_to(path)): checksum(file) for file in files_in(path)},
    }
    text = json.dumps(manifest, indent=1)
    text = json.dumps({"checksum": zlib.crc32(text.encode()), "manifest": manifest}, indent=1)
    (path / _MANIFEST).write_text(text)
    # Orbax does not bring all of its files to the disk.
    sync_all(path)


def check_readable(directory: Path) -> None:
    """Raises an error if what is written to a directory could not be found again, or not be told of."""
    path = str(directory.absolute())
    shown = path.encode(errors="backslashreplace").decode()
    if shown != path:
        raise ArgumentError(
            f"output_dir `{shown}` is not UTF-8, so that no log could name it. Choose another directory."
        )
    if not _OPEN_FILES.is_dir() and set(path) & set("\\*?["):
        raise ArgumentError(
            f"output_dir `{path}` has one of \\ * ? [ in it. Orbax takes them for a pattern, and could not read what "
            f"it has written there. Choose another directory."
        )


def _check_readable(path: Path, arrays: Mapping[str, np.ndarray], tree: Mapping[str, str]) -> None:
    """Raises an error if what was just written does not come back as it was, by a look at the smallest array."""
    name = min(arrays, key=lambda name: arrays[name].nbytes, default=None)
    if name is not None and read_arrays(path, {name: tree[name]})[name].tobytes() != arrays[name].tobytes():
        raise CheckpointFileError(f"{name} is not read as it was written")


def written_at(path: Path) -> int:
    """When a checkpoint file was written, in nanoseconds since 1970; an error if it has no manifest."""
    return (path / _MANIFEST).stat().st_mtime_ns


def is_checkpoint_file(path: Path) -> bool:
    """Whether a directory looks like a checkpoint file, whole or not."""
    return (path / _MANIFEST).is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint file; an error says what is damaged, of this and of every other file."""
    manifest = peek_manifest(path)
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointFileError(f"{name} is missing")
        if file.stat().st_size != expected["size"]:
            raise CheckpointFileError(f"{name} has {file.stat().st_size} bytes instead of {expected['size']}")
        try:
            is_whole = checksum(file) == expected
        except OSError as error:
            raise CheckpointFileError(f"{name} cannot be read: {describe_failure(error)}") from None
        if not is_whole:
            raise CheckpointFileError(f"{name} is garbled")
    return manifest


def read_arrays(path: Path, tree: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint file, by path.

    Args:
        tree: The manifest's, or a part of it.
    """
    import orbax.checkpoint as ocp

    shapes = {name: _shape(text) for name, text in tree.items()}
    empty = {name: np.zeros(shape.shape, shape.dtype) for name, shape in shapes.items() if not shape.size}
    names = {name: 0 for name in tree if name not in empty}
    checkpointer = _checkpointer()
    arguments = ocp.args.PyTreeRestore(
        item=names,
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names},
        partial_restore=True,
    )
    with _plainly_named(path) as plain:
        arrays: dict[str, np.ndarray] = checkpointer.restore(plain / _ARRAYS, args=arguments)
    checkpointer.close()
    return arrays | empty


def find_differences(manifest: Mapping[str, Any], template: Checkpoint) -> str:
    """What a file holds beside what is needed, a line for each leaf that differs; empty if the file fits.

    Sums for the next checkpoint do not have to fit.
    """
    tree: dict[str, str] = manifest["tree"]
    needed = {name: describe(leaf) for name, leaf in flatten(template)}
    # A file of an older version does not say of which kind its keys are: they are read as those that are needed.
    if "keys" in manifest:
        tree = tree | {name: f"{tree[name]} ({kind} key)" for name, kind in manifest["keys"].items()}
        needed |= {name: f"{needed[name]} ({key_kind(leaf)} key)" for name, leaf in flatten(template) if is_key(leaf)}
    names = sorted(name for name in {*tree, *needed} if not name.startswith("totals/"))
    return compare(tree, needed, [name for name in names if tree.get(name) != needed.get(name)])


def compare(tree: Mapping[str, str], needed: Mapping[str, str], names: Sequence[str]) -> str:
    """What a file holds beside what is needed, a line for each of some leaves."""
    lines = [f"  {name}: {tree.get(name, '—')} in the file, {needed.get(name, '—')} here" for name in names]
    more = [f"  … and {len(lines) - _MOST_COMPARED} more"] if len(lines) > _MOST_COMPARED else []
    return "\n".join([*lines[:_MOST_COMPARED], *more])


def as_keys(arrays: Mapping[str, np.ndarray], kinds: Mapping[str, str]) -> dict[str, Any]:
    """The random keys among some arrays, by path; one of a kind that JAX does not know by its name stays numbers."""
    keys: dict[str, Any] = {}
    for name, kind in kinds.items():
        with suppress(ValueError):
            keys[name] = jax.random.wrap_key_data(jnp.asarray(arrays[name]), impl=kind)
    return keys


def unflatten(templates: dict[str, PyTree], arrays: Mapping[str, np.ndarray]) -> dict[str, PyTree]:
    """Trees like the templates, each under its name, with arrays as their leaves."""

    def pick(path: Any, leaf: Any) -> Any:
        array = arrays[_path_text(path)]
        return jax.random.wrap_key_data(jnp.asarray(array), impl=key_kind(leaf)) if is_key(leaf) else array

    trees: dict[str, PyTree] = jax.tree_util.tree_map_with_path(pick, templates)
    return trees


def describe_structure(tree: PyTree, path: str) -> JSON:
    """What a tree is made of, as JSON: `null` for None, the path of an array for an array, else the kind and the parts.

    That is `{"dict": [[key, part], …]}`, `{"list": […]}`, `{"tuple": […]}`, or, for what has fields (named tuples,
    dataclasses), `{"fields": [[name, part], …], "class": "module:name"}`.
    """
    if tree is None:
        return None
    children = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: node is not tree)
    if children and not children[0][0]:
        return path
    keys = [keys[0] for keys, _ in children]
    parts = [describe_structure(child, f"{path}/{_path_text(keys)}") for keys, child in children]
    kind = type(tree)
    if kind in (tuple, list):
        return {kind.__name__: parts}
    if isinstance(tree, Mapping):
        return {"dict": [[_plain(key.key), part] for key, part in zip(keys, parts, strict=True)]}
    # A dataclass has parts for those of its fields that hold arrays.
    fields = [getattr(key, "name", None) for key in keys]
    if None in fields:
        return {"tuple": parts}
    pairs: list[JSON] = [[field, part] for field, part in zip(fields, parts, strict=True)]
    return {"fields": pairs, "class": f"{kind.__module__}:{kind.__qualname__}"}


def rebuild(structure: Any, arrays: Mapping[str, Any]) -> PyTree:
    """The tree that `describe_structure` has described, with arrays by their paths.

    What had fields is an object of its class, if that is a named tuple which is loaded and has the same fields, else a
    named tuple of the same name. Nothing is imported because a file names it.
    """
    match structure:
        case None:
            return None
        case str():
            return arrays[structure]
        case {"dict": items}:
            return {key: rebuild(part, arrays) for key, part in items}
        case {"list": parts}:
            return [rebuild(part, arrays) for part in parts]
        case {"tuple": parts}:
            return tuple(rebuild(part, arrays) for part in parts)
        case {"fields": items, "class": name}:
            return _class_of(name, tuple(field for field, _ in items))(*(rebuild(part, arrays) for _, part in items))
    raise CheckpointFileError(f"{_MANIFEST} describes a structure that this version does not know: {structure!r:.60}")


def _class_of(name: str, fields: tuple[str, ...]) -> Any:
    """A named tuple with some fields: the class of a name, if it is loaded and is one, else one that is made here."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == fields:
        return found
    return namedtuple(path.rpartition(".")[2], fields, rename=True)


def _plain(key: Any) -> JSON:
    return key if isinstance(key, str | int | float | bool) else str(key)


def peek_manifest(path: Path) -> dict[str, Any]:
    """What a file says of itself, without a look at whether its arrays are whole."""
    try:
        document = json.loads((path / _MANIFEST).read_text())
        manifest: dict[str, Any] = document["manifest"]
        is_whole = zlib.crc32(json.dumps(manifest, indent=1).encode()) == document["checksum"]
    except FileNotFoundError:
        raise CheckpointFileError(f"{_MANIFEST} is missing") from None
    except NotADirectoryError:
        raise CheckpointFileError("it is no directory, as checkpoint files are") from None
    except OSError as error:
        raise CheckpointFileError(f"{_MANIFEST} cannot be read: {describe_failure(error)}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise CheckpointFileError(f"{_MANIFEST} is garbled")
    if manifest.get("version") != _VERSION:
        raise CheckpointMismatchError(
            f"`{path}` is of format {manifest.get('version')!r}, but this version of Trellis reads format {_VERSION}. "
            f"Use the version that wrote it, or another directory."
        )
    return manifest


def _host_copy(leaf: Any) -> np.ndarray:
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    # On the CPU a NumPy view shares the memory that the next step overwrites.
    return np.array(fetch(leaf), copy=True)


@contextmanager
def _plainly_named(directory: Path) -> Iterator[Path]:
    """Gives a short name for a directory, without anything in it that Orbax takes for a pattern.

    TensorStore also leaks the path of a file whenever it opens an array: the shorter, the better.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        plain = _OPEN_FILES / str(descriptor)
        yield plain if plain.is_dir() else directory.absolute()
    finally:
        os.close(descriptor)


@contextmanager
def _silent_orbax() -> Iterator[None]:
    """Drops what Orbax logs: of an error that it also raises, it logs several traces of fifty lines."""
    import orbax.checkpoint as ocp

    _ignore_closed_event_loops()
    folder = str(Path(ocp.__file__).parent)
    logger = logging.getLogger("absl")

    def is_of_others(record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(folder)

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


@cache
def _ignore_closed_event_loops() -> None:
    """Drops what TensorStore prints when an array is done after the save that it was a part of has failed.

    That comes from its own threads, a trace for each array, also some time after the error was raised.
    """
    tell = sys.unraisablehook

    def tell_others(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if unraisable.object is not None or not isinstance(error, RuntimeError) or str(error) != "Event loop is closed":
            tell(unraisable)

    sys.unraisablehook = tell_others


def _checkpointer() -> Any:
    """A checkpointer that does not wait for other processes: each that writes, writes whole arrays by itself."""
    import orbax.checkpoint as ocp

    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _shape(text: str) -> jax.ShapeDtypeStruct:
    """What `describe` has described."""
    dtype, _, sizes = text.removesuffix("]").partition("[")
    return jax.ShapeDtypeStruct([int(size) for size in sizes.split(",") if size], jnp.dtype(dtype))


def _path_text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
