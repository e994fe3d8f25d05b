"""Runs as services that track experiments see them."""

import atexit
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trellis.aliases import JSON
from trellis.disk import check_writable, local_path, write_whole
from trellis.errors import ArgumentError
from trellis.extensions.configs import ServiceName
from trellis.extensions.event_lines import read_summaries
from trellis.extensions.extension import Extension
from trellis.extensions.tracking_services import Status, TrackedRun, TrackingService, build_service
from trellis.loops import Checkpoint, Event, Media, Session, Summary
from trellis.runtime import is_first_process, print_line
from trellis.version import __version__

_MOST_WAITING = 10_000
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PATIENCE: Mapping[Status, float] = {"finished": 30.0, "stopped": 5.0, "failed": 5.0}
"""For how many seconds the end of a run waits for what is still to be sent; who sends SIGTERM does not wait long."""
_UNTOLD = ("initialized", "finished", "stopped", "untracked")
"""Of events with a text: what a service shows of a run by itself, or is told in another way."""


class Tracker(Extension):
    """Has a service track a run: `wandb`, `mlflow` or `trackio`, each an extra of that name.

    The service gets the config, every summary with its histograms, images and text, and events that have something to
    say. It is called by a thread of its own, so that it slows nothing; what it refuses, or what cannot reach it, is
    told once, tried again for as long as the run goes on, and never ends the run. Of several processes the first one
    tracks.

    The run's id there, and how far it has been told, are in `{output_dir}/trackers/{service}.json`. A run that is
    resumed goes on there. What it does again is not told again; what it had no time to tell is taken from the
    `events.jsonl` of an `EventWriter` in the same directory, if there is one. A run that starts at step 0 is a new one.

    As an extension it comes after the `EventWriter`: `Tracker("mlflow", output_dir="runs/digits")`. What happens before
    the first checkpoint is told if it is attached: `loop.attach(process)`.

    Args:
        service: The name of one, or one of your own.
        output_dir: The run's directory.
        name: What the run is called there; the default is the name of its directory.
        project: What it is filed under; the environment may say so too, as the service has it.
        config: What it was run with: values by name.
    """

    def __init__(
        self,
        service: ServiceName | TrackingService,
        *,
        output_dir: str | os.PathLike[str],
        name: str = "",
        project: str = "trellis",
        config: Mapping[str, JSON] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(service, str | TrackingService):
            raise ArgumentError(
                f"Tracker was given {service!r}. Give the name of a service, or a trellis.extensions.TrackingService."
            )
        self._name = service if isinstance(service, str) else type(service).__name__
        directory = local_path(output_dir, name="output_dir")
        self._service = build_service(service) if isinstance(service, str) else service
        self._run = TrackedRun(
            name=name or directory.absolute().name,
            project=project,
            directory=directory / "trackers",
            config=dict(config or {}),
            tags={"trellis": __version__, **(tags or {})},
        )
        self._events_file = directory / "events.jsonl"
        self._worker: _Worker | None = None
        self._session: Session | None = None
        self._waiting: list[Event] = []
        """Events of before the step that the run starts at is known."""
        self._is_open = False
        self._is_chief = is_first_process()
        if self._is_chief:
            check_writable(self._run.directory)

    def __repr__(self) -> str:
        return f"Tracker({self._name!r}, output_dir={str(self._run.directory.parent)!r})"

    def join(self, session: Session) -> None:
        """Tells of what has happened in the session so far, and what will."""
        if self._is_chief:
            self._session = session
            session.subscribe(self._hear)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Has a summary told, and returns the checkpoint as it came."""
        if self._is_chief:
            summary = Summary.from_checkpoint(checkpoint)
            self._open(summary.step - summary.n_completed_steps)
            self._working.put(_Point(summary.step, time.time(), _values(summary)))
        return checkpoint

    def close(self, status: Status = "finished") -> None:
        """Waits a while until all is told, and ends the run there; a loop that ends does this itself."""
        if self._is_open:
            self._is_open = False
            n_left = self._working.finish(status)
            if n_left:
                self._complain(
                    f"{self._name} was not told of {n_left} points when the run ended. If it is resumed, they are."
                )

    def _hear(self, event: Event) -> None:
        if event.kind == "initialized":
            self._open(event.step)
        elif event.kind in ("finished", "stopped"):
            error = event.values.get("error")
            if error and self._is_open:
                self._working.put(_Told(event.step, "stopped", str(error)))
            self.close("finished" if event.kind == "finished" else "failed" if error else "stopped")
        elif event.text and event.kind not in _UNTOLD:
            if self._is_open:
                self._working.put(_Told(event.step, event.kind, event.text))
            else:
                self._waiting.append(event)

    def _open(self, step: int) -> None:
        """Has the service start, or go on with, a run that has completed so many steps."""
        if self._is_open:
            return
        self._is_open = True
        self._working.put(_Start(step))
        for event in self._waiting:
            self._working.put(_Told(event.step, event.kind, event.text))
        self._waiting.clear()

    @property
    def _working(self) -> "_Worker":
        if self._worker is None:
            self._worker = _Worker(
                self._service,
                name=self._name,
                run=self._run,
                record=_Record(self._run.directory / f"{self._name}.json"),
                events_file=self._events_file,
                complain=self._complain,
            )
            # A script that takes single steps has no end that a session would tell of.
            atexit.register(self.close)
        return self._worker

    def _complain(self, problem: str) -> None:
        # What is in the way of telling, such as a full disk, is in that of the run too, which then raises it.
        with suppress(Exception):
            if self._session is None:
                print_line(problem)
                return
            self._session.emit("untracked", step=0, text=problem, service=self._name)


@dataclass(frozen=True)
class _Start:
    step: int


@dataclass(frozen=True)
class _Point:
    step: int
    time: float
    values: Mapping[str, float | Media]


@dataclass(frozen=True)
class _Told:
    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class _End:
    status: Status
    is_done: threading.Event


_Item = _Start | _Point | _Told | _End


def _values(summary: Summary) -> dict[str, float | Media]:
    numbers = {
        f"{group}/{name}": float(value) for group, metrics in summary.metrics.items() for name, value in metrics.items()
    }
    media = {f"{group}/{name}": value for group, named in summary.media.items() for name, value in named.items()}
    # Histograms and the like may have the names of numbers.
    return {**numbers, **{f"{name}_" if name in numbers else name: value for name, value in media.items()}}


class _Record:
    """What is kept of a tracked run between processes: its id there, and the last step that it was told of."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[str, int]:
        """The id and the step; nothing and 0 if there are none, or the file is damaged."""
        try:
            content = json.loads(self._path.read_bytes())
            return str(content["run"]), int(content["step"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "", 0

    def write(self, run_id: str, step: int) -> None:
        write_whole(self._path, f"{json.dumps({'run': run_id, 'step': step})}\n".encode())


class _Worker:
    """The thread that calls a service, with what it is still to be told, in order."""

    def __init__(
        self,
        service: TrackingService,
        *,
        name: str,
        run: TrackedRun,
        record: _Record,
        events_file: Path,
        complain: Callable[[str], None],
    ) -> None:
        self._service = service
        self._name = name
        self._run = run
        self._record = record
        self._events_file = events_file
        self._complain = complain
        self._items: queue.Queue[_Item] = queue.Queue()
        self._is_ending = threading.Event()
        self._has_complained = False
        self._is_lost = False
        """Whether the service is given up until the next start."""
        self._n_lost = 0
        self._run_id = ""
        self._step = 0
        """The last step that the service was told of."""
        threading.Thread(target=self._work, name="trellis-tracker", daemon=True).start()

    def put(self, item: _Item) -> None:
        """Has the service told of something, some time."""
        # Those that find no room are in the file of events; and a service that is so far behind does not get well.
        if self._items.qsize() < _MOST_WAITING or isinstance(item, _Start):
            self._items.put(item)
        else:
            self._n_lost += 1

    def finish(self, status: Status) -> int:
        """Waits until the service was told of everything, or for as long as is fair; returns what is left."""
        end = _End(status, threading.Event())
        self._is_ending.set()
        self._items.put(end)
        if end.is_done.wait(_PATIENCE[status]):
            n_left, self._n_lost = self._n_lost, 0
            return n_left
        return self._n_lost + sum(isinstance(item, _Point) for item in list(self._items.queue))

    def _work(self) -> None:
        while True:
            match self._items.get():
                case _Start(step):
                    self._is_lost = False
                    self._try(partial(self._start, step))
                    self._catch_up(step)
                case _Point() as point:
                    self._tell_point(point)
                case _Told(step, kind, text):
                    self._try(partial(self._service.tell, step, kind, text))
                case _End(status, is_done):
                    self._try(partial(self._service.finish, status))
                    self._is_ending.clear()
                    is_done.set()

    def _start(self, step: int) -> None:
        known, told_up_to = self._record.read() if step else ("", 0)
        self._run_id = self._service.start(replace(self._run, id=known))
        # A service that has lost the run has made a new one.
        self._step = told_up_to if self._run_id == known else 0
        self._record.write(self._run_id, self._step)
        if notice := self._service.notice():
            self._complain(notice)

    def _catch_up(self, step: int) -> None:
        """Tells of what the run had no time to tell before the step that it goes on from."""
        if self._step < step and not self._is_lost:
            for point in _points_between(self._step, step, self._events_file):
                self._tell_point(point)

    def _tell_point(self, point: _Point) -> None:
        if self._is_lost:
            self._n_lost += 1
        elif point.step > self._step:
            before = self._step

            def tell() -> None:
                # Before it is sent: whoever is killed in between leaves a point out, and tells none twice.
                self._record.write(self._run_id, point.step)
                try:
                    self._service.log(point.step, point.time, point.values)
                except BaseException:
                    self._record.write(self._run_id, before)
                    raise
                self._step = point.step

            self._n_lost += not self._try(tell)

    def _try(self, call: Callable[[], None]) -> bool:
        """Calls until it does not fail, or the run ends; returns whether it was done."""
        pause = _FIRST_PAUSE
        while not self._is_lost:
            try:
                call()
                return True
            except Exception as error:  # noqa: BLE001  (nothing that a service does may end a training)
                if not self._has_complained:
                    self._has_complained = True
                    self._complain(
                        f"{self._name} cannot be reached, or refuses what it is told: {_one_line(error)} The training "
                        f"goes on, and it is tried again."
                    )
            if self._is_ending.wait(pause):
                self._is_lost = True
            pause = min(2 * pause, _LONGEST_PAUSE)
        return False


def _points_between(after: int, last: int, events_file: Path) -> Iterator[_Point]:
    """The summaries in a file of events of steps past the one and up to the other."""
    for step, event in sorted(read_summaries(events_file).items()):
        if not after < step <= last:
            continue
        # What is no summary of ours is passed over.
        with suppress(KeyError, ValueError, TypeError, AttributeError):
            named = {group: dict(metrics) for group, metrics in event["metrics"].items()}
            values = {f"{group}/{name}": float(value) for group in named for name, value in named[group].items()}
            yield _Point(step, float(event["time"]), values)


def _one_line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return text if text.endswith(".") else f"{text}."
