"""What a run has left in its directory, read in bounded memory, and read on while it goes on."""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trellis.config import read_file
from trellis.disk import describe_failure, is_owned, local_path
from trellis.errors import ArgumentError
from trellis.experiments import leaves_of, recorded_experiment
from trellis.extensions import Goodput, add_up, parse_event
from trellis.json_text import parse_json
from trellis.reports.curve import Curve, Point

EVENTS, PARAMS, SAMPLES = "events.jsonl", "params.yaml", "samples.json"

_MOST_INCIDENTS = 500
_MOST_METRICS = 1000
_MOST_TIMES = 10_000
_MOST_SAMPLES = 4 << 20
_LONGEST_LINE = 16 << 20
_LONGEST_TEXT = 2000
_LARGEST_STEP = 1 << 53
_LATEST = 1e11  # in seconds: in some thousand years
_FINGERPRINT = b'{"kind": "fingerprint"'
_INCIDENTS = frozenset(
    {
        *("restored", "preempted", "stopped", "finished", "blown_up", "diverged", "damaged", "stopped_early"),
        *("skipped", "skipped_file", "set_aside", "superseded", "dropped", "input_bound", "pruned"),
    }
)
_BEGINNINGS = frozenset({"initialized", "restored"})
_NOT_NUMBERS = ("nan", "inf", "-inf")
_SEED = "runtime.seed"
_METRIC, _COMPARISON = "trainer.best_checkpoint_eval_metric", "trainer.best_checkpoint_metric_comp"
_LOWER_IS_BETTER = ("loss", "error", "perplexity", "distance")


@dataclass(frozen=True)
class Attempt:
    """One process that worked on a run."""

    start: float
    """In seconds since 1970, as is its end, which is its last sign of life."""
    end: float


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """What there is to know of a run from its directory."""

    model_dir: Path
    experiment: str
    state: str
    """`running`, `done`, `failed` or `stale`: not done, and nobody is at work on it."""
    step: int
    last_time: float
    """Of its last sign of life, in seconds since 1970; 0 if there is none."""
    curves: Mapping[str, Curve]
    incidents: Sequence[Mapping[str, Any]]
    """What went wrong and how the run went on, each with kind, step, time and text."""
    attempts: Sequence[Attempt]
    goodput: Goodput | None
    config: Mapping[str, tuple[object, str]]
    """Every value by its dotted path, with its origin."""
    samples: Mapping[str, Any] | None
    """What `trellis.tasks.write_samples` has written of the last evaluation."""
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

    def is_lower_better(self, metric: str) -> bool:
        """Whether lower values of a metric are better: as the config says of its own, else by the metric's name."""
        if metric == self._config_metric:
            return self.config.get(_COMPARISON, ("", ""))[0] == "lower"
        return any(word in metric.rpartition("/")[2] for word in _LOWER_IS_BETTER)

    def best(self, metric: str) -> Point | None:
        """The best point of a metric; None if it has none."""
        curve = self.curves.get(metric)
        return None if curve is None else curve.best(is_lower_better=self.is_lower_better(metric))

    @property
    def main_metric(self) -> str | None:
        """The metric that chooses the best checkpoint, else one of an evaluation, else the loss; None without any."""
        evaluated = (name for name in self.curves if name.startswith("eval/"))
        return next((name for name in (self._config_metric, *evaluated, "train/loss") if name in self.curves), None)

    @property
    def _config_metric(self) -> str:
        name = str(self.config.get(_METRIC, ("", ""))[0] or "").removeprefix("eval/")
        return f"eval/{'loss' if name == 'validation_loss' else name.replace('|', '/')}"


def find_runs(directory: str | os.PathLike[str], *, name: str = "DIR") -> list[Path]:
    """The directories of runs in and below a directory, by name; an ArgumentError if there is no such directory."""
    root = local_path(directory, name=name)
    if not root.is_dir():
        raise ArgumentError(f"There is no directory `{root}`. Give the directory of a run, or a folder of runs.")
    return list(_runs_below(root))


def _runs_below(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        if EVENTS in files or PARAMS in files:
            yield Path(folder)
        # A checkpoint file has thousands of files, and is no run.
        names[:] = [] if "manifest.json" in files else sorted(name for name in names if not name.startswith("."))


def read_run(model_dir: str | os.PathLike[str]) -> RunLedger:
    """Reads a run, whatever state its files are in; an ArgumentError if it is no directory."""
    return RunReader(model_dir).read()


class RunReader:
    """Reads a run, and when asked again, only what was added since.

    Example:
        reader = RunReader("runs/digits")
        ledger = reader.read()
        ledger = reader.read()  # a second later
    """

    def __init__(self, model_dir: str | os.PathLike[str]) -> None:
        self.model_dir = local_path(model_dir, name="RUN")
        if not self.model_dir.is_dir():
            raise ArgumentError(f"There is no directory `{self.model_dir}`. Give the model_dir of a run.")
        self._config: tuple[object, Mapping[str, tuple[object, str]], str] = (None, {}, "")
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._inode = -1
        self._offset = self._n_lines = self._n_bad = 0
        self._curves: dict[str, Curve] = {}
        self._incidents: deque[Mapping[str, Any]] = deque(maxlen=_MOST_INCIDENTS)
        self._times: list[dict[str, Any]] = []
        self._attempts: dict[float, float] = {}
        self._step = 0
        self._last_time = 0.0
        self._ending = ""

    def read(self) -> RunLedger:
        """What the run has left up to now."""
        damage = list(self._read_on())
        config, experiment = self._read_config()
        samples, problem = _read_samples(self.model_dir / SAMPLES)
        damage += [problem] if problem else []
        return RunLedger(
            model_dir=self.model_dir,
            experiment=experiment,
            state="running" if is_owned(self.model_dir) else self._ending or "stale",
            step=self._step,
            last_time=self._last_time,
            curves=self._curves,
            incidents=tuple(self._incidents),
            attempts=tuple(Attempt(start, end) for start, end in self._attempts.items()),
            goodput=add_up(self._times),
            config=config,
            samples=samples,
            damage=" ".join(damage),
        )

    def _read_on(self) -> Iterator[str]:
        """Reads what was added to the events; yields what is wrong with them."""
        is_cut = False
        try:
            with (self.model_dir / EVENTS).open("rb") as file:
                state = os.fstat(file.fileno())
                # A run that goes back to a checkpoint writes the file anew.
                if state.st_ino != self._inode or state.st_size < self._offset:
                    self._begin_anew()
                    self._inode = state.st_ino
                file.seek(self._offset)
                is_cut = self._read_lines(file)
        except FileNotFoundError:
            self._begin_anew()
            yield f"It has no {EVENTS}."
        except OSError as error:
            yield f"{EVENTS} cannot be read: {describe_failure(error)}."
        # The last line of a run that goes on is one that is just being written.
        n_cut = is_cut and not is_owned(self.model_dir)
        if self._n_bad or n_cut:
            n_bad, n_lines = self._n_bad + n_cut, self._n_lines + n_cut
            yield f"{EVENTS} is damaged: {n_bad} of its {n_lines} lines hold no event."

    def _read_lines(self, file: BinaryIO) -> bool:
        """Reads to the end; returns whether a last line is left, which is read again when there is more of it."""
        is_inside = False
        while line := file.readline(_LONGEST_LINE):
            is_whole = line.endswith(b"\n")
            if not is_whole and not is_inside and len(line) < _LONGEST_LINE and not parse_event(line):
                return True
            self._offset += len(line)
            was_inside, is_inside = is_inside, not is_whole and (is_inside or len(line) == _LONGEST_LINE)
            if was_inside or line.isspace():
                continue
            self._n_lines += 1
            # Fingerprints are most of the bytes of many runs, and nothing here shows them.
            if is_inside or not (line.startswith(_FINGERPRINT) or self._take(parse_event(line))):
                self._n_bad += 1
        return False

    def _take(self, event: dict[str, Any]) -> bool:
        """Adds an event; returns whether it is one."""
        kind, step, time = event.get("kind"), event.get("step"), event.get("time", self._last_time)
        if not isinstance(kind, str) or not isinstance(step, int) or not isinstance(time, int | float):
            return False
        if not 0 <= step <= _LARGEST_STEP or not 0 <= time <= _LATEST:
            return False
        # A clock may have been put back.
        self._last_time = max(self._last_time, time)
        # A run that is ended early tells of that before the summary of the same step.
        if kind in _BEGINNINGS or (kind == "summary" and step > self._step):
            self._ending = ""
        if kind == "summary":
            self._step = step
            self._add_metrics(event.get("metrics"), step, time)
        elif kind == "time":
            self._step = step
            self._add_time(event)
        elif kind in _INCIDENTS:
            ending = _ending(event)
            self._step = step if ending or kind == "stopped" else self._step
            texts = {name: str(event.get(name, ""))[:_LONGEST_TEXT].strip() for name in ("text", "error")}
            self._incidents.append({"kind": kind, "step": step, "time": time} | texts)
            self._ending = ending or self._ending
        return True

    def _add_metrics(self, groups: Any, step: int, time: float) -> None:
        for group, values in groups.items() if isinstance(groups, dict) else ():
            for name, value in values.items() if isinstance(values, dict) else ():
                path = f"{group}/{name}"
                if not _is_number(value) or (path not in self._curves and len(self._curves) >= _MOST_METRICS):
                    continue
                self._curves.setdefault(path, Curve()).append(Point(step, time, float(value)))

    def _add_time(self, event: dict[str, Any]) -> None:
        attempt = event.get("attempt")
        if isinstance(attempt, int | float) and 0 <= attempt <= _LATEST:
            self._attempts[attempt] = self._last_time = max(attempt, self._last_time)
        self._times.append(event)
        if len(self._times) > _MOST_TIMES:
            # Each tells all of its attempt up to then: without some of them only the limits of lost work are coarser.
            following = [*self._times[1:], {}]
            pairs = enumerate(zip(self._times, following, strict=True))
            self._times = [one for i, (one, after) in pairs if i % 2 or one.get("attempt") != after.get("attempt")]

    def _read_config(self) -> tuple[Mapping[str, tuple[object, str]], str]:
        """The values that ran and the experiment's name; read again only when the files have changed."""
        files = [self.model_dir / name for name in ("provenance.yaml", PARAMS)]
        states = [(file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else None for file in files]
        if states != self._config[0]:
            experiment = (recorded_experiment(str(files[1])) or "") if states[1] else ""
            self._config = (states, _config(files), experiment)
        return self._config[1], self._config[2]


def _is_number(value: object) -> bool:
    # Text is turned back by float(), whole numbers may be too large for it.
    return isinstance(value, float) or value in _NOT_NUMBERS or (isinstance(value, int) and abs(value) < 1 << 1000)


def _ending(event: Mapping[str, Any]) -> str:
    if event["kind"] in ("finished", "stopped_early", "pruned"):
        return "done"
    return "failed" if event["kind"] == "stopped" and event.get("error") else ""


def _config(files: Sequence[Path]) -> dict[str, tuple[object, str]]:
    """The values of the first file that can be read; the origins are the comments of provenance.yaml."""
    for file in files:
        content, problems = read_file(file)
        if problems:
            continue
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.name != PARAMS else []
        return {
            name: (value, lines[origin.line - 1].rpartition(" # ")[2] if origin.line and lines else "")
            for name, (value, origin) in leaves_of(content).items()
        }
    return {}


def _read_samples(file: Path) -> tuple[Mapping[str, Any] | None, str]:
    """What a run has written of its last evaluation, and what is wrong with that."""
    try:
        if file.stat().st_size > _MOST_SAMPLES:
            return None, f"{SAMPLES} is larger than {_MOST_SAMPLES >> 20} MB, and not shown."
        samples = parse_json(file.read_bytes())
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{SAMPLES} cannot be read: {describe_failure(error)}."
    except ValueError:
        samples = None
    return (samples, "") if isinstance(samples, dict) else (None, f"{SAMPLES} is damaged.")
