"""Fine-tuning real weights on real data beside the Hugging Face Trainer: same settings, several seeds, scores and time.

Run it as `python benchmarks/finetuning.py --data-dir=data --weights=weights`; benchmarks/README.md says more.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finetuning_settings import BATCH_SIZE, TASKS, Job
from loop_overhead_report import describe_machine

SIDES = {"Trellis": "finetuning_trellis.py", "Hugging Face Trainer": "finetuning_hugging_face.py"}


def run(job: Job) -> dict[str, Any]:
    """One run in a process of its own: two frameworks would quarrel about an accelerator's memory."""
    script = Path(__file__).with_name(SIDES[job.side])
    command = [sys.executable, str(script), json.dumps(asdict(job))]
    # Where `trellis train` keeps what it compiles for an accelerator.
    environment = {**os.environ, "XDG_CACHE_HOME": job.cache_dir}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{job.side} on {job.task}, seed {job.seed}, failed:\n{done.stdout}\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    seconds -= found.pop("borrowed_seconds", 0.0)
    return {"side": job.side, "task": job.task, "seed": job.seed, **found, "seconds": seconds}


def report(found: Sequence[dict[str, Any]], *, machine: str) -> str:
    """The tables, as Markdown."""
    tasks = list(dict.fromkeys(item["task"] for item in found))
    parts = [f"{side}: {part}" for side in SIDES for part in ("first", "later", "sum")]

    def values(task: str, name: str) -> list[list[float]]:
        return [[item[name] for item in found if (item["task"], item["side"]) == (task, side)] for side in SIDES]

    def times(name: str) -> list[list[str]]:
        return [[task, *itertools.chain(*map(_times, values(task, name)))] for task in tasks]

    scores = [[task, TASKS[task].metric, *map(_spread, values(task, "score"))] for task in tasks]
    return f"""# Fine-tuning

Made by `python benchmarks/finetuning.py` on {machine}.

## Scores

Means of {len({item["seed"] for item in found})} seeds with their standard deviations.

{_table(["task", "score", *SIDES], scores)}
## Seconds from the start of the process to the score

The first run, for which Trellis compiles its programs; the mean of the later ones, which find them; the sum of all.

{_table(["task", *parts], times("seconds"))}
## Seconds of training

The same without imports, data, and evaluation; with tracing and compilation.

{_table(["task", *parts], times("train_seconds"))}"""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _spread(scores: list[float]) -> str:
    return f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else f"{scores}"


def _times(seconds: list[float]) -> list[str]:
    first, *later = seconds or [float("nan")]
    return [f"{first:.1f}", f"{statistics.mean(later):.1f}" if later else "–", f"{first + sum(later):.1f}"]


def accelerators() -> list[str]:
    """The names of NVIDIA's, if there are some."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return []
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def earlier(directory: Path, *, machine: str) -> list[dict[str, Any]]:
    """The runs of other tasks that were made before on the same machine with the same packages."""
    file = directory / "finetuning.json"
    saved: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return saved["runs"] if saved.get("machine") == machine else []


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is asked for, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="where glue/ and squad/ are")
    parser.add_argument("--weights", required=True, help="a BERT in a directory of Hugging Face's")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-examples", type=int, help="train and validate on so many only: a trial")
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent / "results")
    flags = parser.parse_args(arguments)
    machine = "; ".join([*accelerators(), describe_machine()])
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    found = [item for item in earlier(flags.output_dir, machine=machine) if item["task"] not in flags.tasks]
    warm_up(flags)
    for task in flags.tasks:
        found += measure(task, flags)
        saved = json.dumps({"machine": machine, "runs": found}, indent=1)
        (flags.output_dir / "finetuning.json").write_text(saved + "\n")
        (flags.output_dir / "finetuning.md").write_text(report(found, machine=machine))
    print(f"\n{report(found, machine=machine)}\nWritten to finetuning.md and finetuning.json in `{flags.output_dir}`.")


def warm_up(flags: argparse.Namespace) -> None:
    """A few examples on each side, of which nothing is kept but packages and drivers in the machine's memory."""
    for side in flags.sides:
        with tempfile.TemporaryDirectory() as cache:
            run(Job(side, flags.tasks[0], 0, flags.data_dir, flags.weights, cache, 2 * BATCH_SIZE))


def measure(task: str, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs of one task, the first of them without anything kept."""
    found = []
    with tempfile.TemporaryDirectory() as cache:
        for seed, side in itertools.product(flags.seeds, flags.sides):
            result = run(Job(side, task, seed, flags.data_dir, flags.weights, cache, flags.n_examples))
            found.append(result)
            training = f"{result['train_seconds']:.1f} s of training, {result['compile_seconds']:.1f} s of it compiling"
            line = f"  {task}, seed {seed}, {side}: {result['score']:.2f}, {result['seconds']:.1f} s ({training})"
            print(line, flush=True)
    return found


if __name__ == "__main__":
    main()
