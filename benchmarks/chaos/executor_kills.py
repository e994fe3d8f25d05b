"""Kills of runs that replace a model: at every call of the file system in turn, and of the command at random moments.

Each kill is followed by a run that succeeds or one that fails. At every moment of all this the old model or the new one
has to be in its place and whole, afterwards the inputs have to be whole, and nothing else may be left behind.

    python benchmarks/chaos/executor_kills.py --calls=300 --commands=50
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tally import Tally

from trellis import disk
from trellis.executor import Examples, Executor, Model, ModelRun, safekeeping

# A model is whole if all of its files are there, and tell the same version.
MODULE = """
import os
from pathlib import Path

def run_fn(fn_args):
    version = os.environ["VERSION"]
    forms = [fn_args.serving_model_dir] + [fn_args.eval_model_dir] * ("eval" in os.environ["DOES"])
    if "delete" in os.environ["DOES"]:
        for file in Path("data").rglob("*.gz"):
            file.unlink()
    for form in forms:
        for name in ("a.bin", "deep/b.bin", "deep/c.bin"):
            path = Path(form, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(version)
    if "fail" in os.environ["DOES"]:
        raise ValueError("told to fail")
"""
N_FILES = 3
FORMS = ("Format-Serving", "Format-TFMA")
EVENTS = {
    "open",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.listdir",
    "os.scandir",
    "ctypes.dlsym",
}
"""The audit events that stand for calls of the file system; the last one for the exchange of two names."""

TRACED = ("rename", "renameat2", "unlink", "unlinkat", "mkdir", "rmdir", "link", "fsync")


@dataclass
class Scene:
    """A directory with inputs, a module and a model, and what has to be true of them."""

    place: Path
    inputs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split in ("train", "eval"):
            for index in range(2):
                file = self.place / "data" / f"Split-{split}" / f"data-{index}.gz"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(random.Random(f"{split}{index}").randbytes(100))
        (self.place / "my_module.py").write_text(textwrap.dedent(MODULE))
        (self.place / "tmp").mkdir()
        self.inputs = self.read_inputs()

    def read_inputs(self) -> dict[str, int]:
        return {str(file): zlib.crc32(file.read_bytes()) for file in disk.files_in(self.place / "data")}

    def run(self, version: int, *does: str) -> None:
        """Runs the module in this process."""
        os.chdir(self.place)
        os.environ |= {"VERSION": str(version), "DOES": " ".join(does)}
        tempfile.tempdir = str(self.place / "tmp")
        Executor().Do(
            {"examples": [Examples("data")]},
            {"model": [Model("out/model")], "model_run": [ModelRun("out/run")]},
            {
                "module_file": "my_module.py",
                "train_args": {},
                "eval_args": {},
                "custom_config": {"trellis_run_args": {"model_files": ["*.bin"]}},
            },
        )

    def command(self, version: int, *does: str, under: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Starts the command, under another one if need be."""
        flags = ["--module_file=my_module.py", "--examples=data", "--model=out/model", "--model_files=*.bin"]
        return subprocess.Popen(
            [*under, sys.executable, "-m", "trellis", "run", *flags],
            cwd=self.place,
            env=os.environ | {"VERSION": str(version), "DOES": " ".join(does), "TMPDIR": str(self.place / "tmp")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def versions(self) -> tuple[list[str], list[str]]:
        """The versions of the files of the two forms."""
        forms = [self.place / "out/model" / form for form in FORMS]
        return tuple([file.read_text() for file in disk.files_in(form)] for form in forms)  # type: ignore[return-value]

    def fault(self, served: set[int], *, is_settled: bool = True) -> str:
        """What is wrong; empty if nothing is.

        Args:
            served: The versions that may be there; 0 stands for none.
            is_settled: Whether a whole run has come after the kill. If not, only the served model has to be right.
        """
        model, analysed = self.versions()
        if len(set(model)) > 1 or len(model) not in (0, N_FILES):
            return f"the served model has the files {model}"
        version = int(model[0]) if model else 0
        if version not in served:
            return f"version {version} is served, not one of {served}"
        if not is_settled:
            return ""
        if analysed and (set(analysed) != set(model) or len(analysed) != N_FILES):
            return f"beside {model} there is the form {analysed}"
        if self.read_inputs() != self.inputs:
            return f"the inputs are {sorted(self.read_inputs())}"
        left = [path.name for path in (self.place / "out/model").glob("*") if path.name not in FORMS]
        left += [path.name for path in (self.place / "tmp").iterdir() if not _is_probe(path)]
        left += [str(path) for path in self.place.rglob(".*")]
        return f"left behind: {sorted(set(left))}" if left else ""


def _is_probe(path: Path) -> bool:
    """Whether Python's `tempfile` made a file to see whether it can: it has no name by which it could be tidied up."""
    return path.is_file() and len(path.name) == 8 and path.read_bytes() in (b"", b"blat")


def in_a_fork(work: Callable[[], None]) -> int:
    """Does something in a process of its own; returns how that ended: 0, 1 if it has raised, or -SIGKILL."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        work()
        code = 0
    finally:
        os._exit(code)


@dataclass(frozen=True)
class Story:
    """A run that is killed, one before it and one after it."""

    has_exchange: bool
    before: str
    does: str
    after: str

    def play(self, scene: Scene, *, call: int) -> tuple[int, str]:
        """Kills a run at its n-th call; returns how that ended, and what is wrong after the next run."""
        assert in_a_fork(lambda: scene.run(1, self.before)) == 0
        code = in_a_fork(lambda: self._run_killed(scene, call))
        # Where names cannot be exchanged there may be no model between two renames.
        fault = scene.fault({1, 2} if self.has_exchange else {0, 1, 2}, is_settled=False)
        is_published = scene.versions()[0][:1] == ["2"]
        code_after = in_a_fork(lambda: scene.run(3, self.after))
        if not fault and code_after != (1 if self.after == "fail" else 0):
            fault = f"the next run ended with {code_after}"
        return code, fault or scene.fault({3} if self.after != "fail" else {2} if is_published else {1, 2})

    def count_calls(self, scene: Scene) -> int:
        """Returns how many calls an undisturbed run makes."""
        assert in_a_fork(lambda: scene.run(1, self.before)) == 0
        in_a_fork(lambda: self._run_killed(scene, sys.maxsize, log=scene.place / "calls"))
        return (scene.place / "calls").stat().st_size

    def _run_killed(self, scene: Scene, call: int, *, log: Path | None = None) -> None:
        if not self.has_exchange:
            safekeeping.exchange = lambda one, other: False
        calls = itertools.count(1)
        descriptor = None if log is None else os.open(log, os.O_CREAT | os.O_WRONLY)

        def look(event: str, arguments: tuple[object, ...]) -> None:
            if event in EVENTS:
                if descriptor is not None:
                    os.write(descriptor, b".")
                if next(calls) == call:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        scene.run(2, self.does)


STORIES = [
    Story(*parts)
    for parts in itertools.product(
        (True, False), ("", "eval"), ("", "eval", "delete eval", "delete fail"), ("", "fail")
    )
]


def kill_at_calls(tally: Tally, *, n_kills: int, chance: random.Random, only: str) -> None:
    """Kills runs at calls of the file system: at some of all that there are, or at one."""
    if only:
        trials = [tuple(map(int, only.split(",")))]
    else:
        chosen = chance.sample(range(len(STORIES)), min(n_kills, len(STORIES)))
        n_calls = {index: count_calls(STORIES[index]) for index in chosen}
        trials = [(index, call) for index, n in n_calls.items() for call in range(1, n + 1)]
        trials = chance.sample(trials, min(n_kills, len(trials)))
    for index, call in trials:
        story = STORIES[index]
        with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
            code, fault = story.play(Scene(Path(folder)), call=call)
        if not fault and code != -signal.SIGKILL:
            fault = f"the run was not killed, but ended with {code}"
        kind = f"SIGKILL at a call of the file system, {'one exchange' if story.has_exchange else 'two renames'}"
        tally.add(kind, fault=fault, again=f"--only={index},{call}")


def count_calls(story: Story) -> int:
    """Returns how many calls a run of a story makes."""
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        return story.count_calls(Scene(Path(folder)))


@dataclass
class Reader:
    """Reads the served model again and again, as a server does that is told of no run."""

    scene: Scene
    is_over: bool = False
    n_reads: int = 0
    fault: str = ""

    def __enter__(self) -> "Reader":
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self.thread.join()

    def read(self) -> None:
        form = self.scene.place / "out/model" / FORMS[0]
        while not self.is_over and not self.fault:
            try:
                number = form.stat().st_ino
                texts = [file.read_text() for file in disk.files_in(form)]
                is_same = form.stat().st_ino == number
            except FileNotFoundError:
                # While it was read, it was exchanged and removed; but one of the two is always there.
                self.fault = "" if form.is_dir() else "no model was there"
                continue
            self.n_reads += 1
            if is_same and (len(texts) != N_FILES or len(set(texts)) != 1):
                self.fault = f"the files {texts} were read"


def kill_commands(tally: Tally, *, n_commands: int, chance: random.Random) -> None:
    """Kills the command at random moments, most of them near its end, and then has another one follow."""
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        scene = Scene(Path(folder))
        started = time.monotonic()
        assert scene.command(1, "eval").wait() == 0
        seconds = time.monotonic() - started
        for index in range(n_commands):
            version = 2 * index + 2
            before = int(scene.versions()[0][0])
            does = chance.choice(("", "eval", "delete eval"))
            after = chance.choice(("", "fail"))
            with Reader(scene) as reader:
                process = scene.command(version, does)
                moment = seconds * chance.choice((chance.uniform(0, 1.2), chance.uniform(0.6, 1.1)))
                try:
                    process.wait(moment)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                code_after = scene.command(version + 1, after).wait()
            fault = reader.fault
            if not fault and code_after != (1 if after else 0):
                fault = f"the next run ended with {code_after}"
            fault = fault or scene.fault({before, version} if after else {version + 1})
            tally.add("SIGKILL of the command", fault=fault, again=f"kill {index} of --commands={n_commands}")
            if fault:
                shutil.rmtree(scene.place / "out", ignore_errors=True)
                scene.command(version, "eval").wait()


def kill_traced_commands(tally: Tally, *, n_commands: int, chance: random.Random) -> None:
    """Kills the processes of the command at calls that change names, by tracing, and then has another one follow."""
    if n_commands and not shutil.which("strace"):
        print("strace is not installed, so no command is killed at its calls.")
        return
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        scene = Scene(Path(folder))
        assert scene.command(1, "eval").wait() == 0
        for index in range(n_commands):
            version = 2 * index + 2
            before = int(scene.versions()[0][0])
            call = chance.choice(TRACED)
            n = chance.randint(1, 12)
            after = chance.choice(("", "fail"))
            inject = f"inject={call}:signal=SIGKILL:when={n}"
            tracer = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e", inject]
            with Reader(scene) as reader:
                code = scene.command(version, chance.choice(("eval", "delete eval")), under=tracer).wait()
                code_after = scene.command(version + 1, after).wait()
            fault = reader.fault
            if not fault and code_after != (1 if after else 0):
                fault = f"the next run ended with {code_after}"
            fault = fault or scene.fault({before, version} if after else {version + 1})
            ended = "" if code < 0 or code == 128 + signal.SIGKILL else ", which was not reached or was a worker's"
            tally.add(f"SIGKILL of the command at a traced call{ended}", fault=fault, again=f"{call}, when={n}")


def main() -> int:
    """Reads the flags, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--calls",
        type=int,
        default=300,
        help="how many runs to kill at a call of the file system; there are about 3,000",
    )
    parser.add_argument("--commands", type=int, default=50, help="how many commands to kill at a random moment")
    parser.add_argument("--traced", type=int, default=0, help="how many commands to kill at a call, by strace")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="STORY,CALL", help="the one trial to repeat")
    parser.add_argument("--results_dir", type=Path)
    flags = parser.parse_args()
    tally = Tally("executor_kills", seed=flags.seed)
    chance = random.Random(flags.seed)
    kill_at_calls(tally, n_kills=flags.calls, chance=chance, only=flags.only)
    if not flags.only:
        kill_commands(tally, n_commands=flags.commands, chance=chance)
        kill_traced_commands(tally, n_commands=flags.traced, chance=chance)
    return tally.finish(flags.results_dir)


if __name__ == "__main__":
    sys.exit(main())
