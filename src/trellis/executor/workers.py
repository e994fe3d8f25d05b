"""Workers: a run in processes of its own, started together, failing as one, and none left behind."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from trellis.errors import ArgumentError, Preempted, RunFailedError
from trellis.executor.cluster import cluster_of, local_environments
from trellis.executor.exec_properties import RunArgs
from trellis.executor.preparation import Run

STARTED_BY = "TRELLIS_STARTED_BY"
"""The variable by which a process knows with whom it is to end."""
_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_TELL = 1.0
_SECONDS_TO_STOP = 2.0
# When the whole run is told to stop: workers may save what they have.
_SECONDS_TO_SAVE = 30.0
_TAIL_BYTES = 4000
# The path of this process is given on as it is, so that what is found here is found there.
_PROGRAM = (
    "import json, sys; order = json.load(open(sys.argv[1])); sys.path[:] = order['path'];"
    "from trellis.executor.worker_process import main; main(order)"
)


@dataclass(frozen=True)
class WorkerOrder:
    """One worker to be started."""

    index: int
    """0 is the chief."""
    command: Sequence[str]
    environment: Mapping[str, str]
    log_file: Path | None = None
    """Where its output goes; None is to the screen."""


class Worker(Protocol):
    """A worker that was started."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def tell_place(self) -> None:
        """Has it write down where in the code it is, by the signal SIGUSR1."""

    def stop(self, *, seconds: float) -> None:
        """Ends it and all that it has started, after so many seconds by force; nothing of it runs afterwards."""


class StartWorker(Protocol):
    """Starts a worker. A cluster's own starter is one, if its machines share the files of the run."""

    def __call__(self, order: WorkerOrder) -> Worker:
        """Starts the command of an order in its environment, and does not wait."""


def start_process(order: WorkerOrder) -> Worker:
    """Starts a worker as a process on this machine."""
    return _LocalProcess(order)


def run_workers(run: Run, *, run_args: RunArgs, start: StartWorker) -> None:
    """Runs a run in workers, and waits; raises the error of the worker that failed first, once all are stopped."""
    if run_args.n_workers > 1 and cluster_of():
        raise ArgumentError(
            f"TF_CONFIG is set, so a cluster has started this process as one of its workers, and it cannot be "
            f"{run_args.n_workers} workers itself. Leave out workers, or unset TF_CONFIG."
        )
    scratch = Path(tempfile.mkdtemp(prefix="trellis-run-"))
    log_dir = Path(run.outputs["model_run"][0].uri, "logs")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.enter_context(_told_to_stop())
        team = _Team(scratch)
        stack.callback(team.stop, _SECONDS_TO_STOP)
        try:
            for order in _orders(run, run_args, scratch, log_dir):
                team.workers.append(start(order))
                team.logs.append(order.log_file)
            team.wait(run_args.timeout)
        except Preempted:
            team.stop(_SECONDS_TO_SAVE)
            raise


def _orders(run: Run, run_args: RunArgs, scratch: Path, log_dir: Path) -> Iterator[WorkerOrder]:
    n = run_args.n_workers
    environments = local_environments(n) if n > 1 else [{}]
    if n > 1:
        log_dir.mkdir(parents=True, exist_ok=True)
    for index, environment in enumerate(environments):
        file = scratch / f"order-{index}.json"
        file.write_text(_order_text(run, index, scratch))
        yield WorkerOrder(
            index,
            command=[sys.executable, "-c", _PROGRAM, str(file)],
            environment=os.environ | environment,
            log_file=log_dir / f"worker_{index}.log" if index else None,
        )


def _order_text(run: Run, index: int, scratch: Path) -> str:
    artifacts = {
        name: {key: [asdict(each) for each in listed] for key, listed in given.items()}
        for name, given in (("inputs", run.inputs), ("outputs", run.outputs))
    }
    try:
        return json.dumps(
            {
                **artifacts,
                "exec_properties": run.exec_properties,
                "index": index,
                "scratch": str(scratch),
                "path": [path or os.getcwd() for path in sys.path],
            },
            default=os.fspath,
        )
    except TypeError as error:
        raise ArgumentError(
            f"exec_properties cannot be given to another process: {error}. Use what JSON can hold."
        ) from None


@dataclass
class _Team:
    """The workers of a run."""

    scratch: Path
    workers: list[Worker] = field(default_factory=list)
    logs: list[Path | None] = field(default_factory=list)

    def wait(self, timeout: float | None) -> None:
        """Waits until all are done; raises as soon as one fails, or the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        running = set(range(len(self.workers)))
        while running:
            failed = [index for index in running if self._has_failed(index)]
            if failed:
                self._fail(failed)
            running = {index for index in running if self.workers[index].poll() is None}
            if deadline is not None and time.monotonic() > deadline:
                self._fail_late(timeout, running)
            if running:
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    def stop(self, seconds: float) -> None:
        """Ends all that still runs."""
        threads = [threading.Thread(target=each.stop, kwargs={"seconds": seconds}) for each in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _report(self, index: int) -> dict[str, Any]:
        file = self.scratch / f"report-{index}.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return found

    def _has_failed(self, index: int) -> bool:
        # One that has failed may take long to end: it waits for the others.
        code = self.workers[index].poll()
        kind = self._report(index).get("kind")
        return kind not in (None, "done") or (kind is None and code is not None)

    def _when(self, index: int) -> float:
        """When a worker has failed; one that could not say so goes first, unless it has given up for another's sake."""
        sudden = math.inf if self.workers[index].poll() == -signal.SIGABRT else 0.0
        return float(self._report(index).get("time", sudden))

    def _fail(self, failed: Sequence[int]) -> NoReturn:
        first = min(failed, key=self._when)
        report = self._report(first)
        if report.get("kind") == "preempted":
            raise Preempted
        if report.get("kind") == "problems":
            raise ArgumentError(report["summary"])
        code = self.workers[first].poll()
        what = f"{report['summary']}\n\n{report['text']}".rstrip() if report else _sudden(code)
        raise RunFailedError(f"{self._named(first)}{what}{self._tail(first)}")

    def _fail_late(self, timeout: float | None, running: set[int]) -> NoReturn:
        for index in running:
            self.workers[index].tell_place()
        end = time.monotonic() + _SECONDS_TO_TELL
        while time.monotonic() < end and not all(map(self._place, running)):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        places = [
            f"{self._named(index)}It was here:\n{text}" for index in sorted(running) if (text := self._place(index))
        ]
        raise RunFailedError(
            "\n\n".join([f"The run has taken more than its {timeout:g} seconds (timeout), so it was stopped.", *places])
        )

    def _place(self, index: int) -> str:
        """Where a worker was, as far as that is the user's code."""
        file = self.scratch / f"place-{index}.txt"
        threads = file.read_text().strip().split("\n\n") if file.is_file() else []
        lines = (line for thread in threads if "in _end_with" not in thread for line in thread.splitlines())
        return "\n".join(line for line in lines if str(Path(__file__).parent) not in line and '"<string>"' not in line)

    def _named(self, index: int) -> str:
        n = len(self.workers)
        return "" if n == 1 else f"Worker {index} of {n}{' (the chief)' if index == 0 else ''}: "

    def _tail(self, index: int) -> str:
        log = self.logs[index]
        if log is None or not log.is_file():
            return ""
        tail = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return f"\n\nThe end of its output, {log}:\n{tail}" if tail else ""


class _LocalProcess:
    """A process with a group of its own, so that what it starts ends with it."""

    def __init__(self, order: WorkerOrder) -> None:
        log = None if order.log_file is None else order.log_file.open("wb")
        try:
            self._process = subprocess.Popen(
                order.command,
                env={**order.environment, STARTED_BY: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT if log else None,
                start_new_session=True,
            )
        finally:
            if log is not None:
                log.close()

    def poll(self) -> int | None:
        return self._process.poll()

    def tell_place(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def stop(self, *, seconds: float) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # What it has started is in its group, until nothing of that is left; one that nobody waits for may stay there.
        deadline = time.monotonic() + _SECONDS_TO_TELL
        with suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """Lets SIGTERM end this process by way of everything that is to be done before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise Preempted

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _sudden(code: int | None) -> str:
    if code is not None and code < 0:
        return f"The process was ended by {signal.Signals(-code).name} before run_fn returned."
    return f"The process has ended with code {code} before run_fn returned, as os._exit({code}) does."
