"""What makes a run this run and no other: noted in its checkpoint files, and compared when it is resumed."""

import dataclasses
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trellis.aliases import JSON, Batch
from trellis.config import Config
from trellis.data import CountedStream, DataConfig, SizedStream, fingerprint, is_stream, matching_paths, patterns_in
from trellis.disk import files_in
from trellis.trainer.configs import TrainerConfig
from trellis.trainer.stage import Stage

_PLACES = ("_path", "_file", "_files", "_dir", "_url", "_checkpoint")
"""How the names of fields end that say where something is: it may move. What is there is known by the data itself."""
_RUNTIME = ("seed", "mixed_precision_dtype", "loss_scale")
"""What changes the numbers of a run by more than rounding, of all that a RuntimeConfig says."""
_HARMLESS = ("task.validation_data.", "task.init_checkpoint", "task.init_parts")
_OPTIMIZER = "optimizer_config"
_ADAPTERS = ("trainer.lora.rank", "trainer.lora.alpha", "trainer.lora.dropout")
"""Which matrices have adapters shows in the structure of a file."""
_MOST_FILES = 64


@dataclass(frozen=True)
class Change:
    """A value that is another one than in the run so far."""

    path: str
    old: JSON
    new: JSON
    matters: bool
    """Whether it makes the run another run, beyond rounding and what is done beside the training."""

    def __str__(self) -> str:
        return f"{self.path}: {_text(self.old)} → {_text(self.new)}"


def notes_of(stage: Stage, *, configs: Mapping[str, Config]) -> dict[str, JSON]:
    """What the checkpoint files of a stage say of the run: its config, its data, its devices.

    Args:
        configs: By the name that their paths begin with.
    """
    config = {path: value for name, config in configs.items() for path, value in values_of(config, name)}
    devices = stage.placement.devices
    notes: dict[str, Any] = {
        "config": config,
        "data": {"stage": stage.stage_id, **_describe_data(stage)},
        "machine": {"devices": f"{len(devices)} {devices[0].device_kind}"},
        stage.skipped_data.note: stage.skipped_data.windows,
    }
    # As it will be read again: a tuple is a list then.
    plain: dict[str, JSON] = json.loads(json.dumps(notes, default=repr))
    return plain


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs between the notes of a checkpoint file and those of the run that is to go on from it.

    Of what one of them does not have, nothing is said: a version before this one has noted less.
    """
    config = old.get("config", {})
    changes = [
        Change(path, config[path], value, _matters(path))
        for path, value in new["config"].items()
        if path in config and _differ(config[path], value)
    ]
    data, now = old.get("data", {}), new["data"]
    if data.get("stage") == now["stage"]:
        names = [name for name in now if name in data and _differ(data[name], now[name])]
        # Where something else has changed that says more, the batch follows from it.
        if names != ["the first batch"] or not any(change.matters for change in changes):
            changes += [Change(f"the training data, {name}", data[name], now[name], matters=True) for name in names]
    machine = old.get("machine", {})
    changes += [
        Change(name, machine[name], value, matters=False)
        for name, value in new["machine"].items()
        if name in machine and machine[name] != value
    ]
    return changes


def values_of(config: Config, prefix: str) -> Iterator[tuple[str, JSON]]:
    """Yields every value that has an effect, with its dotted path."""
    for name, plain in config.as_dict().items():
        value = getattr(config, name, plain)
        path = f"{prefix}.{name}"
        if name in config.no_effect:
            continue
        if isinstance(value, Config):
            yield from values_of(value, path)
        else:
            yield path, plain


def _matters(path: str) -> bool:
    section, _, rest = path.partition(".")
    name = rest.partition(".")[0]
    if section == "runtime":
        return name in _RUNTIME
    if section == "trainer":
        return (
            name == _OPTIMIZER
            or path.startswith(_ADAPTERS)
            or name not in {field.name for field in dataclasses.fields(TrainerConfig)}
        )
    return not path.startswith(_HARMLESS) and not path.endswith(_PLACES)


def _describe_data(stage: Stage) -> dict[str, JSON]:
    """What is cheap to know of the training data, and differs if it does."""
    data = stage.train_data
    parts: dict[str, JSON] = {}
    config = stage.task.task_config.train_data
    if isinstance(config, DataConfig) and config.input_path:
        parts |= _describe_files(config)
    if not is_stream(data):
        return parts  # To look at an iterator is to take something away.
    if isinstance(data, CountedStream):
        parts["number of examples"] = data.n_examples
    if isinstance(data, SizedStream):
        parts["number of batches"] = data.n_batches
    first, again = (_checksum(data.batch(stage.start_step)) for _ in range(2))
    # A stream that is no function of the step cannot be compared.
    if first == again:
        parts["the first batch"] = first
    return parts


def _describe_files(config: DataConfig) -> dict[str, JSON]:
    """The sizes and ends of the files, whatever they are called and wherever they are."""
    files: list[Path] = []
    for path in (path for pattern in patterns_in(config.input_path) for path in sorted(matching_paths(pattern))):
        files += files_in(path) if path.is_dir() else [path]
    every = max(1, len(files) // _MOST_FILES)
    try:
        sizes = [file.stat().st_size for file in files]
        ends = [fingerprint(file)[3] for file in files[::every]]
    except OSError:
        return {}  # The task may find them in another way.
    content = f"{zlib.crc32(repr((sizes, ends)).encode()):08x}"
    return {"files": f"{len(files)} of {sum(sizes):,} bytes, checksum {content}"}


def _checksum(batch: Batch) -> str:
    value = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        array = np.asarray(leaf)
        head = f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode()
        value = zlib.crc32(np.ascontiguousarray(array).tobytes(), zlib.crc32(head, value))
    return f"checksum {value:08x}"


def _differ(old: JSON, new: JSON) -> bool:
    # By their text: a number that is none is not equal to itself.
    return json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True)


def _text(value: JSON) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
