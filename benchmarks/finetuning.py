"""Fine-tuning real weights on real data beside the Hugging Face Trainer: same settings, several seeds, scores and time.

Run it as `python benchmarks/finetuning.py --data-dir=data --weights=weights`; benchmarks/README.md says more.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finetuning_settings import TASKS, Job
from loop_overhead_report import describe_machine

SIDES = {"Trellis": "finetuning_trellis.py", "Hugging Face Trainer": "finetuning_hugging_face.py"}


def run(jobs: Sequence[Job], *, cache: str) -> list[dict[str, Any]]:
    """The jobs of one side in a process of their own: two frameworks would quarrel about an accelerator's memory."""
    script = Path(__file__).with_name(SIDES[jobs[0].side])
    command = [sys.executable, str(script), json.dumps([asdict(job) for job in jobs])]
    # Where `trellis train` keeps what it compiles for an accelerator.
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{jobs[0].side} on {jobs[0].task} failed:\n{done.stdout}\n{done.stderr}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"score"')]
    return [
        {"side": job.side, "task": job.task, "seed": job.seed, **values}
        for job, values in zip(jobs, found, strict=True)
    ]


def report(found: Sequence[dict[str, Any]], *, machine: str) -> str:
    """The table, as Markdown."""
    n_seeds = len({item["seed"] for item in found})
    lines = [
        "# Fine-tuning\n",
        f"Made by `python benchmarks/finetuning.py` on {machine}.\n",
        f"Means of {n_seeds} seeds with their standard deviations. Seconds of training: the first seed's, filling the",
        "compilation cache, and the mean of the others'.\n",
        "| task | score | " + " | ".join(f"{side} | first, s | others, s" for side in SIDES) + " |",
        "|---|---|" + "---|---|---|" * len(SIDES),
    ]
    for task in dict.fromkeys(item["task"] for item in found):
        cells = []
        for side in SIDES:
            runs = [item for item in found if item["task"] == task and item["side"] == side]
            scores = [item["score"] for item in runs] or [float("nan")]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            first, *others = [item["train_seconds"] for item in runs] or [float("nan")]
            cells += [f"{statistics.mean(scores):.2f} ± {spread:.2f}", f"{first:.1f}"]
            cells.append(f"{statistics.mean(others):.1f}" if others else "–")
        lines.append(f"| {task} | {TASKS[task].metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


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
    with tempfile.TemporaryDirectory() as cache:
        measure(flags, found, machine=machine, cache=cache)
    print(f"\n{report(found, machine=machine)}\nWritten to finetuning.md and finetuning.json in `{flags.output_dir}`.")


def measure(flags: argparse.Namespace, found: list[dict[str, Any]], *, machine: str, cache: str) -> None:
    """Adds what is asked for to what was found, and writes it after each task."""
    for task in flags.tasks:
        for side in flags.sides:
            jobs = [Job(side, task, seed, flags.data_dir, flags.weights, flags.n_examples) for seed in flags.seeds]
            found += (results := run(jobs, cache=cache))
            for result in results:
                told = f"{result['train_seconds']:.1f} s ({result['compile_seconds']:.1f} s compiling)"
                print(f"  {task}, seed {result['seed']}, {side}: {result['score']:.2f}, {told}", flush=True)
        values = {"machine": machine, "runs": found}
        (flags.output_dir / "finetuning.json").write_text(json.dumps(values, indent=1) + "\n")
        (flags.output_dir / "finetuning.md").write_text(report(found, machine=machine))


if __name__ == "__main__":
    main()
