"""A run in processes of its own: how they are started, what they do, and what is raised if one fails."""

import faulthandler
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, Protocol, runtime_checkable

from trellis.disk import scratch_directory, write_whole
from trellis.errors import ArgumentError, Preempted, ProcessLostError, RunFailedError, TrellisError
from trellis.executor.data_accessor import DataAccessor
from trellis.executor.fn_args import ExampleCounts, FnArgs, RunArgs
from trellis.executor.module_file import call, sources_of, user_function
from trellis.runtime import TF_CONFIG

STARTED_BY = "TRELLIS_STARTED_BY"
"""The variable that names the process that started this one: when that ends, this one ends."""
_WORKER_TIMEOUT = "TRELLIS_WORKER_TIMEOUT"
"""The variable that tells a worker after how many seconds one that is silent counts as lost."""
_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_BETWEEN_LOOKS_AT_PARENT = 1.0
_SECONDS_TO_TELL = 1.0
_SECONDS_TO_STOP = 2.0
# When the whole run is told to stop: workers may save what they have.
_SECONDS_TO_SAVE = 30.0
_TAIL_BYTES = 4000
# The new process gets the import path of this one, so that it finds the same modules.
_PROGRAM = (
    "import json, sys; instructions = json.load(open(sys.argv[1])); sys.path[:] = instructions['path'];"
    "from trellis.executor.process import main; main(instructions, index=int(sys.argv[2]))"
)


@dataclass(frozen=True)
class WorkerOrder:
    """One worker to be started."""

    index: int
    """0 is the chief."""
    command: Sequence[str]
    environment: Mapping[str, str]
    log_file: Path | None = None
    """Where its output goes; None means to the screen."""


class Worker(Protocol):
    """A worker that was started."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def stop(self, *, seconds: float) -> None:
        """Ends it and all that it has started, after so many seconds by force; nothing of it runs afterwards."""


@runtime_checkable
class WatchedWorker(Worker, Protocol):
    """A worker of which it is known whether it was stopped."""

    def is_stopped(self) -> bool:
        """Whether it was stopped (SIGSTOP) and does not go on."""


@runtime_checkable
class RemoteWorker(Worker, Protocol):
    """A worker on another machine, with which it may be gone."""

    def is_gone(self) -> bool:
        """Whether nothing can be heard of it any more."""


class StartWorker(Protocol):
    """Starts a worker. A cluster's own starter is one, if its machines share the files of the run."""

    def __call__(self, order: WorkerOrder) -> Worker:
        """Starts the command of an order in its environment, and does not wait."""


def start_process(
    order: WorkerOrder, *, stdout: IO[bytes] | None = None, stderr: IO[bytes] | None = None
) -> "LocalProcess":
    """Starts a worker as a process on this machine.

    Args:
        stdout: Where its output goes if its order names no file; None means to the screen.
    """
    with ExitStack() as stack:
        log = None if order.log_file is None else stack.enter_context(order.log_file.open("wb"))
        return LocalProcess(
            order.command,
            env={**order.environment, STARTED_BY: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=log or stdout,
            stderr=log or stderr,
            start_new_session=True,
        )


class LocalProcess(subprocess.Popen[bytes]):
    """A process with a group of its own, so that what it starts ends with it."""

    def is_stopped(self) -> bool:
        """Whether it was stopped (SIGSTOP) and does not go on."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except (ChildProcessError, AttributeError):  # it has ended, or the system does not tell
            return False

    def stop(self, *, seconds: float) -> None:
        if self.poll() is None:
            self.terminate()
            try:
                self.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                self.wait()
        # Its group holds all that it has started. A process that has ended, and that nobody waits for, may stay in it.
        deadline = time.monotonic() + _SECONDS_TO_TELL
        with suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, signal.SIGKILL)
                time.sleep(_SECONDS_BETWEEN_LOOKS)


def run_in_processes(
    exec_properties: Mapping[str, Any], fn_args: FnArgs, *, run_args: RunArgs, start: StartWorker
) -> None:
    """Calls a user's function in a process, or in several that know each other, and waits until all have ended.

    The output of the first is shown; that of the others goes to `model_run_dir`. Raises the error of the first that
    fails, once all are stopped.
    """
    deadline = None if run_args.timeout is None else time.time() + run_args.timeout
    environments: list[dict[str, str]] = [{}]
    log_dir = Path(str(fn_args.model_run_dir), "logs")
    with ExitStack() as stack:
        if run_args.workers > 1:
            environments = stack.enter_context(local_cluster(run_args.workers))
            log_dir.mkdir(parents=True, exist_ok=True)
        scratch = stack.enter_context(scratch_directory())
        stack.enter_context(preempted_by_sigterm())
        instructions = {
            "source": sources_of(exec_properties),
            "fn_args": fn_args,
            "is_chief": run_args.is_chief,
            "deadline": deadline,
            "scratch": scratch,
            "path": [folder or os.getcwd() for folder in sys.path],
        }
        (scratch / "instructions.json").write_text(_as_json(instructions))
        workers: list[_StartedWorker] = []
        stack.callback(_stop, workers, seconds=_SECONDS_TO_STOP)
        try:
            for index, environment in enumerate(environments):
                order = WorkerOrder(
                    index,
                    command=[sys.executable, "-c", _PROGRAM, str(scratch / "instructions.json"), str(index)],
                    environment=os.environ | {_WORKER_TIMEOUT: str(run_args.worker_timeout)} | environment,
                    log_file=log_dir / f"worker_{index}.log" if index else None,
                )
                workers.append(_StartedWorker(order, start(order), scratch, n_workers=len(environments)))
            _wait(workers, run_args=run_args, deadline=deadline)
        except Preempted:
            _stop(workers, seconds=_SECONDS_TO_SAVE)
            raise


@contextmanager
def local_cluster(n_workers: int) -> Iterator[list[dict[str, str]]]:
    """Gives the variables that tell workers on this machine who they are, the chief first.

    All addresses are those of the loopback: only processes of this machine can reach them.
    """
    with hold_port("127.0.0.1") as coordinator:
        with ExitStack() as stack:
            sockets = [stack.enter_context(hold_port("127.0.0.1")) for _ in range(n_workers)]
            addresses = [address_of(each) for each in sockets]
        yield cluster_variables(addresses, coordinator=address_of(coordinator))


def hold_port(host: str) -> socket.socket:
    """Binds a free port. JAX's coordinator, which shares ports, gets it, and nobody else while the socket is open."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((host, 0))
    return holder


def address_of(bound: socket.socket) -> str:
    """The host and the port of a socket, as one text."""
    host, port = bound.getsockname()
    return f"{host}:{port}"


def cluster_variables(addresses: Sequence[str], *, coordinator: str) -> list[dict[str, str]]:
    """The variables that tell workers who they are, the chief first.

    Args:
        addresses: Of the workers, for those who read `TF_CONFIG`.
        coordinator: Where the chief listens for JAX, and nowhere else; by itself JAX listens on all interfaces.
    """
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    n_others = len(addresses) - 1
    tasks = [{"type": "chief", "index": 0}, *({"type": "worker", "index": index} for index in range(n_others))]
    return [
        {
            TF_CONFIG: json.dumps({"cluster": cluster, "task": task}),
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "JAX_COORDINATOR_BIND_ADDRESS": coordinator,
            "JAX_NUM_PROCESSES": str(len(addresses)),
            "JAX_PROCESS_ID": str(index),
        }
        for index, task in enumerate(tasks)
    ]


def _as_json(instructions: Mapping[str, Any]) -> str:
    no_accessor: Any = None  # the new process makes its own

    def as_plain(value: Any) -> Any:
        return asdict(replace(value, data_accessor=no_accessor)) if isinstance(value, FnArgs) else os.fspath(value)

    try:
        return json.dumps(instructions, default=as_plain)
    except TypeError as error:
        raise ArgumentError(
            f"exec_properties cannot be given to another process: {error}. Use what JSON can hold."
        ) from None


def main(instructions: dict[str, Any], *, index: int) -> NoReturn:
    """Follows instructions in the process of a worker, writes a report, and exits: 0 if `run_fn` has returned."""
    scratch = Path(instructions["scratch"])
    # As on a terminal: what was printed is not lost if this process is killed.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # always a TextIOWrapper here
    end_with_starter()
    place = (scratch / f"place-{index}.txt").open("w")
    if instructions["deadline"] is not None:
        # The interpreter itself writes it, even if all threads of this process hang.
        faulthandler.dump_traceback_later(max(instructions["deadline"] - time.time(), 0.01), file=place)
    report = _carry_out(instructions, index=index)
    write_whole(scratch / f"report-{index}.json", json.dumps({"time": time.time(), **report}).encode())
    sys.exit(0 if report["kind"] == "done" else 1)


def end_with_starter() -> None:
    """Has this process, and what it has started, end when the one of ours that started it is gone.

    What this process starts has another parent, and is left alone.
    """
    parent = os.getppid()
    if os.environ.get(STARTED_BY) == str(parent):
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    looks = select.poll()
    with suppress(OSError, AttributeError):  # only Linux wakes us at once
        looks.register(os.pidfd_open(parent), select.POLLIN)
    while os.getppid() == parent:
        looks.poll(_SECONDS_BETWEEN_LOOKS_AT_PARENT * 1000)
    os.killpg(0, signal.SIGKILL)


def _carry_out(instructions: Mapping[str, Any], *, index: int) -> dict[str, str]:
    """Calls the user's function; returns a report of how that went."""
    fn_args = FnArgs(**instructions["fn_args"])
    fn_args.data_accessor = DataAccessor()
    fn_args.num_examples = ExampleCounts(**instructions["fn_args"]["num_examples"])
    kind = "problems"
    try:
        with user_function(instructions["source"], fn_args=fn_args) as user:
            kind = "failed"
            is_chief = instructions["is_chief"] and index == 0
            # In there, it is removed with all else of this run, also if this process is killed.
            own_dir = Path(instructions["scratch"], f"model-{index}")
            own_dir.mkdir()
            call(user, fn_args, is_chief=is_chief, scratch_dir=str(own_dir))
    except Preempted:
        return {"kind": "preempted"}
    except BaseException as error:  # noqa: BLE001  (the process that waits for this one raises it)
        if isinstance(error, ProcessLostError):
            kind = "lost"
        if isinstance(error, TrellisError):
            # Its message is complete; a trace through the library would not help.
            return {"kind": kind, "summary": str(error), "text": "\n".join(getattr(error, "__notes__", ()))}
        summary = f"run_fn has raised {type(error).__name__}: {error}"
        return {"kind": kind, "summary": summary, "text": _traceback(error)}
    return {"kind": "done"}


def _traceback(error: BaseException) -> str:
    """Returns the trace from the user's function on."""
    own = Path(__file__).parent
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == own:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


@dataclass(frozen=True)
class _StartedWorker:
    """A worker, seen from the process that waits for it."""

    order: WorkerOrder
    worker: Worker
    scratch: Path
    n_workers: int

    @property
    def name(self) -> str:
        """How messages about it begin, if there are several workers."""
        chief = "" if self.order.index else " (the chief)"
        return f"Worker {self.order.index} of {self.n_workers}{chief}: " if self.n_workers > 1 else ""

    def failure(self) -> tuple[float, BaseException] | None:
        """When it failed, and the error to raise for that; None if it has not.

        It may have failed long before it ends, as it may wait for the others. Without a report it counts as the first,
        unless it aborted: JAX aborts if a peer is gone.
        """
        code = self.worker.poll()
        file = self.scratch / f"report-{self.order.index}.json"
        if file.is_file():
            report = json.loads(file.read_text())
            return None if report["kind"] == "done" else (report["time"], self._reported_error(report))
        if code is None:
            return None
        is_aborted = code == -signal.SIGABRT and self.n_workers > 1
        cause = (
            " JAX does so when another worker is gone, or silent for too long (worker_timeout)." if is_aborted else ""
        )
        return math.inf if is_aborted else 0.0, self._error(f"{_sudden_end(code)}{cause}")

    def is_stopped(self) -> bool:
        """Whether it does not go on; known only of a process of this machine."""
        return isinstance(self.worker, WatchedWorker) and self.worker.is_stopped()

    def stopped_error(self, seconds: float) -> RunFailedError:
        """The error to raise if it is stopped for too long."""
        return self._error(
            f"The process has been stopped (SIGSTOP) for more than {seconds:g} seconds (worker_timeout), and the "
            f"others wait for it, so the run has ended. Let it go on (SIGCONT) sooner, or give a longer worker_timeout."
        )

    def _reported_error(self, report: Mapping[str, Any]) -> BaseException:
        if report["kind"] == "preempted":
            return Preempted()
        if report["kind"] == "problems":
            return ArgumentError(report["summary"])
        error = self._error(f"{report['summary']}\n\n{report['text']}".rstrip())
        return ProcessLostError(str(error)) if report["kind"] == "lost" else error

    def _error(self, reason: str) -> RunFailedError:
        log = self.order.log_file
        end = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip() if log and log.is_file() else ""
        return RunFailedError(f"{self.name}{reason}" + (f"\n\nThe end of its output, {log}:\n{end}" if end else ""))

    def code_place(self) -> str:
        """Where in the user's code it was at the deadline; empty if it wrote nothing about that."""
        file = self.scratch / f"place-{self.order.index}.txt"
        threads = file.read_text().strip().split("\n\n") if file.is_file() else []
        lines = [line for thread in threads if "in _end_with" not in thread for line in thread.splitlines()]
        foreign = (str(Path(__file__).parent), '"<string>"', "Timeout (")
        return "\n".join(line for line in lines if not any(text in line for text in foreign))


def _wait(workers: Sequence[_StartedWorker], *, run_args: RunArgs, deadline: float | None) -> None:
    """Waits until all are done; raises as soon as one fails or has been stopped for too long, or the time is over."""
    running = list(workers)
    stopped_since: dict[int, float] = {}
    while running:
        failures = [failure for worker in running if (failure := worker.failure())]
        if failures:
            _, error = min(failures, key=itemgetter(0))
            raise error
        running = [worker for worker in running if worker.worker.poll() is None]
        if running and deadline is not None and time.time() > deadline:
            _raise_late(running, run_args.timeout)
        if len(workers) > 1:  # one that runs alone keeps nobody waiting
            stopped_since = _stopped_since(running, stopped_since, seconds=run_args.worker_timeout)
        if running:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _stopped_since(
    running: Sequence[_StartedWorker], before: Mapping[int, float], *, seconds: float
) -> dict[int, float]:
    """Returns since when each worker that is stopped is so; raises an error if that is too long."""
    now = time.monotonic()
    stopped = [worker for worker in running if worker.is_stopped()]
    since = {worker.order.index: before.get(worker.order.index, now) for worker in stopped}
    for worker in stopped:
        if now - since[worker.order.index] > seconds:
            raise worker.stopped_error(seconds)
    return since


def _raise_late(running: Sequence[_StartedWorker], timeout: float | None) -> NoReturn:
    end = time.monotonic() + _SECONDS_TO_TELL
    while time.monotonic() < end and not all(worker.code_place() for worker in running):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    places = [f"{worker.name}It was here:\n{text}" for worker in running if (text := worker.code_place())]
    message = f"The run has taken more than its {timeout:g} seconds (timeout), so it was stopped."
    raise RunFailedError("\n\n".join([message, *places]))


def _sudden_end(code: int) -> str:
    if code < 0:
        return f"The process was ended by {signal.Signals(-code).name} before run_fn returned."
    return f"The process has ended with code {code} before run_fn returned, as os._exit({code}) does."


def _stop(workers: Sequence[_StartedWorker], *, seconds: float) -> None:
    """Ends all that still runs."""
    with ThreadPoolExecutor(max_workers=max(len(workers), 1)) as pool:
        # As a list: an error is raised when its result is looked at.
        list(pool.map(lambda each: each.worker.stop(seconds=seconds), workers))


@contextmanager
def preempted_by_sigterm() -> Iterator[None]:
    """Turns SIGTERM into `Preempted`, so that everything is cleaned up before this process ends."""
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
