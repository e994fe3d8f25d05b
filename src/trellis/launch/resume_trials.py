"""Runs that are killed at random points and resumed, compared with one that was left alone."""

import os
import random
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from trellis.errors import ExitCode, RunFailedError
from trellis.executor import LocalProcess, WorkerOrder, local_cluster, start_process
from trellis.experiments import Comparison, RunRecord, compare_runs
from trellis.extensions import read_events
from trellis.launch.local import shares_of_gpus

SIGNALS = ((signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGKILL, signal.SIGTERM))
"""What the first runs are sent, one after the other; those after them begin anew."""
_SECONDS_BETWEEN_LOOKS = 0.002
_SECONDS_TO_STOP = 5.0
_SECONDS_TO_SAVE = 120.0
_MOST_ATTEMPTS = 4
_TAIL_BYTES = 3000
_NEVER_KILLED = (
    "It was done each time before it could be killed. Let it take longer: more trainer.train_steps, or a smaller "
    "trainer.steps_per_loop, so that it reports sooner."
)


@dataclass(frozen=True)
class Strike:
    """A signal that ended a run."""

    signal: str
    step: int
    """It came after the report of this step; 0 is the start of the first."""
    seconds: float
    """How long after it."""
    n_processes: int

    def __str__(self) -> str:
        return f"{self.signal} {1000 * self.seconds:.0f} ms after step {self.step}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run that was killed and resumed."""

    model_dir: Path
    strikes: tuple[Strike, ...]
    """None, if it was done before it could be killed."""
    resumed_from: tuple[int, ...]
    """The steps that it went on from."""
    n_processes: int
    """On how many it ended."""
    comparison: Comparison | None
    """With the run that was left alone; None if it did not end well."""
    problem: str
    """In what it is not as that run; empty if it is."""


class Reference:
    """A run that was left alone: what others are compared with, and when it did what."""

    def __init__(self, model_dir: Path, *, n_processes: int, seconds: float) -> None:
        self.model_dir = model_dir
        self.n_processes = n_processes
        self.seconds = seconds
        self.record = RunRecord(model_dir)

    @property
    def last_step(self) -> int:
        """The last that it reported."""
        return max(self.record.metrics, default=0)

    @cached_property
    def gaps(self) -> dict[int, float]:
        """How many seconds passed from each report, and from the start of the steps (0), to the next."""
        times = {0 if event["kind"] == "initialized" else event["step"]: event["time"] for event in self._moments()}
        ordered = sorted(times.items())
        return {step: max(later - at, 0.0) for (step, at), (_, later) in pairwise(ordered)}

    def _moments(self) -> list[dict[str, Any]]:
        events = read_events(self.model_dir / "events.jsonl")
        return [event for event in events if event.get("kind") in ("initialized", "summary")]

    @property
    def has_file_to_resume(self) -> bool:
        """Whether a checkpoint file was written before the last step."""
        return min(self.record.fingerprints, default=self.last_step) < self.last_step


class ResumeTrials:
    """Starts `trellis` with some arguments again and again, each time in a directory of its own.

    Args:
        arguments: Of a training, without its `--model_dir`.
        directory: Where all runs and their output go.
        seed: Of the points at which runs are killed.
        tolerance: How far losses may be from each other, as a share, where a run goes on with other processes.
    """

    def __init__(self, arguments: Sequence[str], *, directory: Path, seed: int = 0, tolerance: float = 1e-3) -> None:
        self._arguments = tuple(arguments)
        self._directory = directory
        self._random = random.Random(seed)
        self._tolerance = tolerance

    def run_undisturbed(self, name: str = "undisturbed", *, n_processes: int = 1) -> Reference:
        """Runs to the end; raises an error with the end of the output if that fails."""
        started = time.monotonic()
        run = _Run(self._arguments, self._directory / name, n_processes=n_processes)
        run.finish()
        return Reference(run.model_dir, n_processes=n_processes, seconds=time.monotonic() - started)

    def run_trial(
        self, name: str, *, reference: Reference, signals: Sequence[signal.Signals], n_processes: int | None = None
    ) -> Trial:
        """Kills a run by some signals, one after the other, and resumes it each time, at last to its end.

        Args:
            n_processes: On how many it goes on after the last signal; the default is as many as before.
        """
        n_processes = n_processes or reference.n_processes
        is_exact = n_processes == reference.n_processes
        strikes: list[Strike] = []
        for attempt in range(_MOST_ATTEMPTS):
            model_dir = self._directory / (f"{name}_{attempt}" if attempt else name)
            # A run that was done too soon is killed sooner the next time.
            strikes = self._kill(model_dir, reference=reference, signals=signals, haste=attempt)
            if strikes:
                break
        comparison = None
        try:
            _Run(self._arguments, model_dir, n_processes=n_processes).finish()
            tolerance = None if is_exact else self._tolerance
            comparison = compare_runs(reference.record, RunRecord(model_dir), tolerance=tolerance)
            problem = _problem(comparison, model_dir, reference=reference, is_exact=is_exact)
        except RunFailedError as error:
            problem = f"It could not be resumed. {error}"
        return Trial(
            model_dir=model_dir,
            strikes=tuple(strikes),
            resumed_from=_resumed_from(model_dir),
            n_processes=n_processes,
            comparison=comparison,
            problem=problem or ("" if strikes else _NEVER_KILLED),
        )

    def _kill(
        self, model_dir: Path, *, reference: Reference, signals: Sequence[signal.Signals], haste: int
    ) -> list[Strike]:
        """Starts a run and sends it a signal at a random point, again and again; returns those that ended it."""
        strikes: list[Strike] = []
        for number in signals:
            reported = max(RunRecord(model_dir).metrics, default=0) if strikes else 0
            steps = [step for step in reference.gaps if step >= reported and (step > reported or not strikes)]
            if not steps:
                break
            step = self._random.choice(steps)
            seconds = self._random.uniform(0.0, reference.gaps[step]) / (1 + haste) ** 2
            run = _Run(self._arguments, model_dir, n_processes=reference.n_processes)
            if not run.kill(number, after_step=step, seconds=seconds, index=self._random.randrange(run.n_processes)):
                break
            strikes.append(Strike(number.name, step, seconds, run.n_processes))
        return strikes


class _Run:
    """A training in processes of this machine, whose output goes to files beside its directory."""

    def __init__(self, arguments: Sequence[str], model_dir: Path, *, n_processes: int) -> None:
        self._command = [sys.executable, "-m", "trellis", *arguments, f"--model_dir={model_dir}"]
        self.model_dir = model_dir
        self.n_processes = n_processes
        self._events = model_dir / "events.jsonl"

    def finish(self) -> None:
        """Runs to the end; raises an error if that fails."""
        with ExitStack() as stack:
            processes = self._start(stack)
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                time.sleep(10 * _SECONDS_BETWEEN_LOOKS)
        if any(codes):
            raise self._failure(next(filter(None, codes)))

    def kill(self, number: signal.Signals, *, after_step: int, seconds: float, index: int) -> bool:
        """Sends a process of the run a signal some time after a step was reported; returns whether that ended the run.

        Args:
            index: Which process.
        """
        n_started = self._count_starts()
        with ExitStack() as stack:
            processes = self._start(stack)
            while not self._has_reported(after_step, n_started=n_started):
                if any(process.poll() is not None for process in processes):
                    return self._has_ended_by(number, processes)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            time.sleep(seconds)
            processes[index].send_signal(number)
            if number == signal.SIGTERM:
                deadline = time.monotonic() + _SECONDS_TO_SAVE
                while None in [process.poll() for process in processes] and time.monotonic() < deadline:
                    time.sleep(10 * _SECONDS_BETWEEN_LOOKS)
            else:
                processes[index].wait()
            return self._has_ended_by(number, processes)

    def _start(self, stack: ExitStack) -> list[LocalProcess]:
        """Starts the processes, which end with the block that the stack is of."""
        environments = stack.enter_context(local_cluster(self.n_processes)) if self.n_processes > 1 else [{}]
        processes = []
        for index, (environment, share) in enumerate(zip(environments, shares_of_gpus(self.n_processes), strict=True)):
            devices = {"CUDA_VISIBLE_DEVICES": share} if share else {}
            order = WorkerOrder(
                index,
                command=self._command,
                environment=os.environ | environment | devices,
                log_file=self._log_file(index),
            )
            process = start_process(order)
            stack.callback(process.stop, seconds=_SECONDS_TO_STOP)
            processes.append(process)
        return processes

    def _log_file(self, index: int) -> Path:
        return self.model_dir.with_name(f"{self.model_dir.name}.process_{index}.log")

    def _has_ended_by(self, number: signal.Signals, processes: Sequence[LocalProcess]) -> bool:
        """Whether a signal has ended the run, and not its last step; an error if something else has."""
        codes = [process.poll() for process in processes]
        if all(code == 0 for code in codes):
            return False
        # Others that train with it are lost with it, and the signal may come before anybody handles it.
        if number == signal.SIGKILL or ExitCode.STOPPED in codes or -number in codes:
            return True
        raise self._failure(next((code for code in codes if code), None))

    def _failure(self, code: int | None) -> RunFailedError:
        how = f"did not end within {_SECONDS_TO_SAVE:g} seconds of SIGTERM" if code is None else f"ended with {code}"
        file = self._log_file(0)
        end = file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return RunFailedError(f"The run in `{self.model_dir}` {how}. The end of its output, {file}:\n{end}")

    def _count_starts(self) -> int:
        return sum(event.get("kind") == "initialized" for event in self._read())

    def _has_reported(self, step: int, *, n_started: int) -> bool:
        if not step:
            return self._count_starts() > n_started
        return any(event.get("kind") == "summary" and event.get("step", 0) >= step for event in self._read())

    def _read(self) -> list[dict[str, Any]]:
        try:
            return read_events(self._events)
        except FileNotFoundError:
            return []


def _problem(comparison: Comparison, model_dir: Path, *, reference: Reference, is_exact: bool) -> str:
    """In what a resumed run is not as the one that was left alone; empty if it is."""
    if comparison.parted_at is not None:
        first = min((*comparison.tensors, *comparison.metrics), key=lambda difference: difference.step)
        return f"It differs from step {comparison.parted_at} on; the first is {first.name}."
    if comparison.last_step != reference.last_step:
        return f"It ended with step {comparison.last_step}, and not with {reference.last_step}."
    if comparison.lonely_steps:
        return f"Only one of the two tells of step {', '.join(map(str, comparison.lonely_steps))}."
    files, expected = _checkpoint_files(model_dir), _checkpoint_files(reference.model_dir)
    if is_exact and files != expected:
        return f"It has kept {', '.join(files) or 'no files'}, and not {', '.join(expected) or 'none'}."
    return ""


def _checkpoint_files(directory: Path) -> list[str]:
    """The checkpoint files of a run, by their paths in its directory."""
    candidates = [*directory.glob("*"), *directory.glob("*/*")]
    return sorted(str(path.relative_to(directory)) for path in candidates if _is_checkpoint_file(path))


def _is_checkpoint_file(path: Path) -> bool:
    return re.search(r"_\d+$", path.name) is not None and (path / "manifest.json").is_file()


def _resumed_from(model_dir: Path) -> tuple[int, ...]:
    try:
        events = read_events(model_dir / "events.jsonl")
    except FileNotFoundError:
        return ()
    # A run that found no file begins anew, and tells of none.
    return tuple(event["step"] for event in events if event.get("kind") == "restored") or (0,)
