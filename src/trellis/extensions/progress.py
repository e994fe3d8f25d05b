"""How far the training is: a bar on a terminal, a line now and then elsewhere."""

from dataclasses import dataclass
from time import monotonic

from trellis.errors import ArgumentError
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Event, Session
from trellis.runtime import DRAW_INTERVAL, Bar, NotebookBar, describe_duration, describe_rate, new_bar, print_line

_ENDINGS = frozenset({"finished", "stopped", "preempted"})


class ProgressBar(Extension):
    """Shows step, rate, time left and the loss of the last checkpoint while a loop trains.

    On a terminal this is a bar on stderr, which nothing that Trellis prints will tear. A `print` of your own is on a
    line of its own below the bar, which is drawn anew below it; `trellis.runtime.print_line` prints above the bar.
    In a notebook it is a line of the cell's output that is replaced.
    Elsewhere there are lines on stdout: the first, at most one every `line_interval` seconds, and the last.

    The rate is the mean of this run. It includes evaluations and excludes compilation, so that the time left is right,
    after a resume too.

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
        self._bar: Bar | NotebookBar | None = None
        self._next_time = 0.0
        self._next_refresh = 0.0

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
        if self._run is not None and self._bar is not None and now >= self._next_refresh:
            # The bar does not move until the loop goes on. It should show this step, not the one that was drawn last.
            self._show(self._run, self._run.describe(self._loss))
        self._next_refresh = now + DRAW_INTERVAL
        return checkpoint

    def _hear(self, event: Event) -> None:
        if event.kind in _ENDINGS:
            self._end()

    def _move(self, step: int, n_steps: int | None) -> None:
        now = monotonic()
        run = self._run
        if run is None or run.n_steps != n_steps or step < run.step:
            run = self._begin(step, n_steps, now)
        else:
            run.step = step
            run.time = now
            # The first steps include compilation. The rate is that of the steps after them.
            run.origin = run.origin or (step, now)
        if step == n_steps:
            self._end()
        elif now >= self._next_time:
            self._next_time = now + (self._line_interval if self._bar is None else DRAW_INTERVAL)
            self._show(run, run.describe(self._loss))

    def _begin(self, step: int, n_steps: int | None, now: float) -> "_Run":
        self._end()
        self._bar = new_bar()
        self._next_time = now
        self._run = _Run(step, n_steps, started=now, time=now)
        return self._run

    def _end(self) -> None:
        if self._run is not None:
            self._show(self._run, self._run.describe_end())
            self._run = None
        if self._bar is not None:
            self._bar.close()

    def _show(self, run: "_Run", details: list[str]) -> None:
        percent = f"{100 * run.step // run.target} %" if run.target else ""
        if self._bar is None:
            share = f" of {run.target} ({percent})" if run.target else ""
            print_line(", ".join([f"Step {run.step:6d}{share}", *details]))
        elif run.target:
            details = [percent, *details]
            self._bar.show(f"Step {run.step} of {run.target}", share=run.step / run.target, details=", ".join(details))
        else:
            self._bar.show(f"Step {run.step}", details=", ".join(details))


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
        """Returns what to show while the run goes on."""
        rate = self._rate()
        details = []
        if rate:
            details.append(describe_rate(rate))
            if self.target:
                details.append(f"{describe_duration((self.target - self.step) / rate)} left")
        if loss is not None:
            details.append(f"loss {loss:.4g}")
        return details

    def describe_end(self) -> list[str]:
        """Returns what to show when the run is over."""
        rate = self._rate()
        took = f"took {describe_duration(self.time - self.started)}"
        return [describe_rate(rate), took] if rate else [took]

    def _rate(self) -> float | None:
        if self.origin is None or self.origin[0] == self.step or self.origin[1] == self.time:
            return None
        return (self.step - self.origin[0]) / (self.time - self.origin[1])
