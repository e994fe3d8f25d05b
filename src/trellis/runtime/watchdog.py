"""Tells a process that is stopped or stuck from one that takes long, and ends a run that would wait for ever."""

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

import jax

from trellis.errors import ExitCode, ProcessLostError, RunFailedError
from trellis.runtime.agreement import (
    PROGRESS,
    capitalized,
    client,
    find_failure,
    is_first_process,
    note_progress,
    process_name,
    tell_failure,
)
from trellis.runtime.cluster import seconds_in, worker_seconds
from trellis.runtime.console import flush_output, print_error

_SECONDS_BETWEEN_BEATS = 2.0
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_RAISE = 5.0
"""How long a process has to say by itself that another has failed."""
_SECONDS_TO_HEAR = 3.0
"""How long the service is waited for when this process ends."""
_SECONDS_TO_PRINT = 2 * _SECONDS_BETWEEN_BEATS + 1
"""How long it takes at most until every process has heard of the end of the run, and has printed its stacks."""
_SECONDS_TO_LEAVE = 3.0
"""How long our threads are waited for: Python aborts a process that ends while one of them is in JAX's C++."""
_COMPILED = "/jax/core/compile/backend_compile_duration"
"""What JAX calls the event of a program that was compiled."""
_MAY_TAKE_LONG = ("start", "compiling")
_MAY_BE_SILENT = ("start", "end")
"""While data is prepared, code in C may hold the interpreter for long, and our threads with it. JAX listens, too."""
_PHASES = {
    "input": "waiting for input",
    "step": "in a step",
    "eval": "in an evaluation",
    "saving": "saving",
    "extensions": "in its extensions",
    "start": "starting",
    "compiling": "compiling",
    "waiting": "waiting for others",
    "end": "at its end",
}


_ending = threading.Lock()
"""Held by the thread that ends this process."""


@dataclass(frozen=True)
class Limits:
    """How many seconds a process may be silent, and may stay at one place."""

    silence: float = 60.0
    progress: float = 1800.0

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Limits":
        """Those of `TRELLIS_WORKER_TIMEOUT` and `TRELLIS_PROGRESS_TIMEOUT`."""
        return cls(
            worker_seconds(environment), seconds_in(environment, "TRELLIS_PROGRESS_TIMEOUT", default=cls.progress)
        )


@dataclass
class _Seen:
    """What was heard of a process, and when by the clock of this one."""

    beat: int
    n_marks: int
    step: int
    phase: str
    heard_at: float
    moved_at: float

    @property
    def blame(self) -> tuple[bool, int, bool]:
        """Is greater for one that more likely keeps the others waiting.

        Whoever makes its own input waits for nobody. All else may wait for devices of others, a step most of all: for
        those of one that is behind, or that does something else meanwhile.
        """
        return self.phase == "input", -self.step, self.phase != "step"

    @property
    def place(self) -> str:
        return f"at step {self.step}, {_PHASES.get(self.phase, self.phase)}"


class Judge:
    """Decides from what is heard of all processes whether one of them is lost.

    Times are given, so that it needs no clock of its own.
    """

    def __init__(self, limits: Limits, *, now: float) -> None:
        self._limits = limits
        self._seen: dict[int, _Seen] = {}
        self._answered_at = now
        self._judged_at = now

    def hear(self, index: int, beat: int, n_marks: int, step: int, phase: str, *, now: float) -> None:
        """Notes what a process has told last."""
        before = self._seen.get(index)
        self._seen[index] = _Seen(
            beat,
            n_marks,
            step,
            phase,
            heard_at=before.heard_at if before and before.beat == beat else now,
            moved_at=before.moved_at if before and before.n_marks == n_marks else now,
        )

    def answer(self, now: float) -> None:
        """Notes that the service of the first process has answered."""
        self._answered_at = now

    def verdict(self, now: float, *, longest_pause: float) -> str:
        """Which process is lost, where and why; empty if none is.

        Args:
            longest_pause: After more seconds than these without a call, this process itself was stopped, and what it
                has not heard says nothing of the others.
        """
        if now - self._judged_at > longest_pause:
            self._answered_at = now
            for seen in self._seen.values():
                seen.heard_at = seen.moved_at = now
        self._judged_at = now
        first = self._seen.get(0)
        if now - self._answered_at > self._limits.silence:
            return f"{_name(0)} is stopped or gone: it has not answered {self._silence}{_told_place(first)}."
        for index, seen in self._seen.items():
            if now - seen.heard_at > self._limits.silence and seen.phase not in _MAY_BE_SILENT:
                return f"{_name(index)} is stopped or gone: nothing was heard of it {self._silence}{_told_place(seen)}."
        if any(seen.phase in _MAY_TAKE_LONG for seen in self._seen.values()):
            # The others wait for it, and are right to.
            return ""
        return self._stuck(now)

    def _stuck(self, now: float) -> str:
        busy = {index: seen for index, seen in self._seen.items() if seen.phase not in ("waiting", "end")}
        if not busy or now - min(seen.moved_at for seen in busy.values()) <= self._limits.progress:
            return ""
        most = max(seen.blame for seen in busy.values())
        guilty = [index for index, seen in busy.items() if seen.blame == most]
        who = _name(guilty[0]) if len(guilty) == 1 else "None of the processes"
        has_not = "has made no progress" if len(guilty) == 1 else "has made progress"
        places = [f"{process_name(index)} is {seen.place}" for index, seen in sorted(self._seen.items())]
        limit = f"for {self._limits.progress:g} seconds (TRELLIS_PROGRESS_TIMEOUT)"
        return f"{who} {has_not} {limit}: {'; '.join(places)}."

    @property
    def _silence(self) -> str:
        return f"for {self._limits.silence:g} seconds (TRELLIS_WORKER_TIMEOUT)"


def _name(index: int) -> str:
    return capitalized(process_name(index))


def _told_place(seen: _Seen | None) -> str:
    return f". It was {seen.place}" if seen else ""


@contextmanager
def watching_processes() -> Iterator[None]:
    """Within it, all processes that train together end if one of them is stopped, gone or stuck.

    Each prints its stacks first, then a line that names the lost one, its step and what it did, and exits with code 75.
    """
    _note_compiled_programs()
    watch = _Watch(Limits.of())
    note_progress("start", 0)
    threads = [
        threading.Thread(target=work, daemon=True, name="trellis-watchdog")
        for work in (watch.tell_and_hear, watch.judge)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        note_progress("end")
        watch.is_over.set()
        for thread in threads:
            thread.join(_SECONDS_TO_LEAVE)


@contextmanager
def failing_together() -> Iterator[None]:
    """Within it, all processes that have joined end if one of them fails, also before they watch each other.

    Until then JAX may wait for the one that has failed, which cannot end before the others have left.
    """
    is_over = threading.Event()
    listener = threading.Thread(target=_end_with_others, args=(is_over,), daemon=True, name="trellis-listener")
    if client() is not None:
        listener.start()
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        tell_failure(error)
        raise
    finally:
        is_over.set()
        if listener.is_alive():
            listener.join(_SECONDS_TO_LEAVE)


def _end_with_others(is_over: threading.Event) -> None:
    """Ends this process if another one has failed, until the watch begins."""
    failure = None
    while failure is None and not is_over.wait(_SECONDS_BETWEEN_BEATS) and not PROGRESS.n_marks:
        with suppress(jax.errors.JaxRuntimeError):
            failure = find_failure()
    if failure is not None and not is_over.wait(_SECONDS_TO_RAISE) and _ending.acquire(blocking=False):
        _end_after(failure)


def _end_after(failure: RunFailedError) -> NoReturn:
    """Ends this process, as another one has failed."""
    print_error(str(failure))
    flush_output()
    # The other one cannot end before this one has left.
    leaving = threading.Thread(target=_leave, daemon=True)
    leaving.start()
    leaving.join(_SECONDS_TO_HEAR)
    os._exit(ExitCode.LOST if isinstance(failure, ProcessLostError) else ExitCode.BAD_INPUT)


def _leave() -> None:
    with suppress(jax.errors.JaxRuntimeError):
        client().shutdown()


@cache
def _note_compiled_programs() -> None:
    """Has a first call of a program count as a step when it is compiled: a step that never ends is no long compile."""

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED and PROGRESS.phase == "compiling":
            note_progress("step")

    jax.monitoring.register_event_duration_secs_listener(note)


class _Watch:
    """Two threads: one that talks to the service, which may not answer, and one that judges and never waits."""

    def __init__(self, limits: Limits) -> None:
        self.is_over = threading.Event()
        self._judge = Judge(limits, now=time.monotonic())
        self._period = min(_SECONDS_BETWEEN_BEATS, limits.silence / 4)
        self._lock = threading.Lock()
        self._verdict = ""
        self._failure: RunFailedError | None = None
        self._failed_at = 0.0
        for index in range(jax.process_count()):
            process_name(index)

    def tell_and_hear(self) -> None:
        """Tells the others what this process does, and hears what they do."""
        own = f"trellis/pulse/{jax.process_index()}"
        for beat in range(sys.maxsize):
            is_last = self._wait_for_beat() if beat else False
            # At the end of a run the service may be gone.
            with suppress(jax.errors.JaxRuntimeError):
                progress = [beat, PROGRESS.n_marks, PROGRESS.step, "end" if is_last else PROGRESS.phase]
                client().key_value_set(own, json.dumps(progress), allow_overwrite=True)
                if not is_last:
                    self._hear()
            if is_last:
                return

    def _wait_for_beat(self) -> bool:
        """Waits until the next beat is due, or a start is over, after which silence counts; True at the end of all."""
        due = time.monotonic() + self._period
        phase = PROGRESS.phase
        while time.monotonic() < due and not (phase == "start" != PROGRESS.phase):
            if self.is_over.wait(_SECONDS_BETWEEN_LOOKS):
                return True
        return False

    def _hear(self) -> None:
        entries = client().key_value_dir_get("trellis/pulse/")
        verdicts = client().key_value_dir_get("trellis/verdict/")
        failure = find_failure()
        now = time.monotonic()
        with self._lock:
            self._judge.answer(now)
            for key, text in entries:
                self._judge.hear(int(key.rpartition("/")[2]), *json.loads(text), now=now)
            if verdicts:
                self._verdict = verdicts[0][1]
            if failure is not None and self._failure is None:
                self._failure, self._failed_at = failure, now

    def judge(self) -> None:
        """Ends this process if another is lost."""
        while not self.is_over.wait(self._period):
            now = time.monotonic()
            with self._lock:
                is_told = bool(self._verdict)
                lost = self._verdict or self._judge.verdict(now, longest_pause=3 * self._period + 1)
                has_failed = self._failure is not None and now - self._failed_at > _SECONDS_TO_RAISE
                failure = self._failure if has_failed else None
            if self.is_over.is_set():
                return
            if lost:
                self._end(lost, is_told=is_told)
            elif failure is not None:
                _end_after(failure)

    def _end(self, lost: str, *, is_told: bool) -> None:
        if not is_told:
            # The service may not answer, and then nobody can be told.
            telling = threading.Thread(target=_tell, args=(lost,), daemon=True)
            telling.start()
            telling.join(_SECONDS_TO_HEAR)
        with suppress(OSError, ValueError):
            faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        print_error(
            f"{lost} The run ends with code {ExitCode.LOST}; the same command goes on from its last checkpoint file."
        )
        flush_output()
        # Whoever leaves ends what the others compute with it. The first, which they hear by, leaves last.
        time.sleep(_SECONDS_TO_PRINT * (2 if is_first_process() else 1))
        os._exit(ExitCode.LOST)


def _tell(lost: str) -> None:
    with suppress(jax.errors.JaxRuntimeError):
        client().key_value_set(f"trellis/verdict/{jax.process_index()}", lost)
