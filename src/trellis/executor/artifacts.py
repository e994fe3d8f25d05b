"""Artifacts: typed directories that a run reads and writes, and how they are laid out."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trellis.disk import local_path
from trellis.errors import ArgumentError, shown

SERVING = "Format-Serving"
EVAL = "Format-TFMA"
_OLD_SERVING = "serving_model_dir"


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
    """None means all that the directory has."""
    payload_format: str = "FORMAT_TF_EXAMPLE"
    file_format: str = "tfrecords_gzip"

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, whichever way they are laid out."""
        if self.split_names is not None:
            return self.split_names
        folders = sorted(path.name for path in _entries(self.uri) if path.is_dir())
        named = tuple(name.removeprefix("Split-") for name in folders if name.startswith("Split-"))
        return named or tuple(folders)


class Schema(Artifact):
    """What examples hold: one text file."""


class TransformGraph(Artifact):
    """How raw examples become those that are trained on."""


class Model(Artifact):
    """A trained model: `Format-Serving/` to be served, `Format-TFMA/` to be analysed."""


class ModelRun(Artifact):
    """What a training leaves beside its model: checkpoints, summaries, logs."""


class HyperParameters(Artifact):
    """The result of a tuning: one JSON file of any name."""


class ExampleStatistics(Artifact):
    """Statistics of examples, split by split."""


Artifacts = Mapping[str, tuple[Artifact, ...]]


def read_artifacts(artifacts: Mapping[str, Any]) -> Artifacts:
    """Returns our artifacts for the objects of a caller; those of another pipeline will do, if they have a `uri`."""
    for key, values in artifacts.items():
        if values is not None and (isinstance(values, str) or not isinstance(values, Sequence)):
            raise ArgumentError(f"{key}: {shown(values)} is no list. Artifacts come in lists, one or several to a key.")
    return {
        key: tuple(_as_artifact(value, key=key) for value in values)
        for key, values in artifacts.items()
        if values is not None
    }


def _as_artifact(value: Any, *, key: str) -> Artifact:
    uri = str(getattr(value, "uri", ""))
    if not uri:
        raise ArgumentError(
            f"{key}: {shown(value)} is no artifact. Give a list of objects with a uri, such as "
            f"{'Examples' if key == 'examples' else 'Model'}('path/of/directory')."
        )
    local = str(local_path(uri, name=f"The uri of {key}"))
    if isinstance(value, Artifact):
        return replace(value, uri=local)
    if key != "examples":
        return Artifact(local)
    # Pipelines publish the names as the text of a JSON list; an artifact without content has None, or an empty text.
    names = getattr(value, "split_names", None)
    names = json.loads(names) if isinstance(names, str) and names else names
    formats = {name: text for name in ("payload_format", "file_format") if (text := _property(value, name))}
    return Examples(local, split_names=tuple(names) if names else None, **formats)


def split_dir(uri: str, split: str) -> str:
    """Returns where a split lies: `Split-{split}`, or `{split}` if only that is there."""
    return _in_either_layout(uri, new=f"Split-{split}", old=split)


def serving_model_dir(uri: str) -> str:
    """Returns the directory for the form of a model that is served."""
    return os.path.join(uri, SERVING)


def eval_model_dir(uri: str) -> str:
    """Returns the directory for the form of a model that is analysed."""
    return os.path.join(uri, EVAL)


def served_model_path(uri: str) -> str:
    """Returns where a finished model lies: in either layout, or where an estimator has exported it to."""
    top = _in_either_layout(uri, new=SERVING, old=_OLD_SERVING)
    export = Path(top, "export")
    return str(only_entry(only_entry(export))) if export.is_dir() else top


def _in_either_layout(uri: str, *, new: str, old: str) -> str:
    new_path = os.path.join(uri, new)
    old_path = os.path.join(uri, old)
    return old_path if Path(old_path).is_dir() and not Path(new_path).is_dir() else new_path


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


def _property(artifact: Any, name: str) -> str:
    ask = getattr(artifact, "get_string_custom_property", None)
    return str(getattr(artifact, name, "") or (ask(name) if ask else "") or "")
