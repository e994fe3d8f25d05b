"""A command in several processes of this machine, which train together."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trellis.disk import check_writable, describe_failure
from trellis.errors import ArgumentError, ExitCode, Preempted, RunFailedError
from trellis.executor import (
    RemoteWorker,
    StartWorker,
    WatchedWorker,
    Worker,
    WorkerOrder,
    local_cluster,
    preempted_by_sigterm,
    start_process,
)
from trellis.runtime import count_gpus, print_error, print_line, worker_seconds

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_TELL = 2.0
"""How long others may take to end, too, after the first has failed: the first to be seen need not be the first."""
_SECONDS_TO_HEAR_OF_MACHINE = 30.0
"""How long the engine may take to tell that a machine is gone, of which others tell only that they have lost it."""
_SECONDS_TO_NOTICE = 15.0
"""How much later than the processes themselves the one that has started them tells of one that is stopped."""
_SECONDS_TO_STOP = 5.0
_SECONDS_TO_SAVE = 60.0
_TAIL_BYTES = 4000


def launch_local(
    arguments: Sequence[str],
    *,
    n_processes: int,
    log_dir: Path,
    n_restarts: int = 0,
    start: StartWorker = start_process,
) -> int:
    """Runs `trellis` with some arguments in several processes that know each other; returns the exit code.

    The output of the first is shown, that of the others goes to files. When one fails, all are ended, and started again
    up to `n_restarts` times: a run goes on from its last checkpoint file. Bad input is not tried again. SIGTERM and
    Ctrl-C are passed on, and the run may save before it ends.

    Args:
        log_dir: Where the output of all processes but the first goes, as `process_1.log`.
    """
    if n_processes < 1:
        raise ArgumentError(f"processes is {n_processes}, but there is at least one.")
    devices = shares_of_gpus(n_processes)

    @contextmanager
    def this_machine() -> Iterator[list[dict[str, str]]]:
        with ExitStack() as stack:
            environments = stack.enter_context(local_cluster(n_processes)) if n_processes > 1 else [{}]
            yield [
                environment | ({"CUDA_VISIBLE_DEVICES": share} if share else {})
                for environment, share in zip(environments, devices, strict=True)
            ]

    print_line(f"Starts {n_processes} processes; the output of all but the first goes to {log_dir}.")
    for index, share in enumerate(devices):
        if share:
            print_line(f"Process {index}: GPUs {share}.")
    return launch_workers(arguments, cluster=this_machine, start=start, log_dir=log_dir, n_restarts=n_restarts)


class Cluster(Protocol):
    """Makes room for processes, for as long as they are to run."""

    def __call__(self) -> AbstractContextManager[list[dict[str, str]]]:
        """Gives the variables that tell each process who it is, the first one's first."""


def launch_workers(
    arguments: Sequence[str], *, cluster: Cluster, start: StartWorker, log_dir: Path, n_restarts: int
) -> int:
    """Runs `trellis` with some arguments in processes that somebody starts; returns the exit code, as `launch_local`.

    Args:
        cluster: Makes room for all processes, each time that they are started.
        start: Starts one of them there.
    """
    check_writable(log_dir, name="logs")
    for n_started in range(n_restarts + 1):
        failure = _attempt(arguments, cluster=cluster, start=start, log_dir=log_dir)
        if failure is None:
            return ExitCode.DONE
        if failure.text:
            print_error(failure.text)
        if failure.code in (ExitCode.BAD_INPUT, ExitCode.INTERRUPTED, ExitCode.STOPPED) or n_started == n_restarts:
            return failure.code
        print_line(f"Starts again, {n_started + 1} of {n_restarts} times: a run goes on from its last checkpoint file.")
    return ExitCode.DONE


@dataclass(frozen=True)
class _Failure:
    code: int
    text: str = ""


def _attempt(arguments: Sequence[str], *, cluster: Cluster, start: StartWorker, log_dir: Path) -> _Failure | None:
    """Starts all processes, and waits until they have ended; None if all of them are done."""
    workers: list[tuple[WorkerOrder, Worker]] = []
    with ExitStack() as stack:
        environments = stack.enter_context(cluster())
        stack.enter_context(preempted_by_sigterm())
        stack.callback(_stop, workers, seconds=_SECONDS_TO_STOP)
        try:
            for index, environment in enumerate(environments):
                order = WorkerOrder(
                    index,
                    command=[sys.executable, "-m", "trellis", *arguments],
                    environment=os.environ | environment,
                    log_file=log_dir / f"process_{index}.log" if index else None,
                )
                workers.append((order, _started(order, start)))
            return _wait(workers, silence=worker_seconds())
        except Preempted:
            _stop(workers, seconds=_SECONDS_TO_SAVE)
            return _Failure(ExitCode.STOPPED)
        except KeyboardInterrupt:
            print_line("Stops the processes, which save first.")
            _stop(workers, seconds=_SECONDS_TO_SAVE)
            return _Failure(ExitCode.INTERRUPTED)


def _started(order: WorkerOrder, start: StartWorker) -> Worker:
    try:
        return start(order)
    except OSError as error:
        place = error.filename or order.command[0]
        raise RunFailedError(
            f"Process {order.index} cannot be started: `{place}`: {describe_failure(error)}. Bring back what is away, "
            f"or make room, and start the same command again."
        ) from None


def _wait(workers: Sequence[tuple[WorkerOrder, Worker]], *, silence: float) -> _Failure | None:
    """Waits until all have ended, or one has failed, or was stopped for longer than it may be silent."""
    gone_on_at = dict.fromkeys(range(len(workers)), time.monotonic())
    while True:
        codes = [worker.poll() for _, worker in workers]
        if all(code == 0 for code in codes):
            return None
        if any(codes):
            break
        now = time.monotonic()
        gone_on_at |= {index: now for index, (_, worker) in enumerate(workers) if not _is_stopped(worker)}
        index = min(gone_on_at, key=lambda index: gone_on_at[index])
        # The others tell more, if they are far enough to notice it; one that is alone keeps nobody waiting.
        if now - gone_on_at[index] > silence + _SECONDS_TO_NOTICE and len(workers) > 1:
            return _Failure(
                ExitCode.LOST,
                f"Process {index} of {len(workers)} has been stopped (SIGSTOP) for more than {silence:g} seconds "
                f"(--worker_timeout), and the others wait for it. All were ended.",
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    codes = _last_codes([worker for _, worker in workers])
    failed = [(order, worker, code) for (order, worker), code in zip(workers, codes, strict=True) if code]
    order, _, code = min(failed, key=lambda each: _doubt(*each[1:]))
    return _Failure(_exit_code(code), _told(order, code, n_processes=len(workers)))


def _last_codes(workers: Sequence[Worker]) -> list[int | None]:
    """The exit codes after a first one has failed, when others have had time to end, too."""
    remote = [worker for worker in workers if isinstance(worker, RemoteWorker)]
    started = time.monotonic()
    while None in (codes := [worker.poll() for worker in workers]):
        # Whoever ends with this code has lost another, and of a machine that is gone one hears later.
        is_open = {*codes} <= {None, 0, ExitCode.LOST} and not any(worker.is_gone() for worker in remote)
        if time.monotonic() - started > (_SECONDS_TO_HEAR_OF_MACHINE if remote and is_open else _SECONDS_TO_TELL):
            break
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return codes


def _doubt(worker: Worker, code: int) -> tuple[bool, bool, bool]:
    """Is greater for one that is less likely the cause: that one is gone has others end, or JAX abort them."""
    is_gone = isinstance(worker, RemoteWorker) and worker.is_gone()
    return not is_gone, code == -signal.SIGABRT, code == ExitCode.LOST


def _is_stopped(worker: Worker) -> bool:
    return isinstance(worker, WatchedWorker) and worker.is_stopped()


def _exit_code(code: int) -> int:
    """The exit code that a shell would give."""
    return 128 - code if code < 0 else code


def _told(order: WorkerOrder, code: int, *, n_processes: int) -> str:
    """What to say of a process that has failed; nothing if it has said all itself, on the screen."""
    if code in (ExitCode.BAD_INPUT, ExitCode.STOPPED, ExitCode.INTERRUPTED, ExitCode.LOST) and order.log_file is None:
        return ""
    name = f"Process {order.index} of {n_processes}"
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with code {code}"
    if order.log_file is None:
        return f"{name} {how}. All were ended."
    try:
        end = order.log_file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError as error:
        return f"{name} {how}. All were ended. Its output, {order.log_file}, is not there: {describe_failure(error)}."
    return f"{name} {how}. All were ended. The end of its output, {order.log_file}:\n{end}"


def _stop(workers: Sequence[tuple[WorkerOrder, Worker]], *, seconds: float) -> None:
    """Ends all that still runs, all at the same time."""
    with ThreadPoolExecutor(max_workers=max(len(workers), 1)) as pool:
        list(pool.map(lambda each: each[1].stop(seconds=seconds), workers))


def shares_of_gpus(n_processes: int) -> list[str]:
    """Which GPUs each process sees, as CUDA_VISIBLE_DEVICES has it; empty where there are none."""
    n_gpus = count_gpus()
    if n_gpus % n_processes:
        raise ArgumentError(
            f"processes is {n_processes}, but this machine has {n_gpus} GPUs, which cannot be shared out evenly. Give "
            f"a number that divides {n_gpus}: one process takes all of them."
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))
    names = [name.strip() for name in visible.split(",")] if n_gpus else []
    n_own = n_gpus // n_processes
    return [",".join(names[index * n_own : (index + 1) * n_own]) for index in range(n_processes)]
