"""What a loop shares with the extensions that see its checkpoints: events, saves under way, a request to stop."""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from inspect import GEN_RUNNING, getgeneratorstate
from types import FrameType
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from trellis.aliases import JSON
from trellis.errors import Preempted
from trellis.loops.time_ledger import TimeLedger
from trellis.runtime import is_any_stopping, print_line

_T = TypeVar("_T")
_STOPPING = "\nThe run {} when the steps under way are done. Ctrl-C again leaves at once.\n"


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    kind: str
    step: int
    text: str = ""
    """The line for a person; empty if there is nothing to say."""
    values: Mapping[str, JSON] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class _Save:
    written: Future[None]
    commit: Callable[[], None]
    drop: Callable[[], None]
    is_resumable: bool


class Session:
    """Events, saves and preemption of one loop, and who takes part in it.

    A save is written in the background and committed when the loop moves on, so that a checkpoint file is there only if
    all that was done with its checkpoint is done too. The saves of a checkpoint are committed together, those that a
    run resumes from last; if one of them fails, or something else that was done with the checkpoint, none is.

    Args:
        is_shared: Whether other processes run the same loop on a part of its devices.
    """

    def __init__(self, *, stdout: bool = False, is_shared: bool = False) -> None:
        self.stopped_by = ""
        """What asks the loop to stop, such as `SIGTERM`; empty if nothing does."""
        self.n_steps: int | None = None
        """The step that the loop trains up to, once it does; None if that is not known."""
        self.is_stepping = False
        """Whether steps are under way, in the midst of which there is no state to keep."""
        self.ledger = TimeLedger()
        """Where the time goes; loops that are one run share one."""
        self.wait_for_steps: Callable[[], None] = lambda: None
        """Waits until the steps that were started are completed."""
        self._is_running = False
        self._is_shared = is_shared
        self._stdout = stdout
        self._lock = threading.Lock()
        self._joined: dict[int, object] = {}
        self._shared: dict[Callable[[], Any], Any] = {}
        self._listeners: list[Callable[[Event], object]] = []
        self._progress_listeners: list[Callable[[int, int | None], object]] = []
        self._backlog: deque[Event] = deque(maxlen=1000)
        self._savers: list[Callable[[Any], None]] = []
        self._logs: list[Callable[[], None]] = []
        self._senders: list[Callable[[], None]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._pending: list[_Save] = []
        self._commits: list[Future[None]] = []
        self._has_failed = False
        """Whether a commit has failed of which nobody was told yet."""
        self._failed_step: int | None = None
        """The step of the last checkpoint, if it was not handled to the end."""

    def __repr__(self) -> str:
        return f"Session({len(self._joined)} extensions)"

    def admit(self, extension: object) -> bool:
        """Notes that an extension takes part; returns False if it did so before.

        Extensions are told apart by identity: two dataclasses with the same fields are equal, and have no hash.
        """
        if id(extension) in self._joined:
            return False
        # The extension itself is kept, so that no other one gets its id.
        self._joined[id(extension)] = extension
        return True

    def shared(self, build: Callable[[], _T]) -> _T:
        """An object that all extensions share while they handle one checkpoint; it is gone when the loop moves on.

        Args:
            build: Makes the object at the first call for a checkpoint, such as its class.
        """
        if build not in self._shared:
            self._shared[build] = build()
        result: _T = self._shared[build]
        return result

    def emit(self, kind: str, *, step: int, text: str = "", **values: JSON) -> None:
        """Tells every listener, now or when it subscribes, that something happened."""
        event = Event(kind=kind, step=step, text=text, values=values)
        # Saves in the background emit events too.
        with self._lock:
            self._backlog.append(event)
            listeners = list(self._listeners)
        for listener in listeners:
            listener(event)
        if self._stdout and text:
            print_line(text)

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM or Ctrl-C has come."""
        return bool(self.stopped_by)

    @property
    def can_save(self) -> bool:
        """Whether something would be saved if the run was told to stop."""
        return bool(self._savers)

    @property
    def wants_to_stop(self) -> bool:
        """Whether to stop now; of several processes none does so before the others. Read once between two calls."""
        return self.is_stopping or (self._is_shared and is_any_stopping())

    def subscribe(self, listener: Callable[[Event], object]) -> None:
        """Calls the listener with each event so far, and from now on."""
        with self._lock:
            backlog = list(self._backlog)
            self._listeners.append(listener)
        for event in backlog:
            listener(event)

    def subscribe_to_progress(self, listener: Callable[[int, int | None], object]) -> None:
        """Calls the listener with (step, last step) whenever steps are completed."""
        self._progress_listeners.append(listener)

    def progress(self, step: int, n_steps: int | None) -> None:
        """Tells that `step` steps are completed, of `n_steps`."""
        self.n_steps = n_steps
        for listener in self._progress_listeners:
            listener(step, n_steps)

    def write_time(self, step: int, *, is_due: bool = False) -> None:
        """Tells where the time has gone, if a checkpoint file of the step is under way or it is due otherwise."""
        if is_due or self._pending or self.ledger.is_due:
            self.emit("time", step=step, text="", **self.ledger.as_event())

    def before_commit(self, sync: Callable[[], None]) -> None:
        """Calls `sync` before files are committed: what was logged of a checkpoint is on the disk before its file."""
        if sync not in self._logs:
            self._logs.append(sync)

    def after_commit(self, send: Callable[[], None]) -> None:
        """Calls `send` in the background after files are committed; its error is raised as that of a save."""
        if send not in self._senders:
            self._senders.append(send)

    def save(
        self,
        write: Callable[[], None],
        commit: Callable[[], None],
        *,
        drop: Callable[[], None] = lambda: None,
        is_resumable: bool,
    ) -> Future[None]:
        """Runs `write` in the background now, and `commit` after it once the loop has moved on.

        Outside of a loop that is iterated over, this waits until it is written: a script may end after a single step,
        and then no thread can be started any more that the write would need.

        Args:
            drop: Is run in the place of `commit` if the checkpoint is not handled to the end.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trellis-save")
        _process.unfinished.add(self)
        written = self._pool.submit(write)
        if not self._is_running:
            with self.ledger.spending("checkpoint"):
                wait([written])
        self._pending.append(_Save(written, commit, drop, is_resumable))
        return written

    def wait_for(self, written: Future[None]) -> None:
        """Waits until a save is written; raises its error if it failed and its checkpoint is still being handled."""
        error = written.exception()
        failed = [save for save in self._pending if save.written is written]
        if error is not None and failed:
            self._pending.remove(failed[0])
            failed[0].drop()
            raise error

    def fail(self, step: int) -> None:
        """Notes that the checkpoint of a step was not handled to the end.

        If the loop is left now, its saves are dropped, and a resumed run handles it again. If the loop moves on, its
        user has caught the error and goes on without what is missing: then they are committed.
        """
        self._failed_step = step

    def advance(self) -> None:
        """Commits the saves of the checkpoint that is left behind; raises the error of a save that failed."""
        self._shared.clear()
        self._failed_step = None
        if not self._pending and not self._commits:
            return
        pending, self._pending = self._pending, []
        if pending and self._pool is not None:
            self._commits.append(self._pool.submit(self._commit, pending))
        if any(save.written.done() and save.written.exception() for save in pending):
            wait(self._commits)
        self._raise_failure()

    def finish(self) -> None:
        """Commits every save and waits for it; raises the error of one that failed.

        If the last checkpoint was not handled to the end, its saves are dropped instead.
        """
        if self._failed_step is not None:
            self._drop_pending(self._failed_step)
        self.advance()
        wait(self._commits)
        self._raise_failure()

    def _commit(self, saves: list[_Save]) -> None:
        """Commits all saves of a checkpoint, or drops them; after one that failed, those of later checkpoints too."""
        try:
            if not self._has_failed:
                for save in saves:
                    save.written.result()
                for sync in self._logs:
                    sync()
                for save in sorted(saves, key=lambda save: save.is_resumable):
                    save.commit()
                for send in self._senders:
                    send()
        except BaseException:
            self._has_failed = True
            raise
        finally:
            if self._has_failed:
                for save in saves:
                    save.drop()

    def _raise_failure(self) -> None:
        """Forgets the commits that are done; raises the error of one that failed."""
        failed = [commit for commit in self._commits if commit.done() and commit.exception()]
        if failed:
            # Those after it are dropped, and not taken up again when this error is told.
            wait(self._commits)
            self._has_failed = False
        self._commits = [commit for commit in self._commits if not commit.done()]
        if not self._commits and not self._pending:
            _process.unfinished.discard(self)
        if failed:
            failed[0].result()

    def _drop_pending(self, step: int) -> None:
        pending, self._pending = self._pending, []
        # What a writer falls back to is what is committed.
        wait([*self._commits, *(save.written for save in pending)])
        for save in pending:
            save.drop()
        if pending:
            text = f"Step {step:6d}: no file is kept, as not all was done with it. The same command does it again."
            self.emit("dropped", step=step, text=text)

    def on_preemption(self, save: Callable[[Any], None]) -> None:
        """Calls `save` with a checkpoint when the run is told to stop."""
        if save not in self._savers:
            self._savers.append(save)

    def preempt(self, checkpoint: Any) -> int:
        """Calls all that was given to `on_preemption` with a checkpoint; returns how many there were."""
        with self.ledger.spending("checkpoint"):
            for save in self._savers:
                save(checkpoint)
            self.finish()
        return len(self._savers)

    @contextmanager
    def running(self, step: Callable[[], int]) -> Iterator[None]:
        """Surrounds a loop that trains: signals are requests to stop, and saves are finished however the loop is left.

        Args:
            step: Returns how many steps are completed.
        """
        self._is_running = True
        try:
            with self.watching_for_signals():
                try:
                    yield
                finally:
                    self._is_running = False
                    self._end(step())
        except (GeneratorExit, Preempted):
            # Someone left the loop by `break`, or it was told to stop and did: there is no error.
            self.emit("stopped", step=step())
            raise
        except BaseException as error:
            told = {} if isinstance(error, KeyboardInterrupt) and self.is_stopping else {"error": repr(error)}
            self.emit("stopped", step=step(), **told)
            raise
        finally:
            self.forget_interrupt()
        self.emit("finished", step=step())

    def _end(self, step: int) -> None:
        with self.ledger.spending("checkpoint"):
            self.finish()
        self.write_time(step, is_due=True)

    def forget_interrupt(self) -> None:
        """Forgets a Ctrl-C that was followed: in a notebook, the loop may be run again."""
        if self.stopped_by == "Ctrl-C":
            self.stopped_by = ""

    @contextmanager
    def watching_for_signals(self) -> Iterator[None]:
        """Turns SIGTERM and Ctrl-C into requests to stop, which a loop follows when its steps under way are done.

        A second Ctrl-C raises KeyboardInterrupt at once, and so does the first if no steps are under way and nothing
        would be saved. Where processes train together, JAX itself handles SIGTERM, and has all of them stop at the same
        step; Ctrl-C in one of them is the same.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if self._is_shared:
            with _telling_others_of_interrupt():
                yield
            return
        _process.watch(self)
        try:
            yield
        finally:
            _process.unwatch(self)


@contextmanager
def _telling_others_of_interrupt() -> Iterator[None]:
    """Has a first Ctrl-C be a SIGTERM, which stops all processes: one that left alone would keep the others waiting."""
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):
        yield
        return

    def stop_all(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        with suppress(OSError):
            os.write(2, _STOPPING.format("saves and stops in all processes").encode())
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, stop_all)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def close_at_exit(loop: Generator[Any, None, None]) -> None:
    """Leaves a loop that is still under way when the interpreter ends, while there is still all that this needs."""
    _process.loops.add(loop)


class Attachable(Protocol):
    """An extension that can take part in a run before it sees a checkpoint."""

    def attach(self, session: Session) -> None:
        """Subscribes to the events of the session."""


class _Process:
    """What all sessions of a process have in common, because a process has it only once.

    These are the handlers of signals and the end of the interpreter.
    """

    def __init__(self) -> None:
        self.unfinished: set[Session] = set()
        """Sessions with saves under way."""
        self.loops: WeakSet[Generator[Any, None, None]] = WeakSet()
        self._watching: list[Session] = []
        self._previous_handlers: dict[int, Any] = {}

    def watch(self, session: Session) -> None:
        """Tells a session of signals from now on."""
        if not self._watching:
            handlers = {signal.SIGTERM: self._handle_sigterm, signal.SIGINT: self._handle_sigint}
            # A shell has those that it starts in the background ignore Ctrl-C, and so they do.
            numbers = [number for number in handlers if signal.getsignal(number) != signal.SIG_IGN]
            self._previous_handlers = {number: signal.signal(number, handlers[number]) for number in numbers}
        self._watching.append(session)

    def unwatch(self, session: Session) -> None:
        """Ends what `watch` began; loops may end in any order, and the last one gives the signal back."""
        self._watching.remove(session)
        if not self._watching:
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)
            self._previous_handlers = {}

    def finish(self) -> None:
        """Leaves the loops that nobody has left, and commits the saves that no loop will come back to."""
        # A loop that runs now is that of a thread which ends with the interpreter.
        loops = [loop for loop in self.loops if getgeneratorstate(loop) != GEN_RUNNING]
        for finish in [*(loop.close for loop in loops), *(session.finish for session in self.unfinished)]:
            try:
                finish()
            except Exception as error:  # noqa: BLE001  (the interpreter is leaving: there is no caller to raise to)
                print(f"A checkpoint was not saved: {error}", file=sys.stderr)

    def _handle_sigterm(self, number: int, frame: FrameType | None) -> None:
        for session in self._watching:
            session.stopped_by = "SIGTERM"
        self._call_previous(number, frame)

    def _handle_sigint(self, number: int, frame: FrameType | None) -> None:
        is_first = not any(session.is_stopping for session in self._watching)
        can_save = any(session.can_save for session in self._watching)
        if is_first and (can_save or any(session.is_stepping for session in self._watching)):
            for session in self._watching:
                session.stopped_by = "Ctrl-C"
            # Not by Python's streams, which may be in the midst of a write.
            with suppress(OSError):
                os.write(2, _STOPPING.format("saves and stops" if can_save else "stops").encode())
        else:
            self._call_previous(number, frame)

    def _call_previous(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous_handlers.get(number)
        if callable(previous):
            previous(number, frame)


_process = _Process()
# A save needs threads, and those that `atexit` calls come after the last moment at which one can be started.
threading._register_atexit(_process.finish)  # type: ignore[attr-defined]


def finish_saves() -> None:
    """Commits every save under way in this process, of any session, and waits for it."""
    for session in list(_process.unfinished):
        session.finish()
