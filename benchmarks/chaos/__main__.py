"""The whole kit, one part after the other, and a page with what was tried and what came of it.

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
import time
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
PARTS = {
    "kills": (1_500, "kills of runs, started again until they end and compared to the bit"),
    "power_cuts": (100, "power cuts, by copies of a block image; needs root"),
    "executor_kills": (100, "kills of `trellis run`, while it puts a model in its place"),
    "damages": (1_000, "damages of every file of a run"),
    "fuzz": (100_000, "bad configs, records, rows and served models"),
}
"""Each script of this folder, how much it does in full size, and what that is."""


def main() -> None:
    """Runs the parts and writes the page; the exit code is 1 if there is a fault, or a part could not be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0, help="the share of the full size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--results-dir", type=Path, default=RESULTS)
    flags = parser.parse_args()
    failed = []
    seconds = {}
    for part in flags.parts:
        n, text = PARTS[part]
        n = max(1, round(n * flags.size))
        if part == "power_cuts" and os.geteuid() != 0:
            print("Power cuts are left out: they need root, to mount an image.", flush=True)
            continue
        print(f"{part}: {n:,} {text}", flush=True)
        results_file(flags.results_dir, part).unlink(missing_ok=True)
        command = [sys.executable, "-m", f"benchmarks.chaos.{part}", f"--seed={flags.seed}", f"--n={n}"]
        started = time.monotonic()
        if subprocess.run([*command, f"--results-dir={flags.results_dir}"], check=False).returncode:
            failed.append(part)
        seconds[part] = time.monotonic() - started
    page = flags.results_dir / "chaos.md"
    page.write_text("\n".join(write_page(flags.results_dir, seconds)))
    print(f"All of it: {page}")
    if failed:
        sys.exit(f"With faults: {', '.join(failed)}.")


def results_file(directory: Path, part: str) -> Path:
    """The file that a part writes."""
    return directory / f"chaos_{part}.json"


def write_page(directory: Path, seconds: dict[str, float]) -> list[str]:
    """The lines of a page about the parts that were run."""
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
        if part not in seconds or not file.is_file():
            lines.append(f"| {part} | not run | | |")
            continue
        trials = json.loads(file.read_text())["trials"]
        n_tried = sum(kind["tried"] for kind in trials.values())
        n_faults = sum(len(kind["faults"]) for kind in trials.values())
        lines.append(f"| {part} | {n_tried:,} | {n_faults:,} | {seconds[part] / 60:.0f} |")
        details += ["", f"## {part}: {PARTS[part][1]}", "", "| what | tried | faults |", "|---|---|---|"]
        details += [f"| {name} | {kind['tried']:,} | {len(kind['faults']):,} |" for name, kind in trials.items()]
        details += ["", *(f"- {name}: {fault}" for name, kind in trials.items() for fault in kind["faults"])]
    return [*lines, *details, ""]


if __name__ == "__main__":
    main()
