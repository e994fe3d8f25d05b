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
from concurrent.futures import ThreadPoolExecutor
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


def report(found: Sequence[dict[str, Any]], *, machine: str, at_once: int = 1) -> str:
    """The tables, as Markdown."""
    tasks = list(dict.fromkeys(item["task"] for item in found))
    parts = [f"{side}: {part}" for side in SIDES for part in ("first", "later", "sum")]

    def values(task: str, name: str) -> list[list[float]]:
        return [[item[name] for item in found if (item["task"], item["side"]) == (task, side)] for side in SIDES]

    def times(name: str) -> list[list[str]]:
        return [[task, *itertools.chain(*map(_times, values(task, name)))] for task in tasks]

    flag = "" if at_once == 1 else f" --at-once={at_once}"
    n_seeds = len({item["seed"] for item in found})
    scores = [[task, TASKS[task].metric, *_compare(values(task, "score"))] for task in tasks]
    tables = f"""# Fine-tuning

Made by `python benchmarks/finetuning.py{flag}` on {machine}.

## Scores

Means of {n_seeds} seeds with their standard deviations; their difference with its standard error.

{_table(["task", "score", *SIDES, "difference"], scores)}"""
    if at_once > 1:
        return tables
    return f"""{tables}
## Seconds from the start of the process to the score

The first run, for which Trellis compiles its programs; the mean of the later ones, which find them; the sum of all.

{_table(["task", *parts], times("seconds"))}
## Seconds of training

The same without imports, data, and evaluation; with tracing and compilation.

{_table(["task", *parts], times("train_seconds"))}"""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _compare(sides: list[list[float]]) -> list[str]:
    """Means and standard deviations of both sides, and how far the first is above the second."""
    if any(len(scores) < 2 for scores in sides):
        return [*map(str, sides), "–"]
    means = [statistics.mean(scores) for scores in sides]
    error = sum(statistics.variance(scores) / len(scores) for scores in sides) ** 0.5
    cells = [f"{mean:.2f} ± {statistics.stdev(scores):.2f}" for mean, scores in zip(means, sides, strict=True)]
    return [*cells, f"{means[0] - means[1]:+.2f} ± {error:.2f}"]


def _times(seconds: list[float]) -> list[str]:
    first, *later = seconds or [float("nan")]
    return [f"{first:.1f}", f"{statistics.mean(later):.1f}" if later else "–", f"{first + sum(later):.1f}"]


def accelerators() -> list[str]:
    """The names of NVIDIA's, if there are some."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return []
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def earlier(file: Path, *, machine: str) -> list[dict[str, Any]]:
    """The runs that were made before on the same machine with the same packages."""
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
    parser.add_argument(
        "--at-once", type=int, default=1, help="so many runs side by side: scores only, as times are not fair then"
    )
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent / "results")
    flags = parser.parse_args(arguments)
    machine = "; ".join([*accelerators(), describe_machine()])
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    file = flags.output_dir / ("finetuning.json" if flags.at_once == 1 else "finetuning_scores.json")
    found = [item for item in earlier(file, machine=machine) if item["task"] not in flags.tasks]
    if flags.at_once == 1:
        warm_up(flags)
    for task in flags.tasks:
        found += measure(task, flags)
        file.write_text(json.dumps({"machine": machine, "at_once": flags.at_once, "runs": found}, indent=1) + "\n")
        tables = report(found, machine=machine, at_once=flags.at_once)
        file.with_suffix(".md").write_text(tables)
    print(f"\n{tables}\nWritten to `{file}` and `{file.with_suffix('.md')}`.")


def warm_up(flags: argparse.Namespace) -> None:
    """A few examples on each side, of which nothing is kept but packages and drivers in the machine's memory."""
    for side in flags.sides:
        with tempfile.TemporaryDirectory() as cache:
            run(Job(side, flags.tasks[0], 0, flags.data_dir, flags.weights, cache, 2 * BATCH_SIZE))


def measure(task: str, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs of one task, the first of them without anything kept."""
    found = []
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(flags.at_once) as pool:
        jobs = [
            Job(side, task, seed, flags.data_dir, flags.weights, cache, flags.n_examples)
            for seed, side in itertools.product(flags.seeds, flags.sides)
        ]
        for result in pool.map(run, jobs):
            found.append(result)
            training = f"{result['train_seconds']:.1f} s of training, {result['compile_seconds']:.1f} s of it compiling"
            seed, side = result["seed"], result["side"]
            line = f"  {task}, seed {seed}, {side}: {result['score']:.2f}, {result['seconds']:.1f} s ({training})"
            print(line, flush=True)
    return found


if __name__ == "__main__":
    main()
