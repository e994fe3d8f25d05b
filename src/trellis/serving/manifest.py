"""How a served model is laid out in its directory, and what it says of itself."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from trellis.aliases import JSON
from trellis.disk import checksum
from trellis.errors import ArgumentError, MissingPackageError, ServedModelError
from trellis.executor import serving_model_dir
from trellis.json_text import parse_json
from trellis.remote import fetched

Format = Literal["jax_export", "saved_model"]
"""`jax_export` is read by `trellis.load_model`, `saved_model` by TensorFlow."""
FORMATS: tuple[Format, ...] = get_args(Format)
FILES_OF: Mapping[Format, str] = {"jax_export": "files", "saved_model": "assets.extra"}
"""The folder of each format for the files that go along with a model."""
MANIFEST = "manifest.json"
PARAMETERS = "parameters.safetensors"
MADE_FROM = "made_from"
"""The folder for what tells how a model was made."""
BATCH = "batch"
_FORMAT = "trellis.served_model"
_VERSION = 2
_WITHOUT_DIGESTS = 1
"""The version whose manifests have CRCs alone; they are read, too."""


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
    written: str = ""
    """The day, such as 2026-11-18; empty for one that an older Trellis wrote."""
    random_keys: dict[str, str] = field(default_factory=dict)
    """The variables that are random keys, which are stored as numbers, each with its kind."""
    checksums: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Size, CRC-32 and SHA-256 of every other file, by its path."""

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
    folder = fetched(directory, name="The directory of a served model")
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
    try:
        version = int(document["version"])
        if version > _VERSION:
            newer = document["packages"].get("trellis") or ""
            raise ServedModelError(
                f"`{directory}` has version {version} of the format, and this Trellis reads up to {_VERSION}. "
                f"Install the Trellis that wrote it ({newer}) or a newer one, or export the model again."
            )
        manifest = _parsed(document)
        for name, expected in manifest.checksums.items():
            _check_file(directory / name, expected, has_digest=version > _WITHOUT_DIGESTS)
    except ServedModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServedModelError(f"`{path}` is damaged ({error!r:.80}). Export the model again.") from error
    return manifest


def _parsed(document: Mapping[str, Any]) -> Manifest:
    """Returns a manifest whose parts are of the right kind; if they are not, a KeyError, TypeError or ValueError."""
    manifest = Manifest(
        signatures={name: _signature(fields) for name, fields in document["signatures"].items()},
        default_signature=document["default_signature"],
        platforms=tuple(map(_text, document["platforms"])),
        packages=dict(document["packages"]),
        metadata=dict(document["metadata"]),
        written=_day(document.get("written", "")),
        random_keys={name: _text(kind) for name, kind in document.get("random_keys", {}).items()},
        checksums=dict(document["checksums"]),
    )
    if manifest.default_signature not in manifest.signatures:
        raise ValueError(f"there is no signature {manifest.default_signature!r:.40}")
    if not manifest.platforms:
        raise ValueError("it names no platform")
    for name in manifest.checksums:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            raise ValueError(f"{name!r:.40} is not in the directory")
    for name in (PARAMETERS, *(spec.file for spec in manifest.signatures.values())):
        if name not in manifest.checksums:
            raise ValueError(f"it has no checksum of {name!r:.40}")
    return manifest


def _check_file(file: Path, expected: Mapping[str, Any], *, has_digest: bool) -> None:
    """Raises an error for a file that is missing, or not as it was when the model was written."""
    if not file.is_file():
        raise _unlike_written(file, "is missing")
    # By a CRC alone, one damage in four billions would reach JAX, whose readers do not survive all of them.
    actual = digest(file) if has_digest else checksum(file)
    if any(value != expected[name] for name, value in actual.items()):
        raise _unlike_written(file, "is damaged")


def _unlike_written(file: Path, problem: str) -> ServedModelError:
    return ServedModelError(f"`{file}` {problem}. Copy the whole directory again, or export the model again.")


def digest(file: Path) -> dict[str, Any]:
    """A file's size and SHA-256."""
    try:
        with file.open("rb") as stream:
            return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "size": stream.tell()}
    except OSError as error:
        raise ServedModelError(f"`{file}` cannot be read: {error.strerror}.") from error


def _read_document(directory: Path) -> dict[str, Any]:
    try:
        document = parse_json((directory / MANIFEST).read_bytes())
    except FileNotFoundError:
        names = sorted(path.name for path in directory.iterdir())[:8] if directory.is_dir() else None
        problem = "does not exist" if names is None else f"holds no {MANIFEST}, but {', '.join(names) or 'nothing'}"
        raise ServedModelError(f"`{directory}` {problem}. Give a directory that `trellis export` wrote.") from None
    except ValueError as error:
        raise ServedModelError(f"`{directory / MANIFEST}` is damaged ({error}). Export the model again.") from None
    except OSError as error:
        raise ServedModelError(f"`{directory / MANIFEST}` cannot be read: {error.strerror}.") from None
    return document if isinstance(document, dict) else {}


def _signature(fields: dict[str, Any]) -> SignatureSpec:
    inputs, outputs = (
        tuple(ArraySpec(_text(item["name"]), _text(item["dtype"]), _shape(item["shape"])) for item in fields[side])
        for side in ("inputs", "outputs")
    )
    return SignatureSpec(_text(fields["file"]), inputs, outputs)


def _day(value: Any) -> str:
    if value:
        date.fromisoformat(_text(value))
    return _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _shape(sizes: Any) -> tuple[int | str, ...]:
    if not isinstance(sizes, list) or not all(type(size) in (int, str) for size in sizes):
        raise TypeError(f"{sizes!r:.40} is no shape")
    return tuple(sizes)
