"""Fine-tuning real weights on real data beside the Hugging Face Trainer: same settings, several seeds, scores and time.

Run it as `python benchmarks/finetuning.py --data-dir=data --weights=weights`; benchmarks/README.md says more.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finetuning_settings import TASKS, Job
from loop_overhead_report import describe_machine

SIDES = {"Trellis": "finetuning_trellis.py", "Hugging Face Trainer": "finetuning_hugging_face.py"}


def run(job: Job) -> dict[str, Any]:
    """One run in a process of its own: two frameworks would quarrel about an accelerator's memory."""
    script = Path(__file__).with_name(SIDES[job.side])
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(asdict(job))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{job.side} on {job.task}, seed {job.seed}, failed:\n{done.stdout}\n{done.stderr}")
    return {"side": job.side, "task": job.task, "seed": job.seed, **json.loads(done.stdout.splitlines()[-1])}


def report(found: Sequence[dict[str, Any]], *, machine: str) -> str:
    """The table, as Markdown."""
    n_seeds = len({item["seed"] for item in found})
    lines = [
        "# Fine-tuning\n",
        f"Made by `python benchmarks/finetuning.py` on {machine}.\n",
        f"Means of {n_seeds} seeds with their standard deviations; seconds of training, compilation included.\n",
        "| task | score | " + " | ".join(f"{side}, score | {side}, s" for side in SIDES) + " |",
        "|---|---|" + "---|---|" * len(SIDES),
    ]
    for task in dict.fromkeys(item["task"] for item in found):
        cells = []
        for side in SIDES:
            runs = [item for item in found if item["task"] == task and item["side"] == side]
            scores = [item["score"] for item in runs] or [float("nan")]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            seconds = statistics.mean([item["train_seconds"] for item in runs] or [float("nan")])
            cells += [f"{statistics.mean(scores):.2f} ± {spread:.2f}", f"{seconds:.1f}"]
        lines.append(f"| {task} | {TASKS[task].metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is asked for, and writes the table after each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="where glue/ and squad/ are")
    parser.add_argument("--weights", required=True, help="a BERT in a directory of Hugging Face's")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-examples", type=int, help="train and validate on so many only: a trial")
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent / "results")
    flags = parser.parse_args(arguments)
    machine, found = describe_machine(), []
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    for task in flags.tasks:
        for seed in flags.seeds:
            for side in flags.sides:
                result = run(Job(side, task, seed, flags.data_dir, flags.weights, flags.n_examples))
                found.append(result)
                told = f"{result['score']:.2f}, {result['train_seconds']:.1f} s"
                print(f"  {task}, seed {seed}, {side}: {told}", flush=True)
        values = {"machine": machine, "runs": found}
        (flags.output_dir / "finetuning.json").write_text(json.dumps(values, indent=1) + "\n")
        (flags.output_dir / "finetuning.md").write_text(report(found, machine=machine))
    print(f"\n{report(found, machine=machine)}\nWritten to finetuning.md and finetuning.json in `{flags.output_dir}`.")


if __name__ == "__main__":
    main()
