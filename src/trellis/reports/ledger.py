"""What a run has left in its directory, read in bounded memory."""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.config import read_file
from trellis.disk import describe_failure, local_path
from trellis.errors import ArgumentError
from trellis.experiments import leaves_of, recorded_experiment
from trellis.extensions import Goodput, add_up, parse_event

_MOST_POINTS = 2000
_MOST_INCIDENTS = 500
_INCIDENTS = (
    *("restored", "preempted", "stopped", "finished", "blown_up", "diverged", "damaged", "stopped_early"),
    *("skipped_file", "set_aside", "superseded", "dropped", "input_bound"),
)
_SEED = "runtime.seed"


class Curve:
    """The points of one metric; of a long run the lowest and the highest of every stretch are kept."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._stretch: list[tuple[int, float]] = []
        self._n_in_stretch = 1
        self.last: tuple[int, float] | None = None

    def append(self, step: int, value: float) -> None:
        """Adds the next point."""
        self.last = (step, value)
        self._stretch.append((step, value))
        if len(self._stretch) < self._n_in_stretch:
            return
        self._points += _extremes(self._stretch)
        self._stretch = []
        if len(self._points) >= 2 * _MOST_POINTS:
            fours = (self._points[i : i + 4] for i in range(0, len(self._points), 4))
            self._points = [point for four in fours for point in _extremes(four)]
            self._n_in_stretch = 4 if self._n_in_stretch == 1 else 2 * self._n_in_stretch

    @property
    def points(self) -> list[tuple[int, float]]:
        """The points that are kept, in order, with the very last one."""
        points = [*self._points, *_extremes(self._stretch)]
        return points if self.last is None or points[-1] == self.last else [*points, self.last]


def _extremes(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The lowest and the highest of some points, in their order, and one that is no number if there is one."""
    if len(points) < 3:
        return list(points)
    wild = next((point for point in points if point[1] != point[1]), None)
    numbers = [point for point in points if point[1] == point[1]]
    chosen = {min(numbers, key=_value), max(numbers, key=_value)} if numbers else set()
    return sorted(chosen | ({wild} if wild else set()), key=lambda point: point[0])


def _value(point: tuple[int, float]) -> float:
    return point[1]


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """What there is to know of a run from its directory."""

    model_dir: Path
    experiment: str
    state: str
    """`running`, `done`, `failed` or `stale`: not done, and nobody is at work on it."""
    step: int
    last_time: float
    """Of its last event, in seconds since 1970; 0 if there is none."""
    curves: Mapping[str, Curve]
    incidents: tuple[Mapping[str, Any], ...]
    """What went wrong and how the run went on, each with kind, step, time and text."""
    goodput: Goodput | None
    config: Mapping[str, tuple[object, str]]
    """Every value by its dotted path, with its origin."""
    damage: str
    """What is wrong with its files; empty if nothing is."""

    @property
    def seed(self) -> object:
        """The seed that the config names."""
        return self.config.get(_SEED, (None, ""))[0]

    @property
    def config_but_seed(self) -> str:
        """What runs that differ only in their seed have in common."""
        return json.dumps({name: leaf[0] for name, leaf in self.config.items() if name != _SEED}, default=str)


def find_runs(directory: str | os.PathLike[str]) -> list[Path]:
    """The directories of runs in and below a directory, by name; an ArgumentError if there is no such directory."""
    root = local_path(directory, name="DIR")
    if not root.is_dir():
        raise ArgumentError(f"There is no directory `{root}`. Give a folder of runs, such as runs.")
    return sorted({file.parent for name in ("events.jsonl", "params.yaml") for file in root.rglob(name)})


def read_run(model_dir: str | os.PathLike[str]) -> RunLedger:
    """Reads a run, whatever state its files are in; an ArgumentError if it is no directory."""
    directory = local_path(model_dir, name="RUN")
    if not directory.is_dir():
        raise ArgumentError(f"There is no directory `{directory}`. Give the model_dir of a run.")
    curves: dict[str, Curve] = {}
    incidents: list[Mapping[str, Any]] = []
    times: list[dict[str, Any]] = []
    damage: list[str] = []
    step, last_time, ending = 0, 0.0, ""
    for event in _events(directory / "events.jsonl", damage):
        kind = event.get("kind")
        step = event["step"] if kind in ("summary", "time", "finished", "stopped") else step
        last_time = event["time"]
        if kind == "summary":
            ending = ""
            for name, value in _metrics(event):
                curves.setdefault(name, Curve()).append(event["step"], value)
        elif kind == "time":
            times.append(event)
        elif kind in _INCIDENTS:
            incidents.append({name: event.get(name, "") for name in ("kind", "step", "time", "text", "error")})
            incidents = incidents[-_MOST_INCIDENTS:]
            ending = _ending(event) or ending
    params = directory / "params.yaml"
    return RunLedger(
        model_dir=directory,
        experiment=(recorded_experiment(str(params)) or "") if params.is_file() else "",
        state="running" if _is_owned(directory) else ending or "stale",
        step=step,
        last_time=last_time,
        curves=curves,
        incidents=tuple(incidents),
        goodput=add_up(times),
        config=_config(directory),
        damage=" ".join(damage),
    )


def _ending(event: Mapping[str, Any]) -> str:
    if event["kind"] in ("finished", "stopped_early"):
        return "done"
    return "failed" if event["kind"] == "stopped" and event.get("error") else ""


def _events(file: Path, damage: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the whole events of a file, one at a time; says of the others how many they are."""
    n_lines = n_bad = 0
    try:
        with file.open("rb") as lines:
            for line in lines:
                n_lines += 1
                event = parse_event(line)
                if isinstance(event.get("step"), int) and isinstance(event.get("time", 0.0), int | float):
                    yield {"time": 0.0} | event
                else:
                    n_bad += 1
    except FileNotFoundError:
        damage.append("It has no events.jsonl.")
    except OSError as error:
        damage.append(f"events.jsonl cannot be read: {describe_failure(error)}.")
    if n_bad:
        damage.append(f"events.jsonl is damaged: {n_bad} of its {n_lines} lines hold no event.")


def _metrics(event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    groups = event.get("metrics")
    for group, values in groups.items() if isinstance(groups, dict) else ():
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, int | float) or value in ("nan", "inf", "-inf"):
                yield f"{group}/{name}", float(value)


def _config(directory: Path) -> dict[str, tuple[object, str]]:
    """The values that ran; their origins are the comments of provenance.yaml."""
    file = next((directory / name for name in ("provenance.yaml", "params.yaml") if (directory / name).is_file()), None)
    if file is None:
        return {}
    content, problems = read_file(file)
    if problems:
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return {
        name: (
            value,
            lines[origin.line - 1].rpartition(" # ")[2] if origin.line and " # " in lines[origin.line - 1] else "",
        )
        for name, (value, origin) in leaves_of(content).items()
    }


def _is_owned(directory: Path) -> bool:
    """Whether a process has the right to write to a directory; nothing is written to find out."""
    file = directory / ".lock"
    try:
        owner = json.loads(file.read_bytes())
        # To try the lock of a process that is gone could be in the way of one that starts just now.
        if owner["host"] == socket.gethostname():
            os.kill(owner["pid"], 0)
    except PermissionError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        return False
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False
