"""Kills one of two processes in the midst of a save, again and again, and compares what the run leaves, to the bit.

The processes are those of `trellis launch --processes=2 --restarts=K`, which share out every array of a checkpoint. A
kill comes when a save has begun and its file is not there yet, and strikes the first or the second process by chance.

    python -m benchmarks.chaos.process_kills                  # 20 kills
    python -m benchmarks.chaos.process_kills --n=4 --seed=3
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.chaos.remains import differences, remains
from benchmarks.chaos.tally import Tally

N_STEPS = 400
KILLS_A_RUN = 5
MOST_SECONDS = 600
LAYOUTS = {"every process holds all": 1, "every process holds a half": 2}
"""The sizes of the axis `fsdp` of the mesh, by what they mean on two devices."""


def main() -> None:
    """Kills runs, and prints a table; the exit code is 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20, help="how many kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results-dir", type=Path)
    flags = parser.parse_args()
    tally = Tally("process_kills", seed=flags.seed)
    chance = random.Random(flags.seed)
    with tempfile.TemporaryDirectory(prefix="trellis-chaos-") as folder:
        undisturbed: dict[str, dict[str, Any]] = {}
        n_left, number = flags.n, 0
        while n_left:
            layout = [*LAYOUTS][number % len(LAYOUTS)]
            if layout not in undisturbed:
                directory = Path(folder, f"undisturbed_{LAYOUTS[layout]}")
                run(directory, layout, n_kills=0, chance=chance)
                undisturbed[layout] = remains(directory)
            n_kills = min(n_left, KILLS_A_RUN)
            directory = Path(folder, f"run_{number}")
            struck, output = run(directory, layout, n_kills=n_kills, chance=chance)
            fault = differences(remains(directory), undisturbed[layout])
            print(f"run {number}, {layout}: killed {', '.join(struck)}; {fault or 'as undisturbed'}", flush=True)
            for kill in struck:
                tally.add(f"{kill.partition(' at ')[0]} of two, {layout}")
            if fault or len(struck) < n_kills:
                fault = fault or f"only {len(struck)} of {n_kills} kills came\n{output}"
                tally.faults[layout].append(f"{fault} (again: --seed={flags.seed} --n={flags.n})")
            n_left -= n_kills
            number += 1
    sys.exit(tally.finish(flags.results_dir))


def run(directory: Path, layout: str, *, n_kills: int, chance: random.Random) -> tuple[list[str], str]:
    """Runs to the end with some kills; returns whom they struck in what, and what was printed."""
    intervals = [f"--set=trainer.{name}_interval=20" for name in ("checkpoint", "validation", "summary")]
    command = [
        *(sys.executable, "-m", "trellis", "launch", "--processes=2", f"--restarts={n_kills}", "--", "train"),
        *("--experiment=digits/classifier", "--mode=train_and_eval", f"--model_dir={directory}"),
        *(f"--set=trainer.train_steps={N_STEPS}", *intervals, f"--set=runtime.mesh.fsdp={LAYOUTS[layout]}"),
        "--set=trainer.best_checkpoint_export_subdir=best",
        "--set=trainer.best_checkpoint_eval_metric=accuracy",
        "--set=task.hidden_size=512",
    ]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    log = directory.with_suffix(".log")
    with log.open("w") as output:
        launcher = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    struck: list[str] = []
    deadline = time.monotonic() + MOST_SECONDS
    n_seen = 0
    n_wanted = chance.randrange(1, 6)
    last = ""
    while launcher.poll() is None and time.monotonic() < deadline:
        save = current_save(directory) if len(struck) < n_kills else None
        if save is None or save.name == last:
            time.sleep(0.001)
            continue
        last = save.name
        n_seen += 1
        if n_seen < n_wanted:
            continue
        time.sleep(chance.uniform(0, 0.1))
        index = chance.randrange(2)
        # It may be over meanwhile: then another one is waited for.
        if save.is_dir() and kill(launcher.pid, index):
            state = "a manifest" if (save / "manifest.json").is_file() else f"{n_files(save)} files"
            struck.append(f"process {index} at {state}")
            n_seen, n_wanted = 0, chance.randrange(1, 6)
    if launcher.poll() is None:
        launcher.kill()
        launcher.wait()
    text = log.read_text()
    if launcher.returncode:
        sys.exit(f"{directory.name} has ended with code {launcher.returncode}:\n{text}")
    return struck, text


def current_save(directory: Path) -> Path | None:
    """The hidden directory of a save under way; None if there is none."""
    for folder in (directory, directory / "best"):
        with suppress(OSError):
            for path in folder.glob(".*.writing"):
                if (path / "arrays").is_dir():
                    return path
    return None


def n_files(save: Path) -> int:
    """How many files a save has written so far."""
    return sum(path.is_file() for path in save.rglob("*"))


def kill(launcher: int, index: int) -> bool:
    """Kills the process of an index that a launcher has started; returns whether it was there."""
    wanted = f"JAX_PROCESS_ID={index}".encode()
    with suppress(OSError):
        for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(int(pid), signal.SIGKILL)
                return True
    return False


if __name__ == "__main__":
    main()
