"""Killed anywhere and started again with the same command, an experiment ends as one that was never killed."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.end_to_end.test_resume import without_times
from trellis.extensions import checkpoint_storage
from trellis.loops import CLOCKED_METRICS

REPOSITORY = Path(__file__).parents[2]
N_STEPS = 205


def start(directory: Path) -> subprocess.Popen[str]:
    """Starts the run."""
    command = [sys.executable, "-m", "tests.trainer.resumable_experiment", str(directory), str(N_STEPS)]
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    environment = os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, text=True, **pipes)


def finish(directory: Path) -> None:
    """Runs to the end."""
    process = start(directory)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def kill_after(directory: Path, n_points: int, number: int) -> int:
    """Starts the run and sends a signal when it has written so many points; returns the exit code."""
    process = start(directory)
    file = directory / "events.jsonl"
    while not (file.exists() and file.read_text().count('"summary"') >= n_points):
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.002)
            break
    process.send_signal(number)
    process.communicate(timeout=300)
    return process.returncode


def contents(directory: Path) -> dict[str, Any]:
    """Every checkpoint file, the best one too: step, metrics without times, and arrays."""
    found = {}
    for file in directory.rglob("manifest.json"):
        manifest = checkpoint_storage.read_manifest(file.parent)
        arrays = checkpoint_storage.read_arrays(file.parent, manifest["tree"])
        name = file.parent.relative_to(directory).as_posix()
        found[name] = (manifest["step"], without_times(manifest["metrics"]), arrays)
    return found


def history(directory: Path) -> list[Any]:
    """All points of the event file."""
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [(line["step"], without_times(line["metrics"])) for line in lines if line["kind"] == "summary"]


def points(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """All points that TensorBoard shows of a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = [tag for tag in accumulator.Tags()["scalars"] if not tag.endswith(CLOCKED_METRICS)]
    return {tag: [(point.step, point.value) for point in accumulator.Scalars(tag)] for tag in tags}


def test_a_killed_experiment_ends_as_one_that_was_not(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"random seed {seed}")
    first, second = sorted(random.Random(seed).sample(range(1, 24), 2))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(whole)
    codes = [kill_after(killed, first, signal.SIGKILL), kill_after(killed, second, signal.SIGTERM)]
    finish(killed)
    assert codes == [-signal.SIGKILL, 143]
    ones, others = contents(whole), contents(killed)
    assert sorted(ones) == sorted(others)
    assert {"regular_195", "regular_205", "regular_180"} <= ones.keys()
    assert any(name.startswith("best/") for name in ones)
    for name, (step, metrics, arrays) in ones.items():
        assert (step, metrics) == others[name][:2], name
        for path, array in arrays.items():
            np.testing.assert_array_equal(array, others[name][2][path], err_msg=f"{name}: {path}", strict=True)
    assert history(whole) == history(killed)
    for side in ("train", "validation"):
        assert points(whole / side) == points(killed / side)
    assert (whole / "params.yaml").read_text() == (killed / "params.yaml").read_text()
