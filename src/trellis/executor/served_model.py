"""What a run has written to be served: known by the names of its files, and checked without executing any of it."""

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trellis.disk import checksum, files_in
from trellis.errors import DataError, ModelRefusedError
from trellis.executor.fn_args import RUN_ARGS

_MOST_LISTED = 10
_GRAPHS = 2
"""The number of the field that holds the graphs of a SavedModel."""


@dataclass(frozen=True)
class ServedModel:
    """A model that a run has left."""

    format: str
    """`Trellis`, `SavedModel`, `Keras`, `jax.export`, `safetensors`, `pickle`, `PyTorch`, `archive`; `own` if named."""
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
        own = [ServedModel("own", path) for pattern in model_files for path in _matching_files(folder, pattern)]
        known = [
            ServedModel(known_format.name, path)
            for path in files
            for known_format in _FORMATS
            if known_format.fits(path) and known_format.check(path)
        ]
    except DataError as error:
        raise ModelRefusedError(
            f"run_fn has left a model in `{directory}` that cannot be loaded: {error} "
            f"Found: {_described(folder, files)}."
        ) from error
    if not own and not known:
        raise ModelRefusedError(
            f"run_fn has left no model of a known format in `{directory}`. Found: {_described(folder, files)}. Known "
            f"are {'; '.join(map(str, _FORMATS))}. If it is of another format, name its files, as in "
            f"--model_files={files[0].relative_to(folder)}, or 'model_files' in custom_config['{RUN_ARGS}']."
        )
    return own + known


def _matching_files(folder: Path, pattern: str) -> list[Path]:
    files = [path for path in sorted(folder.rglob(pattern)) if path.is_file() and path.stat().st_size]
    if not files:
        raise DataError(f"model_files names {pattern!r}, and there is no such file, or it is empty.")
    return files


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


def _check_not_empty(path: Path) -> bool:
    """Checks that something is there: the readers of these formats execute code, or need JAX."""
    if not path.stat().st_size:
        raise DataError(f"{path} is empty.")
    return True


def _check_manifest(path: Path) -> bool:
    """Compares files with the checksums in a manifest of Trellis; a manifest of another library is no model."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return False
    if not isinstance(document, dict) or document.get("format") != "trellis.served_model":
        return False
    for name, expected in document.get("checksums", {}).items():
        file = path.parent / name
        if not file.is_file():
            raise DataError(f"{file} is missing, although {path.name} tells of it.")
        if checksum(file) != expected:
            raise DataError(f"{file} is damaged: it is not as {path.name} says.")
    return True


def _check_saved_model(path: Path) -> bool:
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    _check_not_empty(path)
    if path.suffix == ".pb":
        try:
            fields = UnknownFieldSet(Empty.FromString(path.read_bytes()))
        except DecodeError as error:
            raise DataError(f"{path} is cut short or damaged ({error}).") from None
        if not any(field.field_number == _GRAPHS for field in fields):
            raise DataError(f"{path} holds no graph.")
    variables = path.parent / "variables"
    missing = [name for name in _variable_files(variables) if not (variables / name).is_file()]
    if missing:
        raise DataError(f"{variables} lacks {', '.join(missing)}.")
    return True


def _variable_files(folder: Path) -> list[str]:
    """Returns the names of the files that hold variables, if there are some: an index, and all shards."""
    shards = sorted(folder.glob("variables.data-*-of-*"))
    if not shards:
        return []
    n_shards = int(shards[0].name.rpartition("-of-")[2])
    return ["variables.index", *(f"variables.data-{index:05d}-of-{n_shards:05d}" for index in range(n_shards))]


def _check_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            names = archive.namelist()
            if path.suffix == ".keras" and "config.json" in names:
                json.loads(archive.read("config.json"))
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(f"{path} is cut short or damaged ({error}).") from None
    if damaged:
        raise DataError(f"{path} is damaged: {damaged} has a wrong checksum.")
    if path.suffix == ".keras" and "config.json" not in names:
        raise DataError(f"{path} has no config.json, so it is no Keras model.")
    return True


def _check_torch(path: Path) -> bool:
    # The older of PyTorch's two formats is a pickle.
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    return _check_archive(path) if is_archive else _check_not_empty(path)


def _check_hdf5(path: Path) -> bool:
    try:
        import h5py
    except ImportError:
        return _check_not_empty(path)
    try:
        h5py.File(path, "r").close()
    except OSError as error:
        raise DataError(f"{path} is cut short or damaged ({error}).") from None
    return True


def _check_safetensors(path: Path) -> bool:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        return _check_not_empty(path)
    try:
        with safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is cut short or damaged ({error}).") from None


@dataclass(frozen=True)
class _Format:
    name: str
    check: Callable[[Path], bool]
    """Whether a file is a model of this format; raises DataError if it is a damaged one."""
    suffixes: tuple[str, ...] = ()
    file_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({', '.join((*self.file_names, *self.suffixes))})"

    def fits(self, path: Path) -> bool:
        return path.suffix in self.suffixes or path.name in self.file_names


_FORMATS = (
    _Format("SavedModel", _check_saved_model, file_names=("saved_model.pb", "saved_model.pbtxt")),
    _Format("Keras", _check_archive, (".keras",)),
    _Format("Keras", _check_hdf5, (".h5", ".hdf5")),
    _Format("Trellis", _check_manifest, file_names=("manifest.json",)),
    _Format("jax.export", _check_not_empty, (".jax_export", ".jaxexport")),
    _Format("safetensors", _check_safetensors, (".safetensors",)),
    _Format("pickle", _check_not_empty, (".pkl", ".pickle", ".joblib")),
    _Format("archive", _check_archive, (".npz", ".zip")),
    _Format("PyTorch", _check_torch, (".pt", ".pth")),
)
