"""A trace of some steps, and what took the longest in them."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from trellis.disk import local_path
from trellis.errors import ArgumentError
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Event, Session
from trellis.remote import shown
from trellis.runtime import describe_number, is_first_process, print_line, table

_N_SHOWN = 10
_ENDINGS = frozenset({"finished", "stopped", "preempted"})
_LONGEST_NAME = 60


class Profiler(Extension):
    """Traces the steps from `start` to `stop` into `{output_dir}/profile`, and prints the ten largest operations.

    TensorBoard (with its profile plugin) and Perfetto open the trace. Steps run in calls of several, and where calls
    are cut does not change: the trace begins with the first call after step `start`, and ends when the call that
    completes step `stop` is through. Only the first process traces.

    Example:
        loop.attach(Profiler("runs/digits", start=100, stop=120))

    Args:
        start: The last step before the trace. One that is 0 has the time of compiling in it.
        stop: The last step in it.
    """

    def __init__(self, output_dir: str | os.PathLike[str], *, start: int, stop: int) -> None:
        if start < 0 or stop <= start:
            raise ArgumentError(
                f"Profiler(start={start}, stop={stop}) has no step in it. Give the last step before those to trace, "
                f"and the last of them: start=100, stop=120."
            )
        self._dir = local_path(output_dir, name="output_dir") / "profile"
        self._start = start
        self._stop = stop
        self._first_step: int | None = None
        """The step before the trace that is under way; None if none is."""
        self._is_done = False

    def __repr__(self) -> str:
        return f"Profiler({str(self._dir.parent)!r}, start={self._start}, stop={self._stop})"

    def join(self, session: Session) -> None:
        """Follows the steps of the session."""
        if not is_first_process():
            return
        session.subscribe_to_progress(lambda step, n_steps: self._move(step, session))
        session.subscribe(lambda event: self._hear(event, session))

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Returns the checkpoint as it came."""
        return checkpoint

    def _move(self, step: int, session: Session) -> None:
        if self._is_done:
            return
        if self._first_step is not None:
            if step >= self._stop:
                self._end(step, session)
        elif step >= self._stop:
            self._is_done = True
            print_line(
                f"Nothing is traced: the loop is at step {step}, past the steps {self._start} to {self._stop}. A run "
                f"that goes on has no earlier steps."
            )
        elif step >= self._start:
            # Steps that were started before are no part of it.
            session.wait_for_steps()
            with session.ledger.spending("other"):
                self._begin(step)

    def _begin(self, step: int) -> None:
        options = jax.profiler.ProfileOptions()
        # Calls of Python would be most of a large file, and slow down what is measured.
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(self._dir, profiler_options=options)
        except (RuntimeError, OSError) as error:
            self._is_done = True
            print_line(f"Nothing is traced: {error}")
            return
        self._first_step = step

    def _hear(self, event: Event, session: Session) -> None:
        if event.kind not in _ENDINGS or self._is_done:
            return
        if self._first_step is not None:
            self._end(event.step, session)
        elif event.step < self._start and event.kind == "finished" and event.step == session.n_steps:
            # A stage of a training may end before, and so may one that is gone on with.
            print_line(f"Nothing is traced so far: the loop ended at step {event.step}, before step {self._start}.")

    def _end(self, step: int, session: Session) -> None:
        session.wait_for_steps()
        first, self._first_step = self._first_step, None
        self._is_done = True
        with session.ledger.spending("other"):
            jax.profiler.stop_trace()
            print_line("\n".join(self._report(first or 0, step)))

    def _report(self, first: int, last: int) -> Iterator[str]:
        asked = "" if (first, last) == (self._start, self._stop) else f" (asked for: {self._start} to {self._stop})"
        yield f"Traced the steps after {first} up to {last}{asked}: {shown(self._dir)}"
        files = sorted(self._dir.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        operations = largest_operations(files[-1]) if files else []
        if not operations:
            yield "No operation of a device is in the trace."
            return
        n_steps = max(1, last - first)
        total = sum(operation.seconds for operation in operations)
        rows = [("ms a step", "share", "calls a step", "operation")]
        rows += [
            (
                f"{1e3 * operation.seconds / n_steps:.3f}",
                f"{100 * operation.seconds / total:.1f} %",
                describe_number(operation.n_calls / n_steps),
                _shortened(operation.name),
            )
            for operation in operations[:_N_SHOWN]
        ]
        yield from table(rows, alignment=">>><")
        rest = len(operations) - _N_SHOWN
        if rest > 0:
            share = sum(operation.seconds for operation in operations[_N_SHOWN:]) / total
            yield f"and {rest} more operations, {100 * share:.1f} % of the time of all."


@dataclass(frozen=True)
class Operation:
    """An operation of a compiled program, or a kernel."""

    name: str
    seconds: float
    """On all devices and threads together, without the operations inside of it."""
    n_calls: int


def largest_operations(file: Path) -> list[Operation]:
    """The operations of a trace, an `.xplane.pb` file, the largest first."""
    seconds: dict[str, float] = defaultdict(float)
    n_calls: dict[str, int] = defaultdict(int)
    planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    on_devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in on_devices or planes:
        for line in plane.lines:
            for name, own in _own_times(_operations(line, is_device=bool(on_devices))):
                seconds[name] += own
                n_calls[name] += 1
    names = sorted(seconds, key=lambda name: -seconds[name])
    return [Operation(name, seconds[name], n_calls[name]) for name in names if seconds[name] > 0]


def _operations(line: Any, *, is_device: bool) -> list[tuple[float, float, str]]:
    """The start, the end and the name of each operation on a line: a stream of a GPU, a core of a TPU, a thread."""
    # A device has lines beside that repeat the same time under other names, such as those of whole programs.
    if is_device and not line.name.startswith(("Stream", "XLA Ops")):
        return []
    return [
        (event.start_ns, event.start_ns + event.duration_ns, event.name)
        for event in line.events
        if is_device or any(name == "hlo_op" for name, _ in event.stats)
    ]


def _own_times(operations: Iterable[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """The name and the seconds of each operation, less those that ran inside of it."""
    under_way: list[list[Any]] = []
    for start, end, name in sorted(operations, key=lambda operation: (operation[0], -operation[1])):
        while under_way and under_way[-1][0] <= start:
            _, name_before, own = under_way.pop()
            yield name_before, own / 1e9
        if under_way:
            under_way[-1][2] -= end - start
        under_way.append([end, name, end - start])
    for _, name, own in under_way:
        yield name, own / 1e9


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
