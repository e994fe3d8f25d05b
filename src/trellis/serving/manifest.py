"""How a served model is laid out in its directory, and what it says of itself."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from trellis.aliases import JSON
from trellis.disk import checksum
from trellis.errors import ArgumentError, MissingPackageError, ServedModelError
from trellis.executor import serving_model_dir

Format = Literal["jax_export", "saved_model"]
"""`jax_export` is read by `trellis.load_model`, `saved_model` by TensorFlow."""
FORMATS: tuple[Format, ...] = get_args(Format)
FILES_OF: Mapping[Format, str] = {"jax_export": "files", "saved_model": "assets.extra"}
"""The folder of each format for the files that go along with a model."""
MANIFEST = "manifest.json"
PARAMETERS = "parameters.safetensors"
BATCH = "batch"
_FORMAT = "trellis.served_model"
_VERSION = 1


@dataclass(frozen=True)
class ArraySpec:
    """An input or an output: a name, a dtype, and a shape whose batch axis is a number or the word `batch`."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class SignatureSpec:
    """A function that a served model offers."""

    file: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that is known of a served model without loading it."""

    signatures: dict[str, SignatureSpec]
    default_signature: str
    platforms: tuple[str, ...]
    packages: dict[str, str | None]
    """Versions of the packages that wrote it; None for one that was not installed."""
    metadata: dict[str, JSON] = field(default_factory=dict)
    """What its exporter wants to tell about it."""
    checksums: dict[str, dict[str, int]] = field(default_factory=dict)
    """Size and CRC-32 of every other file, by its path."""

    def write(self, directory: Path) -> None:
        """Writes the manifest beside the files that it tells of."""
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1)
        (directory / MANIFEST).write_text(f"{text}\n")


def check_format(format: str) -> None:
    """Raises an error if there is no such format, or if this machine cannot write it."""
    if format not in FORMATS:
        raise ArgumentError(f"There is no format {format!r}. There are: {', '.join(FORMATS)}.")
    if format == "saved_model":
        if find_spec("tensorflow") is None:
            error = MissingPackageError("tensorflow", "tensorflow")
            error.add_note("A SavedModel is written by TensorFlow. The format jax_export, the default, needs none.")
            raise error
        return
    for package in ("flatbuffers", "safetensors"):
        if find_spec(package) is None:
            raise MissingPackageError(package, "serving")


def find_served_model(directory: str | os.PathLike[str]) -> Path | None:
    """Where a served model lies: in a directory, in the newest of its numbered versions, or as an executor lays it out.

    None if there is none.
    """
    folder = Path(directory)
    numbered = [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    newest_first = sorted(numbered, key=lambda path: int(path.name), reverse=True)
    places = (folder, *newest_first, Path(serving_model_dir(str(folder))))
    return next((path for path in places if (path / MANIFEST).is_file()), None)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a served model; an error says what is missing, too new or damaged, of any of its files."""
    path = directory / MANIFEST
    document = _read_document(directory)
    if document.get("format") != _FORMAT:
        raise ServedModelError(f"`{path}` is not that of a served model. Give a directory that `trellis export` wrote.")
    if document["version"] > _VERSION:
        newer = document["packages"].get("trellis") or ""
        raise ServedModelError(
            f"`{directory}` has version {document['version']} of the format, and this Trellis reads up to {_VERSION}. "
            f"Install the Trellis that wrote it ({newer}) or a newer one, or export the model again."
        )
    manifest = Manifest(
        signatures={name: _signature(fields) for name, fields in document["signatures"].items()},
        default_signature=document["default_signature"],
        platforms=tuple(document["platforms"]),
        packages=document["packages"],
        metadata=document["metadata"],
        checksums=document["checksums"],
    )
    for name, expected in manifest.checksums.items():
        file = directory / name
        if not file.is_file() or checksum(file) != expected:
            problem = "is damaged" if file.is_file() else "is missing"
            raise ServedModelError(f"`{file}` {problem}. Copy the whole directory again, or export the model again.")
    return manifest


def _read_document(directory: Path) -> dict[str, Any]:
    try:
        document = json.loads((directory / MANIFEST).read_text())
    except FileNotFoundError:
        names = sorted(path.name for path in directory.iterdir())[:8] if directory.is_dir() else None
        problem = "does not exist" if names is None else f"holds no {MANIFEST}, but {', '.join(names) or 'nothing'}"
        raise ServedModelError(f"`{directory}` {problem}. Give a directory that `trellis export` wrote.") from None
    except ValueError:
        raise ServedModelError(f"`{directory / MANIFEST}` is damaged. Export the model again.") from None
    return document if isinstance(document, dict) else {}


def _signature(fields: dict[str, Any]) -> SignatureSpec:
    inputs, outputs = (
        tuple(ArraySpec(item["name"], item["dtype"], tuple(item["shape"])) for item in fields[side])
        for side in ("inputs", "outputs")
    )
    return SignatureSpec(fields["file"], inputs, outputs)
