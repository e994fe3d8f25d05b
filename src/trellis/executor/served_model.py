"""What a run has written to be served: told apart by its files, and checked without executing anything of it."""

import json
import os
import pickletools
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from trellis.disk import checksum, files_in
from trellis.errors import DataError, ModelRefusedError
from trellis.executor.exec_properties import RUN_ARGS
from trellis.executor.flat_buffer import root_vector
from trellis.executor.message_fields import message_fields

_HDF5 = b"\x89HDF\r\n\x1a\n"
_MOST_LISTED = 10
# Where the head of an HDF5 file of each version says how long the file is.
_HDF5_END = {0: 40, 1: 44, 2: 28, 3: 28}
# Where an exported function has its name and its code, in JAX's own numbering.
_JAX_EXPORT_NAME, _JAX_EXPORT_CODE = 1, 13
# How compressed files begin: gzip, bzip2, xz, LZ4, lzma, and four levels of zlib.
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x04\x22\x4d\x18", b"]\x00", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda")


@dataclass(frozen=True)
class ServedModel:
    """A model that was found."""

    format: str
    """`Trellis`, `SavedModel`, `Keras`, `jax.export`, `safetensors`, `pickle`, `archive`, or `own` if it was named."""
    path: Path


def check_served_model(directory: str, *, model_files: Sequence[str] = ()) -> list[ServedModel]:
    """Returns the models that a directory holds; raises an error if it holds none that is known, or a damaged one.

    Args:
        model_files: Patterns of the files that a model of another format consists of: each has to be there.
    """
    folder = Path(directory)
    files = list(files_in(folder)) if folder.is_dir() else []
    if not any(path.stat().st_size for path in files):
        raise ModelRefusedError(
            f"run_fn has returned, but it has left no model in fn_args.serving_model_dir, `{directory}`: "
            f"{_described(folder, files)}. Write the model there before run_fn returns."
        )
    try:
        own = [ServedModel("own", path) for pattern in model_files for path in _named(folder, pattern)]
        known = [
            ServedModel(kind.format, path)
            for path in files
            for kind in _KINDS
            if kind.is_meant(path) and kind.check(path)
        ]
    except DataError as error:
        raise ModelRefusedError(
            f"run_fn has left a model in `{directory}` that cannot be loaded: {error} "
            f"Found: {_described(folder, files)}."
        ) from error
    if not own and not known:
        raise ModelRefusedError(
            f"run_fn has left no model of a known format in `{directory}`. Found: {_described(folder, files)}. Known "
            f"are {'; '.join(map(str, _KINDS))}. If it is of another format, name its files, as in "
            f"--model_files={files[0].relative_to(folder)}, or 'model_files' in custom_config['{RUN_ARGS}']."
        )
    return own + known


def _named(folder: Path, pattern: str) -> list[Path]:
    found = [path for path in sorted(folder.rglob(pattern)) if path.is_file() and path.stat().st_size]
    if not found:
        raise DataError(f"model_files names {pattern!r}, and there is no such file, or it is empty.")
    return found


def _described(folder: Path, files: list[Path]) -> str:
    if folder.is_file():
        return "it is a file, not a directory"
    if not folder.is_dir():
        return "it does not exist"
    if not files:
        return "it is empty"
    listed = [f"{path.relative_to(folder)} ({path.stat().st_size:,} bytes)" for path in files[:_MOST_LISTED]]
    more = [f"and {len(files) - _MOST_LISTED} more"] if len(files) > _MOST_LISTED else []
    return ", ".join([*listed, *more])


def _check_saved_model(path: Path) -> bool:
    try:
        # A version is field 1, graphs are field 2.
        numbers = {number for number, _ in message_fields(path.read_bytes())} if path.suffix == ".pb" else {2}
    except DataError as error:
        raise DataError(f"{path} is cut short or damaged ({error}).") from None
    if 2 not in numbers:
        raise DataError(f"{path} holds no graph.")
    shards = [each.name for each in path.parent.glob("variables/variables.data-*")]
    missing = [name for name in _shards(shards) if not (path.parent / "variables" / name).is_file()]
    if missing:
        raise DataError(f"{path.parent / 'variables'} lacks {', '.join(missing)}.")
    return True


def _shards(names: Sequence[str]) -> list[str]:
    """The files that variables consist of, if there are some: an index, and all parts."""
    if not names:
        return []
    n = int(names[0].rpartition("-of-")[2])
    return ["variables.index", *(f"variables.data-{part:05d}-of-{n:05d}" for part in range(n))]


def _check_archive(path: Path) -> bool:
    if path.suffix in (".pt", ".pth") and not zipfile.is_zipfile(path):
        return _check_pickle(path)  # PyTorch's older format begins as one
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            names = set(archive.namelist())
            if path.suffix == ".keras" and "config.json" in names:
                json.loads(archive.read("config.json"))
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(f"{path} is cut short or damaged ({error}).") from None
    if damaged:
        raise DataError(f"{path} is damaged: {damaged} has a wrong checksum.")
    if path.suffix == ".keras" and "config.json" not in names:
        raise DataError(f"{path} has no config.json, so it is no Keras model.")
    return True


def _check_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(64)
    if not head.startswith(_HDF5):
        raise DataError(f"{path} does not begin as an HDF5 file does.")
    at = _HDF5_END.get(head[len(_HDF5)])
    end = int.from_bytes(head[at : at + 8], "little") if at else 0
    if end > path.stat().st_size:
        raise DataError(f"{path} is cut short: it needs {end:,} bytes, but has {path.stat().st_size:,}.")
    return True


def _check_safetensors(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(n_header)) if 8 + n_header <= size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise DataError(f"{path} has no whole header.")
    stops = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if 8 + n_header + max(stops, default=0) != size:
        needed = 8 + n_header + max(stops, default=0)
        raise DataError(f"{path} is cut short: its arrays need {needed:,} bytes, but it has {size:,}.")
    return True


def _check_jax_export(path: Path) -> bool:
    """Checks the name of the function, which is written first and so lies last, and its code."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            _, end = root_vector(data, _JAX_EXPORT_NAME)
            is_ended = data[end : end + 1] == b"\0"
            start, stop = root_vector(data, _JAX_EXPORT_CODE)
    except (DataError, ValueError) as error:  # an empty file cannot be mapped
        raise DataError(f"{path} is cut short or no serialised jax.export.Exported ({error}).") from None
    if not is_ended or start == stop:
        raise DataError(f"{path} is cut short or no serialised jax.export.Exported.")
    return True


def _check_manifest(path: Path) -> bool:
    """Checks the files that a manifest of Trellis tells of; that of somebody else says nothing here."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("format") != "trellis.served_model":
        return False
    for name, expected in document.get("checksums", {}).items():
        file = path.parent / name
        if not file.is_file():
            raise DataError(f"{file} is missing, although {path.name} tells of it.")
        if checksum(file) != expected:
            raise DataError(f"{file} is damaged: it is not as {path.name} says.")
    return True


def _check_pickle(path: Path) -> bool:
    """Reads a pickle's instructions without following them: it has to be whole."""
    has_joblib = False
    with path.open("rb") as file:
        if file.read(8).startswith(_PACKED):
            return True
        file.seek(0)
        try:
            for _, argument, _ in pickletools.genops(file):
                has_joblib = has_joblib or (isinstance(argument, str) and argument.startswith("joblib."))
        except Exception as error:  # noqa: BLE001  (pickletools raises whatever the bytes lead it to)
            file.seek(-1, os.SEEK_END)
            # Between its instructions joblib writes arrays as they are; the last instruction is a full stop.
            if not (has_joblib and file.read() == b"."):
                raise DataError(f"{path} is cut short or no pickle ({error}).") from None
    return True


@dataclass(frozen=True)
class _Kind:
    format: str
    suffixes: tuple[str, ...]
    check: Callable[[Path], bool]
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.format} ({', '.join((*self.names, *self.suffixes))})"

    def is_meant(self, path: Path) -> bool:
        return path.suffix in self.suffixes or path.name in self.names


_KINDS = (
    _Kind("SavedModel", (), _check_saved_model, ("saved_model.pb", "saved_model.pbtxt")),
    _Kind("Keras", (".keras",), _check_archive),
    _Kind("Keras", (".h5", ".hdf5"), _check_hdf5),
    _Kind("Trellis", (), _check_manifest, ("manifest.json",)),
    _Kind("jax.export", (".jax_export", ".jaxexport"), _check_jax_export),
    _Kind("safetensors", (".safetensors",), _check_safetensors),
    _Kind("pickle", (".pkl", ".pickle", ".joblib"), _check_pickle),
    _Kind("archive", (".npz", ".pt", ".pth", ".zip"), _check_archive),
)
