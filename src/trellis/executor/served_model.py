"""What a run has written to be served: known by the names of its files, and checked without executing any of it."""

import json
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        models = [ServedModel("own", path) for pattern in model_files for path in _matching_files(folder, pattern)]
        models += [_checked(path, known) for path in files for known in _FORMATS if known.fits(path)]
    except DataError as error:
        raise ModelRefusedError(
            f"run_fn has left a model in `{directory}` that cannot be loaded: {error} "
            f"Found: {_described(folder, files)}."
        ) from error
    if not models:
        raise ModelRefusedError(
            f"run_fn has left no model of a known format in `{directory}`. Found: {_described(folder, files)}. Known "
            f"are {'; '.join(map(str, _FORMATS))}. If it is of another format, name its files, as in "
            f"--model_files={files[0].relative_to(folder)}, or 'model_files' in custom_config['{RUN_ARGS}']."
        )
    return models


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


def _checked(path: Path, known: "_Format") -> ServedModel:
    if not path.stat().st_size:
        raise DataError(f"{path} is empty.")
    try:
        if known.check is not None:
            known.check(path)
    except DataError:
        raise
    except Exception as error:
        # Each reader has errors of its own for a file that it cannot read.
        raise DataError(f"{path} is cut short or damaged ({error}).") from error
    return ServedModel(known.name, path)


def _check_manifest(path: Path) -> None:
    """Compares files with the checksums in a manifest of Trellis."""
    for name, expected in _read_manifest(path).get("checksums", {}).items():
        file = path.parent / name
        if not file.is_file():
            raise DataError(f"{file} is missing, although {path.name} tells of it.")
        if any(expected.get(name) != value for name, value in checksum(file).items()):
            raise DataError(f"{file} is damaged: it is not as {path.name} says.")


def _read_manifest(path: Path) -> dict[str, Any]:
    """Returns a manifest of Trellis; empty if it is one of another library, which says nothing of a model."""
    with suppress(ValueError):
        document = json.loads(path.read_bytes())
        if isinstance(document, dict) and document.get("format") == "trellis.served_model":
            return document
    return {}


def _check_saved_model(path: Path) -> None:
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    if path.suffix == ".pb":
        fields = UnknownFieldSet(Empty.FromString(path.read_bytes()))
        if not any(field.field_number == _GRAPHS for field in fields):
            raise DataError(f"{path} holds no graph.")
    variables = path.parent / "variables"
    missing = [name for name in _variable_files(variables) if not (variables / name).is_file()]
    if missing:
        raise DataError(f"{variables} lacks {', '.join(missing)}.")


def _variable_files(folder: Path) -> list[str]:
    """Returns the names of the files that hold variables, if there are some: an index, and all shards."""
    shards = sorted(folder.glob("variables.data-*-of-*"))
    if not shards:
        return []
    n_shards = int(shards[0].name.rpartition("-of-")[2])
    return ["variables.index", *(f"variables.data-{index:05d}-of-{n_shards:05d}" for index in range(n_shards))]


def _check_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged:
            raise DataError(f"{path} is damaged: {damaged} has a wrong checksum.")
        if path.suffix == ".keras":
            if "config.json" not in archive.namelist():
                raise DataError(f"{path} has no config.json, so it is no Keras model.")
            json.loads(archive.read("config.json"))


def _check_torch(path: Path) -> None:
    # The older of PyTorch's two formats is a pickle.
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    if is_archive:
        _check_archive(path)


def _check_hdf5(path: Path) -> None:
    with suppress(ImportError):
        import h5py

        h5py.File(path, "r").close()


def _check_safetensors(path: Path) -> None:
    with suppress(ImportError):
        from safetensors import safe_open

        with safe_open(path, framework="numpy"):
            pass


@dataclass(frozen=True)
class _Format:
    name: str
    check: Callable[[Path], None] | None
    """Raises an error if a file is damaged. None where only code that executes the file, or JAX, could tell."""
    suffixes: tuple[str, ...] = ()
    file_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({', '.join((*self.file_names, *self.suffixes))})"

    def fits(self, path: Path) -> bool:
        if path.name == "manifest.json":
            return self.name == "Trellis" and bool(_read_manifest(path))
        return path.suffix in self.suffixes or path.name in self.file_names


_FORMATS = (
    _Format("SavedModel", _check_saved_model, file_names=("saved_model.pb", "saved_model.pbtxt")),
    _Format("Keras", _check_archive, (".keras",)),
    _Format("Keras", _check_hdf5, (".h5", ".hdf5")),
    _Format("Trellis", _check_manifest, file_names=("manifest.json",)),
    _Format("jax.export", None, (".jax_export", ".jaxexport")),
    _Format("safetensors", _check_safetensors, (".safetensors",)),
    _Format("pickle", None, (".pkl", ".pickle", ".joblib")),
    _Format("archive", _check_archive, (".npz", ".zip")),
    _Format("PyTorch", _check_torch, (".pt", ".pth")),
)
