"""Where the time of an attempt goes: every second of it is in one bucket."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trellis.aliases import JSON

BUCKETS = ("start", "compile", "input_wait", "step", "eval", "checkpoint", "other")
"""What a process can spend a second on. `checkpoint` is what a file keeps the loop from going on for."""

CLOCKED_METRICS = (
    "seconds_per_step",
    "compile_seconds",
    "input_wait",
    "examples_per_second",
    "tokens_per_second",
    "flops_utilisation",
)
"""The metrics of a training that a clock measures: two runs that are equal to the bit differ in them alone."""

_SHARE_BETWEEN_EVENTS = 0.05
_SECONDS_BETWEEN_EVENTS = (1.0, 60.0)
_SECONDS_BETWEEN_SAMPLES = 0.05
_T = TypeVar("_T")
_began_at: list[float] = []
"""When the command began that this process runs, until somebody asks."""


class TimeLedger:
    """The seconds of one attempt of a run, by what they were spent on; together they are its wall clock.

    An attempt begins with its process or its loop, and what is spent before the first step is `start`. Whoever does
    something else says so by `spending`; inside of that, the innermost counts.

    Example:
        with checkpoint.session.ledger.spending("eval"):
            evaluate(checkpoint)

    Args:
        age: How many seconds ago the attempt began.
    """

    def __init__(
        self,
        *,
        age: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._began = clock() - age
        self._last = self._began
        self._bucket = "start"
        self._seconds = dict.fromkeys(BUCKETS, 0.0)
        self._next_event = 0.0
        self.started_at = wall_clock() - age
        """In seconds since 1970; an attempt is known by it."""
        self.hidden_input = 0.0
        """Seconds in which batches were made while the devices were busy. They are in no bucket of their own."""

    def __repr__(self) -> str:
        return f"TimeLedger({', '.join(f'{name}={seconds:.3g}' for name, seconds in self.seconds().items())})"

    def switch(self, bucket: str) -> str:
        """Counts the time from now on for a bucket; returns the one that it was counted for."""
        now = self._clock()
        previous = self._bucket
        self._seconds[previous] += now - self._last
        self._last = now
        self._bucket = bucket
        return previous

    @contextmanager
    def spending(self, bucket: str) -> Iterator[None]:
        """Counts what is done inside for a bucket."""
        previous = self.switch(bucket)
        try:
            yield
        finally:
            self.switch(previous)

    def move(self, seconds: float, *, to: str) -> None:
        """Counts seconds for another bucket that were just counted for the one of this moment."""
        self._seconds[self._bucket] -= seconds
        self._seconds[to] += seconds

    def seconds(self) -> dict[str, float]:
        """The seconds in each bucket up to now."""
        self.switch(self._bucket)
        return dict(self._seconds)

    @property
    def is_due(self) -> bool:
        """Whether to write it down again: a kill loses some seconds early on, a minute of a long run."""
        return self._clock() >= self._next_event

    def as_event(self) -> dict[str, JSON]:
        """What an event says of it."""
        now = self._clock()
        least, most = _SECONDS_BETWEEN_EVENTS
        self._next_event = now + min(max(least, _SHARE_BETWEEN_EVENTS * (now - self._began)), most)
        seconds: dict[str, JSON] = {name: round(value, 4) for name, value in self.seconds().items()}
        return {"attempt": self.started_at, "seconds": seconds, "hidden_input": round(self.hidden_input, 4)}


class Call(Protocol):
    """An array that a call to the devices will have made."""

    def is_ready(self) -> bool:
        """Whether it is made."""

    def block_until_ready(self) -> Any:
        """Waits until it is made."""


class InputMeter:
    """Tells how long the devices have waited for batches: those that are made while they are busy cost nothing.

    When the last call ends while a batch is made, only a thread that waits for it can tell the moment. For quick
    batches that would be dear: a few of them are looked at, and the others are taken to be like them.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.waited = 0.0
        """Seconds so far in which the devices had nothing to do."""
        self.hidden = 0.0
        """Seconds so far in which they had."""
        self._clock = clock
        self._share = 0.0
        """Of the batches that were looked at last, the share of their time that was waited for."""
        self._next_sample = 0.0
        self._pool: ThreadPoolExecutor | None = None

    def measure(self, make: Callable[[], _T], *, last_call: Call | None) -> _T:
        """Makes batches.

        Args:
            last_call: The call that was started last; None if nothing was started.
        """
        started = self._clock()
        if last_call is None or last_call.is_ready():
            batches = make()
            self.waited += self._clock() - started
            return batches
        if started < self._next_sample:
            batches = make()
            seconds = self._clock() - started
        else:
            self._next_sample = started + _SECONDS_BETWEEN_SAMPLES
            self._pool = self._pool or ThreadPoolExecutor(max_workers=1, thread_name_prefix="trellis-input")
            done = self._pool.submit(self._when_done, last_call)
            batches = make()
            ended = self._clock()
            seconds = ended - started
            # Of a call that has ended, the thread knows the moment by now.
            waited = max(0.0, ended - done.result()) if last_call.is_ready() else 0.0
            self._share = waited / max(seconds, 1e-9)
        self.waited += self._share * seconds
        self.hidden += (1.0 - self._share) * seconds
        return batches

    def _when_done(self, call: Call) -> float:
        # An error of the call is raised where its results are used.
        with suppress(Exception):
            call.block_until_ready()
        return self._clock()


def begin_command() -> None:
    """Notes that this process was started to run a command: the time since its start is that of the run."""
    _began_at[:] = [time.perf_counter() - _process_age()]


def take_command_age() -> float:
    """How many seconds ago the command began; 0 if there is none, or if somebody has asked before."""
    return time.perf_counter() - _began_at.pop() if _began_at else 0.0


def _process_age() -> float:
    """How many seconds ago this process was started, where the system tells that; else 0."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        # After the name of the program, which may have anything in it; the 22nd field of all is the start in ticks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return 0.0
