"""Artifacts: typed directories that a run reads and writes, and how they are laid out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trellis.errors import ArgumentError

SERVING, EVAL = "Format-Serving", "Format-TFMA"
_OLD_SERVING = "serving_model_dir"
_TF_EXAMPLE, _TFRECORDS_GZIP = "FORMAT_TF_EXAMPLE", "tfrecords_gzip"


@runtime_checkable
class HasUri(Protocol):
    """Anything that stands for a directory: our own artifacts, and those of other pipelines."""

    uri: Any


@dataclass(frozen=True)
class Artifact:
    """A directory with a meaning."""

    uri: str


@dataclass(frozen=True)
class Examples(Artifact):
    """Examples in splits, each a directory of files: `Split-train/`, or `train/` in the old layout.

    Example:
        Executor().Do({"examples": [Examples("data")]}, {"model": [Model("out/model")], ...}, {...})
    """

    split_names: tuple[str, ...] | None = None
    """None is those that the directory has."""
    payload_format: str = _TF_EXAMPLE
    file_format: str = _TFRECORDS_GZIP

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, whichever way they are laid out."""
        if self.split_names is not None:
            return self.split_names
        folders = sorted(path.name for path in _entries(self.uri) if path.is_dir())
        named = tuple(name.removeprefix("Split-") for name in folders if name.startswith("Split-"))
        return named or tuple(folders)


@dataclass(frozen=True)
class Schema(Artifact):
    """What examples hold: one text file."""


@dataclass(frozen=True)
class TransformGraph(Artifact):
    """How raw examples become those that are trained on."""


@dataclass(frozen=True)
class Model(Artifact):
    """A trained model: `Format-Serving/` to be served, `Format-TFMA/` to be analysed."""


@dataclass(frozen=True)
class ModelRun(Artifact):
    """What a training leaves beside its model: checkpoints, summaries, logs."""


@dataclass(frozen=True)
class HyperParameters(Artifact):
    """The result of a tuning: one JSON file of any name."""


@dataclass(frozen=True)
class ExampleStatistics(Artifact):
    """Statistics of examples, split by split."""


def as_artifact(value: object, *, key: str) -> Artifact:
    """Returns an artifact for whatever a caller has, if it has a `uri`; that of `examples` with its splits."""
    if not isinstance(value, HasUri) or not str(value.uri):
        raise ArgumentError(
            f"{key}: {value!r} is no artifact. Give a list of objects with a uri, such as "
            f"{'Examples' if key == 'examples' else 'Model'}('path/of/directory')."
        )
    if isinstance(value, Artifact):
        return value
    if key != "examples":
        return Artifact(str(value.uri))
    return Examples(
        str(value.uri),
        split_names=_split_names(getattr(value, "split_names", None)),
        payload_format=_property(value, "payload_format") or _TF_EXAMPLE,
        file_format=_property(value, "file_format") or _TFRECORDS_GZIP,
    )


def split_dir(uri: str, split: str) -> str:
    """Returns where a split lies: `Split-{split}`, or `{split}` if only that is there."""
    new, old = f"{_plain(uri)}/Split-{split}", f"{_plain(uri)}/{split}"
    return old if Path(old).is_dir() and not Path(new).is_dir() else new


def serving_model_dir(uri: str) -> str:
    """Returns where a model that is about to be written is to be served from."""
    return f"{_plain(uri)}/{SERVING}"


def eval_model_dir(uri: str) -> str:
    """Returns where a model that is about to be written is to be analysed from."""
    return f"{_plain(uri)}/{EVAL}"


def served_model_path(uri: str) -> str:
    """Returns where a finished model lies: in either layout, or where an estimator has exported it to."""
    new, old = serving_model_dir(uri), f"{_plain(uri)}/{_OLD_SERVING}"
    top = old if Path(old).is_dir() and not Path(new).is_dir() else new
    export = Path(top, "export")
    return str(only_entry(only_entry(export))) if export.is_dir() else top


def only_entry(directory: Path) -> Path:
    """Returns the one thing that a directory holds; hidden files do not count."""
    entries = _entries(directory)
    if len(entries) != 1:
        names = ", ".join(path.name for path in entries) or "nothing"
        raise ArgumentError(f"`{directory}` has to hold one entry, but it holds {names}.")
    return entries[0]


def only_file(uri: str) -> Path:
    """Returns the one file of an artifact that is a file or a directory with one."""
    if Path(uri).is_file():
        return Path(uri)
    if not Path(uri).is_dir():
        raise ArgumentError(f"there is no directory `{uri}`. Give one that holds one file.")
    files = [path for path in _entries(uri) if path.is_file()]
    if len(files) != 1:
        content = f"{len(files)} files: {', '.join(path.name for path in files)}" if files else "no file"
        raise ArgumentError(f"`{uri}` holds {content}. Leave the one that is meant, or give its path.")
    return files[0]


def _entries(directory: str | Path) -> list[Path]:
    paths = Path(directory).iterdir() if Path(directory).is_dir() else ()
    return sorted(path for path in paths if not path.name.startswith("."))


def _plain(uri: str) -> str:
    return uri.rstrip("/") or "/"


def _split_names(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    # Published as the text of a JSON list; an artifact that nobody has filled has none, or an empty text.
    names = json.loads(value) if isinstance(value, str) and value else value
    return tuple(names) if names else None


def _property(artifact: Any, name: str) -> str:
    ask = getattr(artifact, "get_string_custom_property", None)
    return str(getattr(artifact, name, "") or (ask(name) if ask else "") or "")
