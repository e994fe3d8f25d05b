"""Runs the tests of runs on engines again and again, and counts how often they fail.

They are those of `make test-cluster`, which installs Ray, each in a process and a folder of its own. What a failed one
has said is kept. A part that is not repeated keeps its numbers.

    python benchmarks/engines.py --parts ray slurm processes        # 20 times each: an hour or two
    python benchmarks/engines.py --parts verify_resume --n=1
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"


class Part(NamedTuple):
    about: str
    file: str
    test: str


PARTS = {
    "ray": Part(
        "two nodes of Ray, one of them killed in mid-run, a new one joins",
        "tests/launch/test_engines.py",
        "test_a_node_of_ray_that_is_killed",
    ),
    "slurm": Part(
        "SLURM's own daemons, two tasks, TERM, requeued by SLURM",
        "tests/launch/test_engines.py",
        "test_a_job_of_slurm_that_is_told_to_stop_goes_on_by_itself",
    ),
    "processes": Part(
        "1 → 2 → 4 → 2 → 1 processes that go on from each other's files",
        "tests/contracts/test_processes.py",
        "test_files_are_shared_out_and_read_on_any_number_of_processes",
    ),
    "verify_resume": Part(
        "`verify-resume` of each of the shipped experiments, with a kill, on one process and on two",
        "tests/cli/test_verify_resume.py",
        "test_every_shipped_experiment_survives_kills_and_goes_on_with_other_processes",
    ),
}


def run_once(part: Part, folder: Path) -> dict[str, Any]:
    """Runs the tests of a part in a process of their own; returns how that went."""
    load, start = os.getloadavg()[0], time.monotonic()
    flags = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", part.file, "-k", part.test]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags],
        cwd=REPOSITORY,
        env=os.environ | {"TRELLIS_CLUSTER_TESTS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (folder / "output.txt").write_text(done.stdout)
    # A test that was skipped has shown nothing.
    passed = done.returncode == 0 and " passed" in done.stdout and "skipped" not in done.stdout
    return {"passed": passed, "seconds": round(time.monotonic() - start), "load": round(load, 1)}


def page(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results as Markdown."""
    loads = [run["load"] for runs in results.values() for run in runs]
    about = (
        f"By `python benchmarks/engines.py` on {os.cpu_count()} cores with a load of {min(loads):g} to {max(loads):g}; "
        f"{versions()}. Each run has to end with the bits of one that nobody disturbed."
    )
    lines = [
        "# Runs on engines, repeated",
        "",
        about,
        "",
        "| what | times | failed | median seconds |",
        "|---|---|---|---|",
    ]
    for name, part in PARTS.items():
        runs = results.get(name, [])
        if runs:
            n_failed = sum(not run["passed"] for run in runs)
            seconds = statistics.median(run["seconds"] for run in runs)
            lines.append(f"| {part.about} | {len(runs)} | {n_failed} | {seconds:.0f} |")
    return "\n".join([*lines, ""])


def versions() -> str:
    """What the results are of."""
    named = []
    for package in ("jax", "ray"):
        try:
            named.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join([f"Python {platform.python_version()}", *named])


def main() -> None:
    """Repeats, and writes down each result when it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20, help="how often")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART")
    flags = parser.parse_args()
    file = RESULTS / "engines.json"
    results: dict[str, list[dict[str, Any]]] = json.loads(file.read_text()) if file.exists() else {}
    for name in flags.parts:
        results[name] = []
        for number in range(1, flags.n + 1):
            folder = Path(tempfile.mkdtemp(prefix=f"trellis-{name}-"))
            run = run_once(PARTS[name], folder)
            results[name].append(run)
            print(f"{name} {number} of {flags.n}: {run}{'' if run['passed'] else f' {folder}/output.txt'}", flush=True)
            file.write_text(json.dumps(results, indent=1) + "\n")
            (RESULTS / "engines.md").write_text(page(results))
    sys.exit(not all(run["passed"] for runs in results.values() for run in runs))


if __name__ == "__main__":
    main()
