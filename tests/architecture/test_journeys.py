"""What there is to read is computed from what runs."""

import itertools
import subprocess
import sys

import pytest

from tests.architecture.source import REPOSITORY


def journeys(*arguments: str) -> list[str]:
    """Runs the script that computes them."""
    command = [sys.executable, REPOSITORY / "benchmarks" / "journeys.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def files_on_the_page(title: str) -> set[str]:
    """The files of a journey that the page on the architecture lists."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    _, _, rest = page.partition(f"\n{title}: ")
    rows = itertools.takewhile(lambda line: line.startswith("  "), rest.splitlines()[1:])
    return {row.split()[-1] for row in rows}


@pytest.mark.parametrize(
    ("name", "first", "crossed", "never"),
    [
        ("loop", "data/example_stream.py", {"loops/train_loop.py", "loops/step.py", "loops/eval_loop.py"}, "config/"),
        ("module", "cli/main.py", {"executor/executor.py", "executor/module_file.py"}, "loops/"),
        ("bert", "cli/main.py", {"trainer/trainer.py", "loops/train_loop.py", "nlp/tasks/masked_lm.py"}, "executor/"),
    ],
)
def test_a_journey_is_traced_from_its_entry_to_a_metric(name: str, first: str, crossed: set[str], never: str) -> None:
    title, *lines = journeys(name)
    rows = [line.split() for line in lines]
    files = [file for _, _, _, file in rows]
    n_run = sum(int(run) for run, _, _, _ in rows)
    n_lines = sum(int(whole) for _, _, whole, _ in rows)
    assert title.endswith(f"{len(files)} files, {n_run:,} lines of functions that run, in {n_lines:,} lines")
    assert 0 < n_run < n_lines
    assert next(file for file in files if file != "doors.py") == first
    assert crossed <= set(files)
    assert not [file for file in files if file.startswith(never)]
    assert files_on_the_page(title.partition(":")[0]) == set(files)


def test_the_sizes_of_all_packages_are_told() -> None:
    names = {line.split()[0] for line in journeys("--package")}
    assert {"loops/", "trainer/", "nlp/data/", "all"} <= names
