"""Short runs to be attacked, each forked in a blink from a process that has loaded everything and started nothing."""

import ctypes
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import trellis

LIBRARY = "chaos_calls.so"
CALLS_SOURCE = Path(__file__).with_name("calls.c")
MODULES = (
    "orbax.checkpoint",
    "sklearn.datasets",
    "tensorboardX.proto.event_pb2",
    "tensorboardX.record_writer",
    "tests.trainer.test_progressive",
    "trellis.cli.train",
    "trellis.experiments.digits",
)
"""What the victims need, beside all that Trellis exports."""
LEFT_OUT = 3
"""The exit code of a script that cannot do its work on this machine."""
MOST_SECONDS = 120
"""A run that takes longer hangs."""


def run_loop(directory: Path, *, n_steps: int = 40, periods: tuple[int, ...] = (5, 10), keep: int = 2) -> None:
    """A loop script with dropout, batch statistics, shuffled data and every kind of file."""
    import jax

    from tests import tiny

    model = tiny.Classifier(has_statistics=True)
    loop = tiny.train_loop(
        tiny.train_task(tiny.Classifier(train=True, dropout_rate=0.3, has_statistics=True), data=tiny.stream(seed=7)),
        init=trellis.CheckpointFileReader(directory, target=model.init),
        rnkey=jax.random.key(11),
        collections={"apply": ["dropout"]},
        n_steps=n_steps,
        n_steps_per_checkpoint=periods,
        n_fused_steps=3,
        stdout=True,
    )
    process = trellis.serial(
        tiny.eval_loop(model),
        trellis.EventWriter(directory),
        trellis.SummaryWriter(directory / "tensorboard"),
        trellis.CheckpointFileWriter(directory, keep=keep),
        trellis.every(
            10,
            trellis.LowestCheckpointFileWriter(directory, metric="loss", keep=keep),
            trellis.HighestCheckpointFileWriter(directory, metric="accuracy"),
        ),
    )
    loop.attach(process)
    for checkpoint in loop:
        process(checkpoint)


def run_short(directory: Path) -> None:
    """The same, just long enough for each kind of file to be written, replaced and removed."""
    run_loop(directory, n_steps=20, periods=(10,), keep=1)


SETTINGS = (
    "task.hidden_size=16,task.dropout_rate=0.3,trainer.optimizer_config.ema.average_decay=0.9,trainer.train_steps=65,"
    "trainer.steps_per_loop=10,trainer.summary_interval=10,trainer.checkpoint_interval=15,"
    "trainer.validation_interval=20,trainer.max_to_keep=3,trainer.n_microbatches=2,"
    "runtime.distribution_strategy=one_device,runtime.seed=5"
)


def run_experiment(directory: Path) -> None:
    """`trellis train` with averages, microbatches, dropout, a best export, intervals that do not divide each other."""
    from trellis.cli import main

    flags = ["--experiment=digits/classifier", "--mode=train_and_eval", f"--model_dir={directory}"]
    sys.exit(main.main(["train", *flags, f"--params_override={SETTINGS}"]))


def run_stages(directory: Path) -> None:
    """Two stages, the second with more layers, another rate and another batch size, and exports."""
    from tests.trainer import test_progressive as stages

    stages.run(directory, stages.params(**stages.EVERYTHING))


def run_recovering(directory: Path) -> None:
    """A run that meets data at which its loss is not a number, and goes back and leaves them out, twice."""
    from tests.trainer import small

    params = small.params(20, task={"bad_batches": [7, 17]}, recovery_max_trials=2)
    trellis.run_experiment(params, mode="train_and_eval", model_dir=directory)


VICTIMS: dict[str, Callable[[Path], None]] = {
    "short": run_short,
    "loop": run_loop,
    "experiment": run_experiment,
    "stages": run_stages,
    "recovering": run_recovering,
}


@dataclass(frozen=True)
class Strike:
    """A signal that a process sends to itself at its n-th call that changes its directory."""

    call: int
    every: int = 0
    """If not 0, it comes again at every so many calls after it."""
    number: int = signal.SIGKILL
    is_torn: bool = False
    """Whether half of the bytes of a write are written before the signal comes."""


@dataclass
class Run:
    """A process that runs a victim; what it prints goes to a file."""

    pid: int
    log: Path
    code: int | None = None
    """The exit code, negative for a signal; None while it runs."""
    is_stopped: bool = False
    """Whether it has stopped itself, and waits to go on."""

    def wait(self, seconds: float = MOST_SECONDS) -> int | None:
        """Waits for the end; returns the exit code, and None if the process still runs or is stopped."""
        end = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            self.is_stopped = bool(pid) and os.WIFSTOPPED(status)
            if self.is_stopped:
                return None
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                return None
            else:
                time.sleep(0.001)
        return self.code

    def send(self, number: int) -> None:
        """Sends a signal, if the process is there."""
        if self.code is None:
            os.kill(self.pid, number)

    def end(self) -> int | None:
        """Waits for the end; returns the exit code, and None after a run that hangs, which is killed."""
        if self.wait() is None:
            self.send(signal.SIGKILL)
            self.wait()
            self.code = None
        return self.code

    @property
    def ending(self) -> str:
        """How it has ended, in words."""
        if self.code is None:
            return f"hangs: it was still running after {MOST_SECONDS} seconds"
        lines = [line for line in self.output.splitlines() if line.strip()]
        return f"ends with exit code {self.code}: {lines[-1] if lines else 'nothing was printed'}"

    @property
    def output(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")


class Nursery:
    """Starts runs; a directory holds what they share and all that they print.

    Args:
        directory: Holds the cache of compiled programs, which only an undisturbed run fills: a process that is killed
            while it writes there would spoil it for the others.
    """

    def __init__(self, directory: Path) -> None:
        self._dir = directory

    def start(
        self,
        run: Callable[[Path], None],
        directory: Path,
        *,
        strike: Strike | None = None,
        fills_cache: bool = False,
    ) -> Run:
        """Starts a function in a process of its own."""
        log = self._dir / f"{directory.name}.log"
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return Run(pid, log)
        code = 1
        try:
            _redirect(log)
            # A shell has what it starts in the background ignore this signal.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _use_cache(self._dir / "programs", fills=fills_cache)
            arm(directory, strike or Strike(call=-1))
            code = live(run, directory)
        finally:
            os._exit(code)

    def finish(self, run: Callable[[Path], None], directory: Path, *, fills_cache: bool = False) -> str:
        """Runs to the end; returns what was printed, or raises an error if that was no good end."""
        process = self.start(run, directory, fills_cache=fills_cache)
        if process.end() != 0:
            raise RuntimeError(process.ending)
        return process.output


def leave_out(reason: str) -> NoReturn:
    """Ends this script with an exit code that says that nothing was tried."""
    print(f"Left out: {reason}", flush=True)
    sys.exit(LEFT_OUT)


def share_out(items: list[Any], work: Callable[[Any], Iterable[Any]], *, n_jobs: int) -> Iterator[Any]:
    """Does some work on all items in several forked processes, each with its share; yields what comes of it."""
    context = multiprocessing.get_context("fork")
    queue: Any = context.SimpleQueue()

    def work_on(share: list[Any]) -> None:
        try:
            for item in share:
                for result in work(item):
                    queue.put((result,))
        finally:
            queue.put(None)

    workers = [context.Process(target=work_on, args=(items[number::n_jobs],)) for number in range(n_jobs)]
    for worker in workers:
        worker.start()
    n_running = n_jobs
    while n_running:
        result = queue.get()
        if result is None:
            n_running -= 1
        else:
            yield result[0]
    for worker in workers:
        worker.join()
        if worker.exitcode:
            sys.exit("A part of the kit itself has failed: see above.")


def arm(directory: Path, strike: Strike) -> None:
    """Has this process strike itself."""
    if is_loaded():
        root = str(directory.absolute()).encode()
        numbers = [ctypes.c_long(strike.call), ctypes.c_long(strike.every)]
        ctypes.CDLL(None).chaos_strike(root, *numbers, int(strike.number), int(strike.is_torn))
    elif strike.call > 0:
        _arm_in_python(directory, strike)


def n_calls() -> int:
    """How many calls have changed the directory so far."""
    if not is_loaded():
        return _seen["n_calls"]
    count = ctypes.CDLL(None).chaos_n_calls
    count.restype = ctypes.c_long
    return int(count())


def is_loaded() -> bool:
    """Whether this process counts the calls of the C library."""
    return _seen["has_library"]


def load_calls() -> None:
    """Starts this process anew so that it counts the calls of the C library, if it does not do so yet."""
    library = Path(os.environ.pop("LD_PRELOAD", ""))
    if library.name == LIBRARY:
        # It is in the memory of this process and its forks. What is started from here on does not need it.
        shutil.rmtree(library.parent)
        _seen["has_library"] = True
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        leave_out("striking at a call needs a C compiler. On Debian and Ubuntu: sudo apt install gcc")
    library = Path(tempfile.mkdtemp(prefix="trellis-chaos-")) / LIBRARY
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, CALLS_SOURCE, "-ldl"], check=True)
    module = sys.modules["__main__"].__spec__.name
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | {"LD_PRELOAD": str(library)})


_seen = {"n_calls": 0, "has_library": False}


def _arm_in_python(directory: Path, strike: Strike) -> None:
    """The same without a compiler: only calls that Python itself makes are seen, and no write is torn."""
    root = str(directory.absolute())
    names = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if (is_write or event in names) and str(arguments[0]).startswith(root):
            _seen["n_calls"] += 1
            if _seen["n_calls"] == strike.call:
                os.kill(os.getpid(), strike.number)

    sys.addaudithook(hear)


def warm_up() -> None:
    """Loads all that the victims need, so that a fork has it; starts no device and no thread."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    for name in MODULES:
        importlib.import_module(name)
    for name in trellis.__all__:
        getattr(trellis, name)


def _redirect(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _use_cache(directory: Path, *, fills: bool) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if fills else 1e9)


def live(run: Callable[[Path], None], directory: Path) -> int:
    """Runs as a script would; returns the exit code."""
    code = 0
    try:
        run(directory)
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:  # noqa: BLE001  (this is what the interpreter does)
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    return code
