"""Killed anywhere and started again with the same command, a run ends as one that was never killed, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trellis.extensions import checkpoint_storage, read_goodput
from trellis.loops import CLOCKED_METRICS

REPOSITORY = Path(__file__).parents[2]
N_STEPS = 200


def start(directory: Path, n_steps: int = N_STEPS) -> subprocess.Popen[str]:
    """Starts the run."""
    command = [sys.executable, "-m", "tests.end_to_end.resumable_run", str(directory), str(n_steps)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]),
        "XLA_FLAGS": "",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, text=True, **pipes)


def finish(directory: Path) -> str:
    """Runs to the end; returns what was printed."""
    process = start(directory)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def kill_when(directory: Path, is_time: Callable[[], bool], number: int) -> tuple[int, str]:
    """Starts the run, sends a signal when it is time, and returns the exit code and what was printed."""
    process = start(directory)
    while not is_time():
        try:
            process.wait(timeout=0.001)
        except subprocess.TimeoutExpired:
            continue
        break
    process.send_signal(number)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def n_summaries(directory: Path) -> int:
    """How many points the event file holds."""
    file = directory / "events.jsonl"
    return file.read_text().count('"summary"') if file.exists() else 0


def contents(directory: Path) -> dict[str, Any]:
    """Every checkpoint file, by name: step, metrics without times, and arrays."""
    found = {}
    for path in directory.iterdir():
        if path.is_dir() and path.name != "tensorboard":
            manifest = checkpoint_storage.read_manifest(path)
            arrays = checkpoint_storage.read_arrays(path, manifest["tree"])
            found[path.name] = (manifest["step"], without_times(manifest["metrics"]), arrays)
    return found


def without_times(metrics: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The metrics that do not measure time."""
    return {
        group: {name: value for name, value in named.items() if name not in CLOCKED_METRICS}
        for group, named in metrics.items()
    }


def history(directory: Path) -> list[Any]:
    """All points of the event file."""
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [(line["step"], without_times(line["metrics"])) for line in lines if line["kind"] == "summary"]


def points(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """All points that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for run in ("train", "eval"):
        accumulator = EventAccumulator(str(directory / "tensorboard" / run), size_guidance={"scalars": 0})
        accumulator.Reload()
        for tag in accumulator.Tags()["scalars"]:
            if not tag.endswith(CLOCKED_METRICS):
                found[f"{run}/{tag}"] = [(point.step, point.value) for point in accumulator.Scalars(tag)]
    return found


def assert_same(one: Path, other: Path) -> None:
    """Asserts that two finished runs left the same."""
    ones, others = contents(one), contents(other)
    assert sorted(ones) == sorted(others)
    for name, (step, metrics, arrays) in ones.items():
        assert (step, metrics) == others[name][:2], name
        assert arrays.keys() == others[name][2].keys()
        for path, array in arrays.items():
            np.testing.assert_array_equal(array, others[name][2][path], err_msg=f"{name}: {path}", strict=True)
    assert history(one) == history(other)
    assert points(one) == points(other)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never killed."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    finish(directory)
    return directory


def test_an_uninterrupted_run_leaves_what_it_should(uninterrupted: Path) -> None:
    steps = [step for step, _ in history(uninterrupted)]
    assert steps == list(range(5, N_STEPS + 1, 5))
    assert {f"regular_{N_STEPS}", f"regular_{N_STEPS - 5}"} <= contents(uninterrupted).keys()
    assert [step for step, _ in points(uninterrupted)["eval/loss"]] == steps


def test_a_run_killed_several_times_ends_as_one_that_was_not(uninterrupted: Path, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"random seed {seed}")
    choose = random.Random(seed)
    for at in sorted(choose.sample(range(1, 30), 3)):
        in_save = choose.random() < 0.6

        def is_time(at: int = at, in_save: bool = in_save) -> bool:
            n_points = n_summaries(tmp_path)
            is_waiting = n_points >= (N_STEPS - 15) // 5
            return is_waiting or (n_points >= at and (not in_save or any(tmp_path.glob(".*.writing"))))

        code, output = kill_when(tmp_path, is_time, signal.SIGKILL)
        assert code == -signal.SIGKILL, output
    finish(tmp_path)
    assert_same(tmp_path, uninterrupted)
    goodput = read_goodput(tmp_path)
    assert goodput.n_attempts == 4
    assert goodput.seconds["downtime"] > 0
    assert goodput.total == pytest.approx(goodput.wall_seconds, rel=0.01)
    assert goodput.clock_jump == 0


def test_a_run_told_to_stop_saves_and_goes_on_as_if_it_was_not(uninterrupted: Path, tmp_path: Path) -> None:
    code, output = kill_when(tmp_path, lambda: n_summaries(tmp_path) >= 9, signal.SIGTERM)
    assert code == 143, output
    said = [line for line in output.splitlines() if line.startswith("Stopped by SIGTERM: saved step ")]
    assert len(said) == 1, output
    step = int(said[0].split("saved step ")[1].split(".")[0])
    assert {f"preempted_{step}", f"regular_{step}"} & contents(tmp_path).keys()
    assert f"_{step}`" in finish(tmp_path)
    assert_same(tmp_path, uninterrupted)


LEFT_OPEN = """
import sys
import trellis
from tests import tiny

loop = tiny.train_loop(tiny.train_task(), n_steps=10, n_steps_per_checkpoint=2)
loop.attach(trellis.EventWriter(sys.argv[1]))
checkpoints = iter(loop)
next(checkpoints)
"""
ONE_STEP = """
import sys
import trellis
from tests import tiny

loop = tiny.train_loop(tiny.train_task())
process = trellis.serial(trellis.EventWriter(sys.argv[1]), trellis.CheckpointFileWriter(sys.argv[1]))
process(loop.next_step())
"""


def run_script(script: str, directory: Path) -> None:
    """Runs a script that has to end in silence."""
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    command = [sys.executable, "-c", script, str(directory)]
    environment = os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_may_end_in_the_middle_of_a_loop(tmp_path: Path) -> None:
    run_script(LEFT_OPEN, tmp_path)
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["step"]) == ("stopped", 2)
    assert "error" not in last


def test_a_script_may_end_after_it_has_saved_a_step(tmp_path: Path) -> None:
    run_script(ONE_STEP, tmp_path)
    assert checkpoint_storage.read_manifest(tmp_path / "regular_1")["step"] == 1
