"""A checkpoint on disk: arrays written by Orbax, and a manifest with checksums, written last.

Arrays that span processes are in parts, which TensorStore writes, as it does for Orbax: each process has a directory.
"""

import errno
import json
import logging
import os
import sys
import zlib
from collections import namedtuple
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from trellis.aliases import JSON, PyTree
from trellis.disk import checksum, describe_failure, files_in, sync, sync_all
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError
from trellis.extensions.array_parts import (
    Box,
    Part,
    box_of,
    common_box,
    copy_own,
    needed_boxes,
    reading_sharding,
    share_out,
    slices_of,
)
from trellis.loops import Checkpoint, Summary, saved_part, with_made
from trellis.runtime import fetch, gathered, hear, is_first_process, spans_processes, tell

STATE = ("model_params", "model_state", "optimizer_state")
"""The trees that every checkpoint has."""
_MANIFEST = "manifest.json"
_ARRAYS = "arrays"
_VERSION = 1
_VERSION_IN_PARTS = 2
_READ_AT_ONCE = 1 << 28
"""Bytes of arrays that are in host memory beside what is kept of them."""
_OPEN_FILES = Path("/proc/self/fd")
"""Where Linux shows what a process has open, by number."""
_MOST_COMPARED = 12
_TREES = (*STATE, "totals")
_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")


@dataclass(frozen=True)
class Snapshot:
    """Copies of a checkpoint's arrays in host memory: of all, or of what this process writes if others write too."""

    arrays: Mapping[str, np.ndarray]
    """By path, such as `model_params/Dense_0/kernel`, or by the name of a part; of a random key its data."""
    tree: Mapping[str, str]
    """The dtype and shape of each whole array, by path."""
    keys: Mapping[str, str]
    """The kinds of those that are random keys."""
    structure: Mapping[str, JSON]
    """What holds the arrays, for each tree by its name, as `describe_structure` says it."""
    parts: Mapping[str, Sequence[Part]] | None
    """What each process writes, by path; None if this one writes all, and no other has taken the same snapshot."""


class Snapshots:
    """Takes snapshots of one checkpoint; what several of its writers have in common is copied once.

    A copy is of one array and not of one checkpoint, because an extension between two writers may have replaced some
    arrays. The content of a JAX array never changes.
    """

    def __init__(self) -> None:
        # The array is kept beside its copy, so that no other one gets its id.
        self._copies: dict[int, tuple[jax.Array, np.ndarray]] = {}
        self._parts: dict[int, tuple[jax.Array, dict[Part, np.ndarray]]] = {}

    def take(self, checkpoint: Checkpoint) -> Snapshot:
        """Copies a checkpoint to the host; of arrays that span processes, what this process is to write."""
        leaves = dict(flatten(checkpoint))
        keys = {path: str(key_kind(leaf)) for path, leaf in leaves.items() if is_key(leaf)}
        structure = {name: describe_structure(saved_part(getattr(checkpoint, name)), name) for name in STATE}
        if any(map(spans_processes, leaves.values())):
            data = {path: jax.random.key_data(leaf) if path in keys else leaf for path, leaf in leaves.items()}
            data = {path: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for path, leaf in data.items()}
            parts = {path: share_out(leaf) for path, leaf in data.items()}
            return Snapshot(
                arrays={
                    part.name(path): copy
                    for path, leaf in data.items()
                    for part, copy in self._own_parts(leaves[path], leaf, parts[path]).items()
                },
                tree={path: describe(leaf) for path, leaf in data.items()},
                keys=keys,
                structure=structure,
                parts=parts,
            )
        arrays = {id(leaf): leaf for leaf in leaves.values() if isinstance(leaf, jax.Array)}
        new = {key: array for key, array in arrays.items() if key not in self._copies}
        for array in new.values():
            array.copy_to_host_async()
        self._copies |= {key: (array, _host_copy(array)) for key, array in new.items()}
        copies = {path: self._copy_of(leaf) for path, leaf in leaves.items()}
        tree = {path: describe(copy) for path, copy in copies.items()}
        return Snapshot(copies, tree, keys=keys, structure=structure, parts=None)

    def _copy_of(self, leaf: Any) -> np.ndarray:
        # NumPy arrays are not shared: they may be changed in place.
        return self._copies[id(leaf)][1] if isinstance(leaf, jax.Array) else _host_copy(leaf)

    def _own_parts(self, leaf: Any, data: Any, parts: Sequence[Part]) -> dict[Part, np.ndarray]:
        if not isinstance(leaf, jax.Array):
            return copy_own(data, parts)
        if id(leaf) not in self._parts:
            self._parts[id(leaf)] = leaf, copy_own(data, parts)
        return self._parts[id(leaf)][1]


def flatten(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """The leaves that a file holds, with their paths."""
    trees = {name: saved_part(getattr(checkpoint, name)) for name in _TREES}
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        yield _path_text(path), leaf


def spans(checkpoint: Checkpoint) -> bool:
    """Whether other processes have a part of a checkpoint's arrays, or are to have it: then all do the same with it."""
    return bool(shared_shardings(checkpoint))


def shared_shardings(checkpoint: Checkpoint) -> dict[str, Sharding]:
    """How those leaves of a checkpoint are shared out, arrays or shapes, that span processes; by path."""
    shardings = {path: getattr(leaf, "sharding", None) for path, leaf in flatten(checkpoint)}
    return {
        path: sharding
        for path, sharding in shardings.items()
        if sharding is not None and not sharding.is_fully_addressable
    }


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
    if snapshot.parts is not None:
        _write_together(path, checkpoint, snapshot, notes)
        return
    path.mkdir()
    _save_arrays(path, snapshot.arrays)
    _check_readable(path, snapshot)
    files = {str(file.relative_to(path)): checksum(file) for file in files_in(path)}
    _write_manifest(path, checkpoint, snapshot, notes, files=files)
    # Orbax does not bring all of its files to the disk.
    sync_all(path)


def _write_together(path: Path, checkpoint: Checkpoint, snapshot: Snapshot, notes: Mapping[str, JSON]) -> None:
    """Writes this process's parts, and the manifest if it is the first; an error in one process is one in all.

    The processes meet by JAX's coordination service, as steps go on meanwhile: whoever has written tells the checksums
    of its files, and the first one tells when the manifest is there.
    """
    place = f"saving step {checkpoint.step}"
    report: dict[str, Any]
    try:
        report = {"files": _write_parts(path, snapshot)}
    except Exception as error:  # noqa: BLE001  (it is raised in every process)
        report = {"error": describe_failure(error)}
    tell(f"{path.name}/parts", report)
    if is_first_process():
        try:
            verdict = _finish_together(
                path, checkpoint, snapshot, notes, reports=hear(f"{path.name}/parts", place=place)
            )
        except Exception as error:  # noqa: BLE001  (it is raised in every process)
            verdict = f"process 0: {describe_failure(error)}"
        tell(f"{path.name}/manifest", verdict)
    else:
        (verdict,) = hear(f"{path.name}/manifest", place=place, processes=[0])
    if verdict:
        raise CheckpointFileError(verdict)


def _finish_together(
    path: Path,
    checkpoint: Checkpoint,
    snapshot: Snapshot,
    notes: Mapping[str, JSON],
    *,
    reports: Sequence[Mapping[str, Any]],
) -> str:
    """Writes the manifest over the files of all processes, if they have written them; returns what went wrong."""
    failed = [f"process {index}: {report['error']}" for index, report in enumerate(reports) if "error" in report]
    if failed:
        return "; ".join(failed)
    files = {name: value for report in reports for name, value in report["files"].items()}
    _write_manifest(path, checkpoint, snapshot, notes, files=files)
    for changed in (path / _MANIFEST, path / _ARRAYS, path):
        sync(changed)
    return ""


def _write_parts(path: Path, snapshot: Snapshot) -> dict[str, JSON]:
    """Writes what is this process's own; returns the checksums of its files."""
    import tensorstore

    arrays = {name: array for name, array in snapshot.arrays.items() if array.size}
    folder = path / _ARRAYS / _folder_of(jax.process_index())
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    folder.mkdir(parents=True)
    with _plainly_named(folder) as plain:
        context = tensorstore.Context()
        stores = {name: _open_part(plain, context, name, like=array) for name, array in arrays.items()}
        for written in [stores[name].result().write(array) for name, array in arrays.items()]:
            written.result()
        if arrays:
            name, array = _smallest(arrays)
            if _open_part(plain, tensorstore.Context(), name).result().read().result().tobytes() != array.tobytes():
                raise CheckpointFileError(f"{name} is not read as it was written")
    sync_all(folder)
    return {str(file.relative_to(path)): {**checksum(file)} for file in files_in(folder)}


def _open_part(folder: Path, context: Any, name: str, *, like: np.ndarray | None = None) -> Any:
    """A part in TensorStore, as a future; a new one that is like an array, if that is given.

    Args:
        context: One for all parts of a folder, so that what is opened and written for them is shared.
    """
    import tensorstore

    base = {"driver": "file", "path": f"{folder}/"}
    spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
    if like is None:
        return tensorstore.open(spec, open=True, context=context)
    spec["metadata"] = {"compressor": {"id": "zstd", "level": 1}}
    dtype = tensorstore.dtype(like.dtype.name)
    return tensorstore.open(spec, create=True, dtype=dtype, shape=like.shape, context=context)


def _folder_of(process: int) -> str:
    return f"process_{process}"


def _save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    # Orbax refuses arrays without elements; their shapes in the manifest say all about them.
    arrays = {name: array for name, array in arrays.items() if array.size}
    checkpointer = _checkpointer()
    with _silent_orbax(), _plainly_named(path) as plain:
        checkpointer.save(plain / _ARRAYS, args=ocp.args.PyTreeSave(arrays))
        checkpointer.close()


def _write_manifest(
    path: Path,
    checkpoint: Checkpoint,
    snapshot: Snapshot,
    notes: Mapping[str, JSON],
    *,
    files: Mapping[str, Mapping[str, int]],
) -> None:
    manifest = {
        "version": _VERSION if snapshot.parts is None else _VERSION_IN_PARTS,
        "step": checkpoint.step,
        "metrics": checkpoint.metrics if isinstance(checkpoint, Summary) else {},
        "position": checkpoint.position,
        "n_completed_steps": checkpoint.n_completed_steps,
        "elapsed_time": checkpoint.elapsed_time,
        "packages": {name: version(name) for name in _PACKAGES},
        "tree": dict(snapshot.tree),
        "keys": dict(snapshot.keys),
        "structure": dict(snapshot.structure),
        "notes": dict(notes),
        "files": dict(files),
    }
    if snapshot.parts is not None:
        manifest["parts"] = {name: [part.as_json() for part in parts] for name, parts in snapshot.parts.items()}
    text = json.dumps(manifest, indent=1)
    text = json.dumps({"checksum": zlib.crc32(text.encode()), "manifest": manifest}, indent=1)
    (path / _MANIFEST).write_text(text)


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


def _check_readable(path: Path, snapshot: Snapshot) -> None:
    """Raises an error if what was just written does not come back as it was, by a look at the smallest array."""
    if any(array.size for array in snapshot.arrays.values()):
        name, array = _smallest(snapshot.arrays)
        if read_arrays(path, {name: snapshot.tree[name]})[name].tobytes() != array.tobytes():
            raise CheckpointFileError(f"{name} is not read as it was written")


def _smallest(arrays: Mapping[str, np.ndarray]) -> tuple[str, np.ndarray]:
    return min(((name, array) for name, array in arrays.items() if array.size), key=lambda item: item[1].nbytes)


def written_at(path: Path) -> int:
    """When a checkpoint file was written, in nanoseconds since 1970; an error if it has no manifest."""
    return (path / _MANIFEST).stat().st_mtime_ns


def is_checkpoint_file(path: Path) -> bool:
    """Whether a directory looks like a checkpoint file, whole or not."""
    return (path / _MANIFEST).is_file()


def read_manifest(path: Path, *, together: bool = False) -> dict[str, Any]:
    """The manifest of a checkpoint file; an error says what is damaged, of this and of every other file.

    Args:
        together: Whether all processes call this: then each looks at a share of the files, and all say the same.
    """
    if not together:
        manifest = peek_manifest(path)
        _check_files(path, manifest["files"])
        return manifest
    problem, is_mismatch = "", False
    try:
        manifest = peek_manifest(path)
        files = sorted(manifest["files"].items(), key=lambda item: (item[1]["size"], item[0]))
        _check_files(path, dict(files[jax.process_index() :: jax.process_count()]))
    except CheckpointFileError as error:
        problem, is_mismatch = str(error), isinstance(error, CheckpointMismatchError)
    words = gathered(f"checking `{path}`", [problem, is_mismatch])
    problem, is_mismatch = next((word for word in words if word[0]), ("", False))
    if problem:
        raise (CheckpointMismatchError if is_mismatch else CheckpointFileError)(problem)
    return manifest


def _check_files(path: Path, files: Mapping[str, Mapping[str, int]]) -> None:
    for name, expected in files.items():
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


def read_arrays(path: Path, tree: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint file, whole, by path.

    Args:
        tree: The manifest's, or a part of it.
    """
    shapes = {name: _shape(text) for name, text in tree.items()}
    if any((path / _ARRAYS).glob("process_*")):
        whole = {name: {_whole_box(shape)} for name, shape in shapes.items()}
        return {
            name: blocks[_whole_box(shapes[name])]
            for group in _groups(shapes)
            for name, blocks in _read_blocks(path, shapes, {name: whole[name] for name in group}).items()
        }
    empty = {name: np.zeros(shape.shape, shape.dtype) for name, shape in shapes.items() if not shape.size}
    return _restore(path, [name for name in tree if name not in empty]) | empty


def read_shards(path: Path, tree: Mapping[str, str], shardings: Mapping[str, Sharding]) -> dict[str, jax.Array]:
    """Arrays of a checkpoint file on the devices of several processes: each reads what its own devices hold.

    What all of them hold is read by each in part, and the devices tell each other the rest.

    Args:
        tree: The manifest's, or a part of it.
        shardings: How each is to be shared out; not how it was when it was written.
    """
    shapes = {name: _shape(tree[name]) for name in shardings}
    arrays: dict[str, jax.Array] = {}
    for group in _groups(shapes):
        reading = {name: reading_sharding(shapes[name].shape, shardings[name]) for name in group}
        boxes = {name: needed_boxes(shapes[name].shape, sharding) for name, sharding in reading.items()}
        for name, blocks in _read_blocks(path, shapes, boxes).items():
            arrays[name] = _on_devices(shapes[name], reading[name], blocks)
        arrays |= _gathered({name: arrays.pop(name) for name in group if reading[name] != shardings[name]}, shardings)
    return arrays


def _gathered(slices: Mapping[str, jax.Array], shardings: Mapping[str, Sharding]) -> dict[str, jax.Array]:
    """Arrays as they are to be, of slices that were read: the devices send them to each other."""
    if not slices:
        return {}
    places = {name: shardings[name] for name in slices}
    whole: dict[str, jax.Array] = jax.jit(lambda arrays: arrays, out_shardings=places)(dict(slices))
    # Nothing else of several devices may be under way: on CPUs they could wait for each other for ever.
    jax.block_until_ready(whole)
    return whole


def _on_devices(shape: jax.ShapeDtypeStruct, sharding: Sharding, blocks: Mapping[Box, np.ndarray]) -> jax.Array:
    array: jax.Array = jax.make_array_from_callback(
        shape.shape, sharding, lambda index: blocks[box_of(index, shape.shape)]
    )
    return array


def _groups(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Iterator[list[str]]:
    """The names of arrays, as many at once as may be in memory beside what is kept of them."""
    group: list[str] = []
    n_bytes = 0
    for name, shape in shapes.items():
        size = shape.size * jnp.dtype(shape.dtype).itemsize
        if group and n_bytes + size > _READ_AT_ONCE:
            yield group
            group, n_bytes = [], 0
        group.append(name)
        n_bytes += size
    if group:
        yield group


def _read_blocks(
    path: Path, shapes: Mapping[str, jax.ShapeDtypeStruct], boxes: Mapping[str, Collection[Box]]
) -> dict[str, dict[Box, np.ndarray]]:
    """Blocks of arrays: of parts, whoever has written them, no more is read than the blocks need."""
    import tensorstore

    blocks = {
        name: {box: np.zeros([stop - start for start, stop in box], shapes[name].dtype) for box in boxes[name]}
        for name in boxes
    }
    names = [name for name in boxes if shapes[name].size]
    parts = peek_manifest(path).get("parts")
    if parts is None:
        for name, array in _restore(path, names).items():
            for box, block in blocks[name].items():
                block[...] = array[slices_of(box)]
        return blocks
    pieces = [
        (name, part, box, piece)
        for name in names
        for part in map(Part.of_json, parts[name])
        for box in boxes[name]
        if (piece := common_box(part.box, box)) is not None
    ]
    with ExitStack() as stack:
        folders = {
            process: (
                stack.enter_context(_plainly_named(path / _ARRAYS / _folder_of(process))),
                tensorstore.Context(),
            )
            for process in {part.process for _, part, _, _ in pieces}
        }
        stores = {(name, part): _open_part(*folders[part.process], part.name(name)) for name, part, _, _ in pieces}
        reads = [
            stores[name, part].result()[slices_of(piece, within=part.box)].read() for name, part, _, piece in pieces
        ]
        for (name, _, box, piece), read in zip(pieces, reads, strict=True):
            blocks[name][box][slices_of(piece, within=box)] = read.result()
    return blocks


def _whole_box(shape: jax.ShapeDtypeStruct) -> Box:
    return box_of((slice(None),) * len(shape.shape), shape.shape)


def _restore(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    if not names:
        return {}
    checkpointer = _checkpointer()
    arguments = ocp.args.PyTreeRestore(
        item=dict.fromkeys(names, 0),
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names},
        partial_restore=True,
    )
    with _plainly_named(path) as plain:
        arrays: dict[str, np.ndarray] = checkpointer.restore(plain / _ARRAYS, args=arguments)
    checkpointer.close()
    return arrays


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


def unflatten(templates: dict[str, PyTree], arrays: Mapping[str, Any]) -> dict[str, PyTree]:
    """Trees like the templates, each under its name, with arrays as their leaves.

    What no file holds stays as it is in the templates.
    """

    def pick(path: Any, leaf: Any) -> Any:
        array = arrays[_path_text(path)]
        return jax.random.wrap_key_data(jnp.asarray(array), impl=key_kind(leaf)) if is_key(leaf) else array

    trees: dict[str, PyTree] = with_made(jax.tree_util.tree_map_with_path(pick, saved_part(templates)), like=templates)
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
    if manifest.get("version") not in (_VERSION, _VERSION_IN_PARTS):
        raise CheckpointMismatchError(
            f"`{path}` is of format {manifest.get('version')!r}, but this version of Trellis reads the formats "
            f"{_VERSION} and {_VERSION_IN_PARTS}. Use the version that wrote it, or another directory."
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
    """A checkpointer that does not wait for other processes: each that writes, writes what it has by itself."""
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
