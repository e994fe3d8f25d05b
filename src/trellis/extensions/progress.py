"""How far the training is: a bar on a terminal, a line now and then elsewhere."""

import atexit
import os
import sys
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any

from tqdm import tqdm

from trellis.errors import ArgumentError
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Event, Session
from trellis.runtime import print_line

_ENDINGS = frozenset({"finished", "stopped", "preempted"})


class ProgressBar(Extension):
    """Shows step, rate, time left and the loss of the last checkpoint while a loop trains.

    On a terminal that is a bar on stderr, which nothing that Trellis prints will tear; lines of your own go by
    `tqdm.write`. Elsewhere it is lines on stdout: the first, at most one every `line_interval` seconds, and the last.

    The rate is the mean of this run, evaluations included and compilation not, so that the time left is right, after a
    resume too.

    Example:
        process = serial(ProgressBar(), EvalLoop(task=task, n_steps=20), SummaryLogger())
        loop.attach(process)  # or the bar begins with the first checkpoint

        Step   1200 of 10000 (12 %), 85.3 steps/s, 1 min 43 s left, loss 0.4127
    """

    def __init__(self, *, line_interval: float = 30.0) -> None:
        if not line_interval >= 0:
            raise ArgumentError(f"line_interval is {line_interval}, but seconds between two lines are 0 or more.")
        self._line_interval = line_interval
        self._loss: float | None = None
        self._run: _Run | None = None
        self._display: _Bar | _Lines = _Lines(line_interval)
        self._next_time = self._next_handled = 0.0

    def join(self, session: Session) -> None:
        """Follows the steps of the session."""
        self._end()
        self._loss = None
        session.subscribe_to_progress(self._move)
        session.subscribe(self._hear)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Takes the loss to show, and returns the checkpoint as it came."""
        self._loss = checkpoint.loss
        now = monotonic()
        if self._run is not None and now >= self._next_handled:
            # The bar stands still until the loop goes on: at this step, not at the one that was drawn last.
            self._display.refresh(self._run, self._run.describe(self._loss))
        self._next_handled = now + _Bar.interval
        return checkpoint

    def _hear(self, event: Event) -> None:
        if event.kind in _ENDINGS:
            self._end()

    def _move(self, step: int, n_steps: int | None) -> None:
        now, run = monotonic(), self._run
        if run is None or run.n_steps != n_steps or step < run.step:
            run = self._begin(step, n_steps, now)
        else:
            run.step, run.time = step, now
            # The first steps are compiled: the rate is that of the steps after them.
            run.origin = run.origin or (step, now)
        if step == n_steps:
            self._end()
        elif now >= self._next_time:
            self._next_time = now + self._display.interval
            self._display.show(run, run.describe(self._loss))

    def _begin(self, step: int, n_steps: int | None, now: float) -> "_Run":
        self._end()
        self._display = _Bar() if _is_on_terminal() else _Lines(self._line_interval)
        self._next_time = now
        self._run = _Run(step, n_steps, started=now, time=now)
        return self._run

    def _end(self) -> None:
        if self._run is not None:
            self._display.show(self._run, self._run.describe_end())
            self._display.close()
            self._run = None


@dataclass
class _Run:
    """Where a run is, and how fast it got there."""

    step: int
    n_steps: int | None
    started: float
    time: float
    """When the step was completed."""
    origin: tuple[int, float] | None = None
    """The step and the time that the rate is counted from."""

    @property
    def target(self) -> int | None:
        """The last step, unless it is passed already, as single steps may do."""
        return self.n_steps if self.n_steps and self.n_steps >= self.step else None

    def describe(self, loss: float | None) -> list[str]:
        """What there is to say under way."""
        rate = self._rate()
        said = [_rate_text(rate)] if rate else []
        if rate and self.target:
            said.append(f"{_duration((self.target - self.step) / rate)} left")
        return said if loss is None else [*said, f"loss {loss:.4g}"]

    def describe_end(self) -> list[str]:
        """What there is to say when it is over."""
        rate = self._rate()
        return [*([_rate_text(rate)] if rate else []), f"took {_duration(self.time - self.started)}"]

    def _rate(self) -> float | None:
        if self.origin is None or self.origin[0] == self.step or self.origin[1] == self.time:
            return None
        return (self.step - self.origin[0]) / (self.time - self.origin[1])


class _Lines:
    """Lines on stdout, where they belong to the log."""

    def __init__(self, interval: float) -> None:
        self.interval = interval

    def show(self, run: _Run, said: list[str]) -> None:
        share = f" of {run.target} ({100 * run.step // run.target} %)" if run.target else ""
        print_line(", ".join([f"Step {run.step:6d}{share}", *said]))

    def refresh(self, run: _Run, said: list[str]) -> None:
        """What is printed stays as it is."""

    def close(self) -> None:
        """There is nothing to close."""


class _Bar:
    """A bar on stderr, which is there for the one who watches."""

    interval = 0.1

    def __init__(self) -> None:
        self._bar: Any = None
        self._excepthook = sys.excepthook

    def show(self, run: _Run, said: list[str]) -> None:
        share = f" of {run.target} |{{bar}}| {100 * run.step // run.target} %" if run.target else ""
        text = ", ".join([f"Step {run.step}{share}", *said])
        if self._bar is None:
            self._bar = tqdm(
                total=run.target, initial=run.step, bar_format=text, file=sys.stderr, leave=True, dynamic_ncols=True
            )
            # Single steps, and an error in what is done with a checkpoint, end a run without a word to the session.
            atexit.register(self.close)
            sys.excepthook = self._close_and_report
            return
        self._bar.n, self._bar.total, self._bar.bar_format = run.step, run.target, text
        self._bar.refresh()

    def refresh(self, run: _Run, said: list[str]) -> None:
        self.show(run, said)

    def close(self) -> None:
        self._bar.close()
        atexit.unregister(self.close)
        if sys.excepthook == self._close_and_report:
            sys.excepthook = self._excepthook

    def _close_and_report(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.close()
        self._excepthook(kind, error, trace)


def _is_on_terminal() -> bool:
    try:
        # A terminal without a size, such as that of `docker run -t`, has no room for a bar.
        return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except OSError:
        return False


def _rate_text(rate: float) -> str:
    if rate < 1:
        return f"{_three_digits(1 / rate)} s/step"
    return f"{_three_digits(rate)} steps/s"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
