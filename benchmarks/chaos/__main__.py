"""The whole kit, one part after the other, and a page with what was tried and what came of it.

A part is a script of this folder, which can be run by itself, too.

    python -m benchmarks.chaos                    # all parts in full size: an hour or two on two cores
    python -m benchmarks.chaos --size=0.05        # a twentieth of it
    python -m benchmarks.chaos --parts kills fuzz --seed=3
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.chaos.victims import LEFT_OUT

CHAOS = Path(__file__).resolve().parent
REPOSITORY = CHAOS.parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"


@dataclass(frozen=True)
class Part:
    """A script of this folder."""

    text: str
    """What it does."""
    n: int
    """How often it does so in full size."""
    flags: tuple[str, ...] = ("--n={n}", "--results-dir={results_dir}")


PARTS = {
    "kills": Part("kills of runs, started again until they end and compared to the bit", 1_500),
    "process_faults": Part(
        "kills, stops and signals of two processes that train together, and faults of their disk and clocks", 200
    ),
    "power_cuts": Part("power cuts, by copies of a block image", 100),
    "executor_kills": Part(
        "kills of `trellis run`, while it puts a model in its place",
        500,
        ("--calls={n}", "--commands={n_tenth}", "--traced={n_tenth}", "--results_dir={results_dir}"),
    ),
    "damages": Part("damages of every file of a run", 1_000, ("--n_trials={n}", "--results_dir={results_dir}")),
    "fuzz": Part("bad configs, records, rows and served models", 100_000),
}


def main() -> None:
    """Runs the parts and writes the page; the exit code is 1 if there is a fault, or a part could not be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0, help="the share of the full size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--results-dir", type=Path, default=RESULTS)
    flags = parser.parse_args()
    paths = [str(CHAOS), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    failed = []
    for part in flags.parts:
        n = max(1, round(PARTS[part].n * flags.size))
        print(f"{part}: {n:,} {PARTS[part].text}", flush=True)
        results_file(flags.results_dir, part).unlink(missing_ok=True)
        values = {"n": n, "n_tenth": n // 10, "results_dir": flags.results_dir.absolute()}
        given = [flag.format(**values) for flag in PARTS[part].flags]
        command = [sys.executable, "-m", f"benchmarks.chaos.{part}", f"--seed={flags.seed}", *given]
        code = subprocess.run(command, check=False, cwd=REPOSITORY, env=environment).returncode
        if code not in (0, LEFT_OUT):
            failed.append(part)
    page = flags.results_dir / "chaos.md"
    page.write_text("\n".join(write_page(flags.results_dir)))
    print(f"All of it: {page}")
    if failed:
        sys.exit(f"With faults: {', '.join(failed)}.")


def results_file(directory: Path, part: str) -> Path:
    """The file that a part writes."""
    return directory / f"chaos_{part}.json"


def write_page(directory: Path) -> list[str]:
    """The lines of a page about what the parts have found when they were run last."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "orbax-checkpoint"))
    lines = [
        "# Chaos",
        "",
        f"By `python -m benchmarks.chaos` on {os.cpu_count()} cores, Python {platform.python_version()}, {packages}.",
        "",
        "| part | tried | faults | minutes |",
        "|---|---|---|---|",
    ]
    details = []
    for part in PARTS:
        file = results_file(directory, part)
        if not file.is_file():
            lines.append(f"| {part} | not run | | |")
            continue
        found = json.loads(file.read_text())
        trials = found["trials"]
        n_tried = sum(kind["tried"] for kind in trials.values())
        n_faults = sum(len(kind["faults"]) for kind in trials.values())
        lines.append(f"| {part} | {n_tried:,} | {n_faults:,} | {found['seconds'] / 60:.0f} |")
        details += ["", f"## {part}: {PARTS[part].text}", "", "| what | tried | faults |", "|---|---|---|"]
        details += [f"| {name} | {kind['tried']:,} | {len(kind['faults']):,} |" for name, kind in trials.items()]
        details += ["", *(f"- {name}: {fault}" for name, kind in trials.items() for fault in kind["faults"])]
        details += [f"- {note}" for note in found.get("notes", ())]
    return [*lines, *details, ""]


if __name__ == "__main__":
    main()
