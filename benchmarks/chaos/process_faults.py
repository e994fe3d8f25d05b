"""Strikes at runs of two processes with all that befalls machines, and compares what they leave, to the bit.

A run is that of `trellis launch --processes=2 --restarts=K -- train …`. Processes are killed, told to stop, interrupted
and stopped; the disk is full, broken or slow, the directory is gone for a while, clocks jump. A run that has ended by
that is started again by the same command. In the end

- it has left what an undisturbed run leaves;
- no fault has taken a checkpoint file that was committed before it;
- whatever has ended has said why in words, within a bound.

What is written goes to a small file system in memory if this process may mount one, which is then really full.

    python -m benchmarks.chaos.process_faults                  # 200 faults
    python -m benchmarks.chaos.process_faults --n=20 --seed=3
    python -m benchmarks.chaos.process_faults --seed=3 --only=4
"""

import argparse
import atexit
import ctypes
import errno
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.chaos import victims
from benchmarks.chaos.kills import Outcome, read_remains
from benchmarks.chaos.power_cuts import command, hide_mounts
from benchmarks.chaos.remains import differences
from benchmarks.chaos.tally import Tally
from benchmarks.chaos.victims import Nursery, Run
from trellis.errors import ExitCode
from trellis.executor import Worker, WorkerOrder

LAYOUTS = {"all": 1, "half": 2}
"""The sizes of the axis `fsdp` of the mesh, by how much of the state a process holds."""
SETTINGS = {
    "task.hidden_size": 256,
    "trainer.train_steps": 150,
    "trainer.steps_per_loop": 10,
    "trainer.summary_interval": 20,
    "trainer.checkpoint_interval": 10,
    "trainer.validation_interval": 50,
    "runtime.distribution_strategy": "mirrored",
}
FAULTS_A_RUN = 8
SECONDS_OF_SILENCE = 6
"""After so long a process that is stopped is taken for lost."""
MOST_SECONDS = 120
"""A run that has not ended so long after a fault hangs; most of that is for machines that do much else."""
MOST_STARTS = 4
"""So often a run is started again that ends by itself after a fault."""
GOOD_CODES = {2, 75, 130, 128 + signal.SIGKILL, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
_BYTES_OF_DISK = 64 << 20
_TOLD_BY = (signal.SIGTERM, signal.SIGINT)


class Weather(ctypes.Structure):
    """What a run and whoever strikes at it both see, in memory that they share."""

    _fields_ = (
        ("delay", ctypes.c_long),
        ("error", ctypes.c_long),
        ("jump", ctypes.c_long),
        ("n_started", ctypes.c_long),
        ("pids", ctypes.c_long * 2),
    )
    delay: int
    """How many microseconds a call of the file system takes longer."""
    error: int
    """With what such calls fail."""
    jump: int
    """By how many seconds clocks are wrong."""
    n_started: int
    """How many processes were started so far."""
    pids: Any
    """Those that were started last."""


@dataclass
class Scene:
    """A run, and all that can befall it."""

    directory: Path
    """Of the run."""
    weather: Weather
    choose: random.Random
    has_own_disk: bool
    launcher: Run

    def kill(self, number: int, index: int) -> None:
        """Sends a process a signal, if it is there."""
        # Before it is started its number is 0, which would be this script and all that it has started.
        if pid := self.weather.pids[index]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, seconds: float) -> None:
        """Waits for some time, or until the run has ended."""
        self.launcher.wait(seconds)


def signal_one(scene: Scene, number: int) -> None:
    """One of the processes gets a signal."""
    scene.kill(number, scene.choose.randrange(2))


def signal_launcher(scene: Scene, number: int) -> None:
    """Whoever has started the processes gets a signal."""
    scene.launcher.send(number)


def pause(scene: Scene) -> None:
    """A process is stopped, and goes on before it counts as lost."""
    index = scene.choose.randrange(2)
    scene.kill(signal.SIGSTOP, index)
    scene.wait(scene.choose.uniform(0, SECONDS_OF_SILENCE / 3))
    scene.kill(signal.SIGCONT, index)


def fill_disk(scene: Scene) -> None:
    """There is no room for a while."""
    if not scene.has_own_disk:
        break_disk(scene, errno.ENOSPC)
        return
    ballast = scene.directory.parent / "ballast"
    try:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        scene.wait(scene.choose.uniform(0.5, 4))
    finally:
        ballast.unlink(missing_ok=True)


def break_disk(scene: Scene, error: int = errno.EIO) -> None:
    """Calls of the file system fail for a while."""
    scene.weather.error = error
    scene.wait(scene.choose.uniform(0.5, 4))
    scene.weather.error = 0


def slow_disk(scene: Scene) -> None:
    """Calls of the file system take long for a while."""
    scene.weather.delay = scene.choose.choice([5_000, 50_000, 200_000])
    scene.wait(scene.choose.uniform(0.5, 4))
    scene.weather.delay = 0


def hide_directory(scene: Scene) -> None:
    """The directory of the run is gone for a while; what is written in its place meanwhile is gone when it is back."""
    away = scene.directory.with_name("away")
    with suppress(FileNotFoundError):
        scene.directory.rename(away)
        scene.wait(scene.choose.uniform(0.2, 4))
        while scene.directory.exists():
            shutil.rmtree(scene.directory, ignore_errors=True)
        away.rename(scene.directory)
        if scene.launcher.wait(0) == 0:
            # It has begun and ended meanwhile, and all of it is gone: somebody would start it again.
            scene.launcher.code = int(ExitCode.LOST)


def set_clocks(scene: Scene) -> None:
    """The clocks jump, and stay as they are then."""
    scene.weather.jump = scene.choose.choice([-86_400, -60, -1, 1, 60, 86_400])


@dataclass(frozen=True)
class Fault:
    """What can befall a run."""

    strike: Callable[[Scene], None]
    weight: int
    is_lethal: bool = False
    """Whether the run ends, or is started again, after it."""


def _by_signal(strike: Callable[[Scene, int], None], number: int, weight: int, *, is_lethal: bool = True) -> Fault:
    return Fault(lambda scene: strike(scene, number), weight, is_lethal)


FAULTS = {
    "SIGKILL of a process": _by_signal(signal_one, signal.SIGKILL, 6),
    "SIGTERM to a process": _by_signal(signal_one, signal.SIGTERM, 4),
    "SIGINT to a process": _by_signal(signal_one, signal.SIGINT, 3),
    "SIGSTOP of a process": _by_signal(signal_one, signal.SIGSTOP, 3),
    "SIGSTOP, then SIGCONT": Fault(pause, 2),
    "SIGKILL of the launcher": _by_signal(signal_launcher, signal.SIGKILL, 1),
    "SIGTERM to the launcher": _by_signal(signal_launcher, signal.SIGTERM, 1),
    "SIGINT to the launcher": _by_signal(signal_launcher, signal.SIGINT, 1),
    "a full disk": Fault(fill_disk, 4),
    "a broken disk": Fault(break_disk, 3),
    "a slow disk": Fault(slow_disk, 3),
    "a directory that vanishes": Fault(hide_directory, 4),
    "clocks that jump": Fault(set_clocks, 3),
}


@dataclass(frozen=True)
class Trial:
    """A run with all its faults."""

    number: int
    layout: str
    faults: tuple[str, ...]


def main() -> None:
    """Strikes as often as is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="how many faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[*FAULTS], metavar="FAULT")
    parser.add_argument("--only", type=int, help="the number of the one run to repeat")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many runs at once")
    parser.add_argument("--results-dir", type=Path)
    flags = parser.parse_args()
    victims.load_calls()
    has_own_disk = may_mount()
    victims.warm_up()
    directory = Path(tempfile.mkdtemp(prefix="trellis-chaos-"))
    undisturbed = {layout: run_undisturbed(layout, directory) for layout in LAYOUTS}
    counts = [min(FAULTS_A_RUN, flags.n - first) for first in range(0, flags.n, FAULTS_A_RUN)]
    trials = [choose_trial(number, n, flags) for number, n in enumerate(counts) if flags.only in (None, number)]

    tally = Tally("process_faults", flags.seed)

    def run(trial: Trial) -> Iterator[tuple[Outcome, float]]:
        if time.monotonic() - tally.started < 60 * flags.minutes:
            same = undisturbed[trial.layout]
            yield from run_trial(trial, directory, same, seed=flags.seed, has_own_disk=has_own_disk)

    longest: dict[str, float] = {}
    for outcome, seconds in victims.share_out(trials, run, n_jobs=flags.jobs):
        again = f"--seed={flags.seed} --n={flags.n} --only={outcome.name}"
        tally.add(outcome.kind, fault=outcome.fault, again=again)
        print(f"run {outcome.name}: {outcome.kind}, {seconds:.1f} seconds", flush=True)
        longest[outcome.kind] = max(longest.get(outcome.kind, 0.0), seconds)
    tally.notes += [
        f"{kind}: all processes had ended after {seconds:.1f} seconds at most."
        for kind, seconds in sorted(longest.items())
        if seconds
    ]
    if not tally.faults:
        shutil.rmtree(directory)
    sys.exit(tally.finish(flags.results_dir))


def may_mount() -> bool:
    """Whether this process may mount file systems of its own; without that, calls fail as they do on a full disk."""
    if os.geteuid():
        return False
    hide_mounts()
    return True


def choose_trial(number: int, n_faults: int, flags: argparse.Namespace) -> Trial:
    """A run of a number is the same, however many there are."""
    choose = random.Random(f"{flags.seed}/{number}")
    weights = [FAULTS[name].weight for name in flags.faults]
    kinds = choose.choices(flags.faults, weights=weights, k=n_faults)
    return Trial(number, [*LAYOUTS][number % len(LAYOUTS)], tuple(kinds))


@dataclass(frozen=True)
class Undisturbed:
    """A run that was left alone."""

    remains: dict[str, Any]
    seconds: float


def run_undisturbed(layout: str, directory: Path) -> Undisturbed:
    """Runs twice: to fill the cache of programs, and to see that two undisturbed runs are equal."""
    nursery = Nursery(directory)
    found = []
    for number in range(2):
        path = directory / f"undisturbed_{layout}_{number}"
        started = time.monotonic()
        nursery.finish(launching(layout, new_weather(), n_restarts=0), path, fills_cache=not number)
        found.append(Undisturbed(read_remains(nursery, path), time.monotonic() - started))
    fault = differences(found[0].remains, found[1].remains)
    if fault:
        sys.exit(f"Two undisturbed runs differ, so none can be compared: {fault}.")
    print(f"A run that is left alone takes {found[1].seconds:.1f} seconds.", flush=True)
    return found[1]


def new_weather() -> Weather:
    """Fine weather, in memory that forked processes share."""
    return Weather.from_buffer(mmap.mmap(-1, ctypes.sizeof(Weather)))


def launching(layout: str, weather: Weather, *, n_restarts: int) -> Callable[[Path], None]:
    """What a launcher does."""

    def launch(directory: Path) -> None:
        from trellis.launch import launch_local

        if victims.is_loaded():
            ctypes.CDLL(None).chaos_weather(ctypes.byref(weather))
        os.environ["TRELLIS_WORKER_TIMEOUT"] = str(SECONDS_OF_SILENCE)
        os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
        settings = SETTINGS | {"runtime.mesh.fsdp": LAYOUTS[layout]}
        arguments = [
            *("train", "--experiment=digits/classifier", "--mode=train_and_eval", f"--model_dir={directory}"),
            *(f"--set={name}={value}" for name, value in settings.items()),
        ]
        logs = directory.with_name(f"{directory.name}.logs")
        code = launch_local(
            arguments, n_processes=2, log_dir=logs, n_restarts=n_restarts, start=lambda order: fork(order, weather)
        )
        sys.exit(code)

    return launch


@dataclass(frozen=True)
class Forked:
    """A process that was forked in the place of one that is started: all is loaded, and nothing has begun."""

    run: Run

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.run.wait(0)

    def is_stopped(self) -> bool:
        """Whether it was stopped, and does not go on."""
        return state_of(self.run.pid) == "T"

    def stop(self, *, seconds: float) -> None:
        """Ends it, after so many seconds by force."""
        deadline = time.monotonic() + seconds
        self.run.send(signal.SIGTERM)
        while self.run.wait(0.05) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.run.send(signal.SIGKILL)
        while self.run.wait() is None:
            pass


def fork(order: WorkerOrder, weather: Weather) -> Worker:
    """Starts a process."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Until it has handlers of its own, it has those of the launcher, and would stop the others.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _TOLD_BY)
    pid = os.fork()
    if not pid:
        _follow(order, weather)
    weather.pids[order.index] = pid
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    weather.n_started += 1
    return Forked(Run(pid, order.log_file or Path(os.devnull)))


def _follow(order: WorkerOrder, weather: Weather) -> NoReturn:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD_BY)
        os.environ.update(order.environment)
        os.environ["TRELLIS_STARTED_BY"] = str(os.getppid())
        if order.log_file is not None:
            log = os.open(order.log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
        clock = time.time
        time.time = lambda: clock() + weather.jump

        def work(directory: Path) -> None:
            from trellis.cli import main

            sys.argv = ["trellis", *order.command[3:]]
            main.command()

        code = victims.live(work, Path())
        # JAX has processes that have joined leave together.
        atexit._run_exitfuncs()
    finally:
        os._exit(code)


def run_trial(
    trial: Trial, directory: Path, undisturbed: Undisturbed, *, seed: int, has_own_disk: bool
) -> Iterator[tuple[Outcome, float]]:
    """Strikes at a run again and again, lets it end, and compares what is left; a difference is the last fault's."""
    choose = random.Random(f"{seed}/{trial.number}/faults")
    nursery = Nursery(directory)
    weather = new_weather()
    name = str(trial.number)
    with disk(directory / f"disk_{trial.number}", has_own_disk=has_own_disk) as folder:
        path = folder / f"run_{trial.number}"
        start = launching(trial.layout, weather, n_restarts=100)
        scene = Scene(path, weather, choose, has_own_disk, nursery.start(start, path))
        problem = ""
        try:
            for n_faults, kind in enumerate(trial.faults):
                for _ in range(MOST_STARTS):
                    if wait_for_moment(scene, undisturbed.seconds):
                        break
                    problem = ending_problem(scene.launcher)
                    if scene.launcher.code == 0 or problem:
                        break
                    weather.jump = 0
                    shutil.copy(scene.launcher.log, directory / f"{path.name}.{n_faults}.log")
                    scene.launcher = nursery.start(start, path)
                if scene.launcher.code is not None:
                    break
                fault, seconds = strike(scene, FAULTS[kind])
                yield Outcome(kind, name, fault), seconds
            problem = problem or finish(scene, lambda: nursery.start(start, path))
            problem = problem or differences(read_remains(nursery, path), undisturbed.remains)
        finally:
            if scene.launcher.code is None:
                end_all(scene)
        if problem:
            kept = directory / f"kept_{trial.number}"
            shutil.copytree(folder, kept, symlinks=True)
            print(f"What it has left is in {kept}, what it has printed in {directory / path.name}.*", flush=True)
    yield Outcome("a run that ends", name, problem), 0.0


def wait_for_moment(scene: Scene, seconds: float) -> bool:
    """Waits for a chance moment, half of the time for one in a save; returns whether the run is there."""
    scene.wait(scene.choose.uniform(0, 0.8 * seconds))
    if scene.choose.random() < 0.5:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and scene.launcher.wait(0) is None:
            if any(scene.directory.glob(".*.writing")):
                time.sleep(scene.choose.uniform(0, 0.05))
                break
    return scene.launcher.wait(0) is None


def strike(scene: Scene, fault: Fault) -> tuple[str, float]:
    """Has something befall a run; returns what is wrong with what comes of it, and when all had ended, if they have."""
    committed = newest_step(scene.directory)
    n_started = scene.weather.n_started
    pids = [*scene.weather.pids]
    started = time.monotonic()
    fault.strike(scene)
    seconds = 0.0
    while fault.is_lethal and any(map(is_running, pids)):
        if (seconds := time.monotonic() - started) > MOST_SECONDS:
            return "its processes do not end", seconds
        scene.launcher.wait(0)
        time.sleep(0.01)
    while fault.is_lethal and scene.launcher.wait(0.05) is None and scene.weather.n_started < n_started + 2:
        if time.monotonic() - started > MOST_SECONDS:
            return "the launcher does not go on", seconds
    if newest_step(scene.directory) < committed:
        return f"step {committed} was committed before, and is lost", seconds
    return ending_problem(scene.launcher), seconds


def is_running(pid: int) -> bool:
    """Whether a process runs, or is stopped; one that has ended and that nobody has asked for does not."""
    return bool(pid) and state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """What a process does, in a letter of the system's; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def newest_step(directory: Path) -> int:
    """The newest step that is committed."""
    files = [*directory.glob("regular_*/manifest.json"), *directory.glob("preempted_*/manifest.json")]
    steps = [file.parent.name.rpartition("_")[2] for file in files]
    return max((int(step) for step in steps if step.isdecimal()), default=0)


def ending_problem(launcher: Run) -> str:
    """What is wrong with how a launcher has ended, if it has; empty if nothing is."""
    if launcher.code in (None, 0):
        return ""
    lines = launcher.output.splitlines()
    if launcher.code not in GOOD_CODES:
        return f"it {launcher.ending}"
    if "Traceback (most recent call last)" in launcher.output:
        return f"with a traceback it {launcher.ending}"
    if launcher.code > 0 and not any(map(str.strip, lines)):
        return f"it ends with exit code {launcher.code}, and says nothing"
    return ""


def finish(scene: Scene, start: Callable[[], Run]) -> str:
    """Lets a run end, started again if what has befallen it ends it yet; returns what is wrong."""
    for _ in range(3):
        deadline = time.monotonic() + MOST_SECONDS
        while scene.launcher.wait(1) is None:
            if time.monotonic() > deadline:
                return f"it was still running after {MOST_SECONDS} seconds"
        if scene.launcher.code == 0:
            return ""
        problem = ending_problem(scene.launcher)
        if problem:
            return problem
        scene.launcher = start()
    return f"it cannot be resumed: it {scene.launcher.ending}"


def end_all(scene: Scene) -> None:
    """Ends what a run has left."""
    scene.launcher.send(signal.SIGKILL)
    for index in range(2):
        scene.kill(signal.SIGKILL, index)
    scene.launcher.wait()


@contextmanager
def disk(folder: Path, *, has_own_disk: bool) -> Iterator[Path]:
    """Makes a directory for a run, on a small file system of its own if that is possible."""
    folder.mkdir()
    if has_own_disk:
        command("mount", "-t", "tmpfs", "-o", f"size={_BYTES_OF_DISK}", "trellis-chaos", folder)
    try:
        yield folder
    finally:
        if has_own_disk:
            command("umount", "--lazy", folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
