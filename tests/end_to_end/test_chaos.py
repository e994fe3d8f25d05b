"""A small part of the kit in benchmarks/chaos, and that it finds what it looks for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos import remains

REPOSITORY = Path(__file__).parents[2]


def test_a_run_killed_at_a_file_system_call_ends_as_one_that_was_not() -> None:
    command = [sys.executable, "-m", "benchmarks.chaos.kills", "--n=6", "--victims=short", "--without-compiler"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [*command, "--jobs=2"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


UNDISTURBED = {
    "names": ["events.jsonl", "regular_20"],
    "checkpoints": {"regular_20": {"step": 20, "arrays": "5f2a"}},
    "history": [[10, {}], [20, {}]],
    "points": {"train/loss": [[10, 0.5], [20, 0.25]]},
    "texts": {"params.yaml": "seed: 1\n"},
}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, ""),
        ({"names": ["events.jsonl"]}, "missing: regular_20"),
        ({"names": [".a.removing", "events.jsonl", "regular_20"]}, "too many: .a.removing"),
        ({"checkpoints": {"regular_20": {"step": 20, "arrays": "77b1"}}}, "regular_20 has other arrays"),
        ({"history": [[20, {}]]}, "other history: at steps [20] instead of [10, 20]"),
        ({"points": {"train/loss": [[10, 0.5], [20, 0.3]]}}, "other points: train/loss, at step 20"),
        ({"texts": {"params.yaml": "seed: 2\n"}}, "other texts: params.yaml, the line 'seed: 2' instead of 'seed: 1'"),
    ],
)
def test_each_difference_from_an_undisturbed_run_is_told(changed: dict[str, object], fault: str) -> None:
    assert remains.differences(UNDISTURBED | changed, UNDISTURBED) == fault
