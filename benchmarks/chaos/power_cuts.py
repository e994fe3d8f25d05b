"""Cuts the power of a run, and starts it again from what has reached the disk.

A run writes to a file system in an image. At calls that change its directory it is stopped, and the blocks that the
file system has written by then are copied: that is what a power cut at this moment would leave. The copy is mounted,
which replays the journal, and

- each checkpoint file that is there is whole;
- each that was committed before the cut is there;
- the run, resumed from there, ends as one that was never disturbed, to the bit.

One of the resumed runs is cut, too. The file system writes as late as it may (a commit of its journal in five minutes),
so that whatever was not brought to the disk is lost. `--without-fsync` shows that faults are found: Python's `fsync`
does nothing then.

    sudo python -m benchmarks.chaos.power_cuts                    # 100 cuts
    sudo python -m benchmarks.chaos.power_cuts --without-fsync    # succeeds if faults are found
"""

import argparse
import ctypes
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos import victims
from benchmarks.chaos.kills import Outcome, Undisturbed, read_remains, run_undisturbed
from benchmarks.chaos.remains import differences
from benchmarks.chaos.tally import Tally
from benchmarks.chaos.victims import VICTIMS, Nursery, Run, Strike, leave_out

LATE = {
    "ordered": "commit=300,noauto_da_alloc,data=ordered",
    "writeback": "commit=300,noauto_da_alloc,data=writeback",
}
"""The ways to mount the file system that a run writes to."""
N_CUTS_A_RUN = 20
FEWEST_CALLS = 8
"""So many calls after a checkpoint file got its name, it is committed."""
_NEW_MOUNTS = 0x00020000


@dataclass(frozen=True)
class Trial:
    """A run and its cuts."""

    number: int
    victim: str
    journal: str
    n_cuts: int


@dataclass(frozen=True)
class Cut:
    """What a power cut has left."""

    image: Path
    committed: frozenset[str]
    """The checkpoint files that have to be there."""


def main() -> None:
    """Makes as many cuts as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100, help="how many cuts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=[*VICTIMS])
    parser.add_argument("--only", type=int, help="the number of the one run to repeat with its cuts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many runs at once")
    parser.add_argument("--without-fsync", action="store_true", help="show that faults would be found")
    parser.add_argument("--results-dir", type=Path)
    flags = parser.parse_args()
    if os.geteuid() != 0:
        leave_out("mounting an image needs root: sudo .venv/bin/python -m benchmarks.chaos.power_cuts")
    if shutil.which("mkfs.ext4") is None:
        leave_out("there is no mkfs.ext4. On Debian and Ubuntu: sudo apt install e2fsprogs")
    victims.load_calls()
    hide_mounts()
    try_to_mount()
    victims.warm_up()
    directory = Path(tempfile.mkdtemp(prefix="trellis-chaos-"))
    undisturbed = {name: run_undisturbed(name, directory) for name in flags.victims}
    trials = [
        trial for trial in choose_trials(flags.n, flags.seed, flags.victims) if flags.only in (None, trial.number)
    ]

    def run(trial: Trial) -> Iterator[Outcome]:
        return run_trial(
            trial, directory, undisturbed[trial.victim], seed=flags.seed, without_fsync=flags.without_fsync
        )

    tally = Tally("power_cuts", flags.seed)
    for outcome in victims.share_out(trials, run, n_jobs=flags.jobs):
        same = f"--n={flags.n} --seed={flags.seed} --victims {' '.join(flags.victims)}"
        tally.add(outcome.kind, fault=outcome.fault, again=f"{same} --only={outcome.name}")
    shutil.rmtree(directory)
    code = tally.finish(None if flags.without_fsync else flags.results_dir)
    sys.exit(not code if flags.without_fsync else code)


def hide_mounts() -> None:
    """Has what is mounted from now on be seen by this process alone, and be gone when it ends, however it ends."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS):
        leave_out(f"this process may not have mounts of its own ({os.strerror(ctypes.get_errno())}).")
    command("mount", "--make-rprivate", "/")


def try_to_mount() -> None:
    """Leaves the power alone if no image can be mounted here, as in many containers."""
    with tempfile.TemporaryDirectory(prefix="trellis-chaos-") as directory:
        image = Path(directory, "disk.image")
        make_file_system(image)
        try:
            with mounted(image, "rw"):
                pass
        except subprocess.CalledProcessError:
            leave_out("an image cannot be mounted here, as said above.")


def choose_trials(n: int, seed: int, names: list[str]) -> list[Trial]:
    """Runs with `n` cuts in all."""
    counts = [min(N_CUTS_A_RUN, n - first) for first in range(0, n, N_CUTS_A_RUN)]
    return [
        Trial(number, names[number % len(names)], [*LATE][(number + seed) % len(LATE)], n_cuts)
        for number, n_cuts in enumerate(counts)
    ]


def run_trial(
    trial: Trial, directory: Path, undisturbed: Undisturbed, *, seed: int, without_fsync: bool
) -> Iterator[Outcome]:
    """Cuts a run, cuts the run that is resumed from one of these cuts, and resumes from all of them."""
    choose = random.Random(f"{seed}/{trial.number}")
    nursery = Nursery(directory)
    victim = VICTIMS[trial.victim]
    victim = skipping_fsync(victim) if without_fsync else victim
    kind = f"{trial.victim}, {trial.journal} journal"
    name = f"power_{trial.number}"
    image = directory / f"disk_{trial.number}.image"
    make_file_system(image)
    n_second = trial.n_cuts // 4
    cuts: list[Cut] = []
    for n_cuts in filter(None, (trial.n_cuts - n_second, n_second)):
        every = max(FEWEST_CALLS, undisturbed.n_calls // n_cuts)
        strike = Strike(choose.randint(1, every), every, signal.SIGSTOP)
        if cuts:
            image = image.with_name(f"{image.stem}_again.image")
            command("cp", "--sparse=always", choose.choice(cuts).image, image)
        with mounted(image, LATE[trial.journal]) as disk:
            process = nursery.start(victim, disk / name, strike=strike)
            cuts += take_cuts(process, disk / name, image)
        if process.code != 0:
            yield Outcome(kind, str(trial.number), f"the run {process.ending}")
        image.unlink()
    for cut in cuts:
        with mounted(cut.image, "rw") as disk:
            fault = resume(trial, disk / name, nursery, undisturbed, cut)
        cut.image.unlink()
        yield Outcome(kind, str(trial.number), fault)


def skipping_fsync(run: Callable[[Path], None]) -> Callable[[Path], None]:
    """A run in which Python brings nothing to the disk; what other code brings there by itself stays."""

    def skipping(directory: Path) -> None:
        os.fsync = lambda descriptor: None
        run(directory)

    return skipping


def take_cuts(process: Run, path: Path, image: Path) -> Iterator[Cut]:
    """Copies the disk whenever the run has stopped itself, and lets it go on."""
    known: frozenset[str] = frozenset()
    for number in itertools.count():
        process.wait()
        if not process.is_stopped:
            process.end()
            return
        copy = image.with_name(f"{image.stem}_{number}.image")
        command("cp", "--sparse=always", image, copy)
        visible = checkpoint_names(path)
        # One that was not there at the stop before may have got its name just now, and not be committed yet.
        yield Cut(copy, visible & known)
        known = visible
        process.send(signal.SIGCONT)


def checkpoint_names(path: Path) -> frozenset[str]:
    """The checkpoint files below a directory that have their names."""
    files = path.rglob("manifest.json")
    names = {file.parent.relative_to(path).as_posix() for file in files}
    return frozenset(name for name in names if not any(part.startswith(".") for part in name.split("/")))


def resume(trial: Trial, path: Path, nursery: Nursery, undisturbed: Undisturbed, cut: Cut) -> str:
    """Looks at what is left, and resumes from it; returns what is wrong."""
    from trellis.errors import CheckpointFileError
    from trellis.extensions import checkpoint_storage

    for name in sorted(checkpoint_names(path)):
        try:
            checkpoint_storage.read_manifest(path / name)
        except CheckpointFileError as error:
            return f"{name} is damaged: {error}"
    lost = cut.committed - checkpoint_names(path)
    if lost:
        return f"{', '.join(sorted(lost))} was committed before the cut, and is lost"
    try:
        nursery.finish(VICTIMS[trial.victim], path)
        return differences(read_remains(nursery, path), undisturbed.remains)
    except RuntimeError as error:
        return f"the resumed run {error}"


def make_file_system(image: Path) -> None:
    """Makes an empty file system in a file that has holes in the place of what is empty."""
    with image.open("wb") as file:
        file.truncate(256 << 20)
    command("mkfs.ext4", "-q", "-F", "-J", "size=8", image)


@contextmanager
def mounted(image: Path, options: str) -> Iterator[Path]:
    """Mounts an image beside it."""
    disk = image.with_suffix(".mounted")
    disk.mkdir()
    command("mount", "-o", f"loop,{options}", image, disk)
    try:
        yield disk
    finally:
        command("umount", disk)
        disk.rmdir()


def command(*arguments: str | Path) -> None:
    """Runs a command that has to succeed."""
    subprocess.run(arguments, check=True)


if __name__ == "__main__":
    main()
