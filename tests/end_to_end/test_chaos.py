"""A small part of the kit in benchmarks/chaos, and that it finds what it looks for."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos import remains, victims

REPOSITORY = Path(__file__).parents[2]


def attack(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the kit with a seed of chance, on the shortest run."""
    command = [sys.executable, "-m", f"benchmarks.chaos.{script}", "--victims", "short", "--jobs=2"]
    seed = random.randrange(2**32)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    return subprocess.run(
        [*command, f"--seed={seed}", *flags],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_run_killed_at_a_file_system_call_ends_as_one_that_was_not() -> None:
    done = attack("kills", "--n=4", "--without-compiler")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cluster
@pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="a minute: run by `make test-cluster`")
def test_a_power_cut_takes_no_committed_checkpoint_file() -> None:
    done = attack("power_cuts", "--n=4")
    if done.returncode == victims.LEFT_OUT:
        pytest.skip(done.stdout)
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
