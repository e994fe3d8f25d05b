"""What a run leaves behind, in a form in which two runs can be compared to the bit."""

import hashlib
import json
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from trellis.loops import CLOCKED_METRICS

TEXTS = ("params.yaml", "skipped_data.json")


def remains(directory: Path) -> dict[str, Any]:
    """All that a run has left: names, checkpoints, history, points, texts. Times are left out."""
    from trellis.extensions import checkpoint_storage

    checkpoints = {}
    closed = set()
    names = set()
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if any(name.startswith(f"{other}/") for other in closed):
            continue
        is_checkpoint = path.is_dir() and checkpoint_storage.is_checkpoint_file(path)
        if is_checkpoint or path.name.startswith("."):
            closed.add(name)
        if is_checkpoint and not path.name.startswith("."):
            checkpoints[name] = _checkpoint(path)
        names.add(name if "tfevents" not in name else f"{path.parent.relative_to(directory)}/tfevents")
    texts = [directory / name for name in TEXTS]
    return {
        "names": sorted(names),
        "checkpoints": checkpoints,
        "history": _history(directory / "events.jsonl"),
        "points": _points(directory),
        "texts": {path.name: path.read_text() if path.is_file() else "" for path in texts},
    }


def write_remains(directory: Path) -> None:
    """Writes what a run has left to `{directory}.json`; of a forked process, as reading arrays starts threads."""
    directory.with_name(f"{directory.name}.json").write_text(json.dumps(remains(directory)))


def differences(one: dict[str, Any], other: dict[str, Any]) -> str:
    """In what a run differs from one that was never disturbed; empty if in nothing.

    Args:
        one: The run.
        other: The one that was never disturbed.
    """
    found = []
    for word, names in (("too many", _less(one, other)), ("missing", _less(other, one))):
        if names:
            found.append(f"{word}: {', '.join(names)}")
    for name, checkpoint in one["checkpoints"].items():
        undisturbed = other["checkpoints"].get(name, checkpoint)
        found += [f"{name} has other {part}" for part in checkpoint if checkpoint[part] != undisturbed[part]]
    for part in ("history", "points", "texts"):
        if one[part] != other[part]:
            found.append(f"other {part}: {_first_difference(one[part], other[part])}")
    return "; ".join(found)


def _less(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted({*one["names"]} - {*other["names"]})


def _first_difference(one: Any, other: Any) -> str:
    """Where two parts differ first: points by their steps, texts by their lines."""
    if isinstance(one, dict):
        key = min(key for key in {*one, *other} if one.get(key) != other.get(key))
        return f"{key}, {_first_difference(one.get(key, []), other.get(key, []))}"
    if isinstance(one, str):
        pairs = zip_longest(one.splitlines(), other.splitlines())
        left, right = next((left, right) for left, right in pairs if left != right)
        return f"the line {left!r} instead of {right!r}"
    steps, undisturbed = [[point[0] for point in points] for points in (one, other)]
    if steps != undisturbed:
        return f"at steps {steps} instead of {undisturbed}"
    return f"at step {next(left[0] for left, right in zip(one, other, strict=True) if left != right)}"


def _checkpoint(path: Path) -> dict[str, Any]:
    from trellis.extensions import checkpoint_storage

    manifest = checkpoint_storage.read_manifest(path)
    arrays = checkpoint_storage.read_arrays(path, manifest["tree"])
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return {
        "steps": manifest["step"],
        "metrics": _without_times(manifest["metrics"]),
        "position": manifest["position"],
        "tree": manifest["tree"],
        "arrays": digest.hexdigest(),
    }


def _without_times(metrics: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        group: {name: value for name, value in named.items() if name not in CLOCKED_METRICS}
        for group, named in metrics.items()
    }


def _history(file: Path) -> list[Any]:
    if not file.is_file():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [[line["step"], _without_times(line["metrics"])] for line in lines if line["kind"] == "summary"]


def _points(directory: Path) -> dict[str, list[Any]]:
    """All points that TensorBoard reads: of each file those before one that is damaged."""
    from tensorboardX.proto.event_pb2 import Event

    from trellis.data import read_records
    from trellis.errors import DataError

    points: dict[str, list[Any]] = {}
    for path in sorted(directory.rglob("*tfevents*")):
        with suppress(DataError):
            for record in read_records(path):
                event = Event.FromString(record)
                for value in event.summary.value:
                    if not value.tag.endswith(CLOCKED_METRICS):
                        tag = f"{path.parent.name}/{value.tag}"
                        points.setdefault(tag, []).append([event.step, value.simple_value])
    return points
