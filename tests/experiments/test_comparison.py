"""Two runs are compared by their events: up to where they are the same, and in what they part."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from trellis.errors import ArgumentError
from trellis.experiments import RunRecord, compare_runs

NAMES = ["params/dense/kernel", "params/dense/bias", "batch/image"]


def digits(*values: int) -> str:
    """Sixteen digits for each value."""
    return "".join(f"{value:016x}" for value in values)


def write_run(directory: Path, *points: tuple[int, float, tuple[int, ...]], names: list[str] = NAMES) -> RunRecord:
    """The events of a run that tells (step, loss, the digits of its tensors)."""
    directory.mkdir(exist_ok=True)
    lines: list[dict[str, Any]] = []
    for number, (step, loss, tensors) in enumerate(points):
        times = {"seconds_per_step": 1.0 / (len(str(directory)) + step), "examples_per_second": 3.5 * number}
        lines.append({"kind": "summary", "step": step, "metrics": {"train": {"loss": loss} | times}})
        known = {} if number else {"names": names}
        lines.append({"kind": "fingerprint", "step": step, "tensors": digits(*tensors), **known})
    (directory / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return RunRecord(directory)


def test_runs_that_tell_the_same_are_equal_up_to_the_last_step_that_both_have(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)), (15, 0.1, (7, 8, 9)))
    other = write_run(tmp_path / "other", (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)))
    comparison = compare_runs(one, other)
    assert comparison.is_equal
    assert comparison.parted_at is None
    assert (comparison.last_step, comparison.n_fingerprints, comparison.n_summaries) == (10, 2, 2)


def test_the_first_step_and_the_first_tensor_that_differ_are_named(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)), (15, 0.1, (7, 8, 9)))
    other = write_run(tmp_path / "b", (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 50, 6)), (15, 0.2, (70, 8, 9)))
    comparison = compare_runs(one, other)
    assert not comparison.is_equal
    assert comparison.parted_at == 10
    (tensor,) = comparison.tensors
    assert (tensor.step, tensor.name, tensor.first, tensor.second) == (10, "params/dense/bias", digits(5), digits(50))
    (metric,) = comparison.metrics
    assert (metric.step, metric.name, metric.first, metric.second) == (15, "train/loss", 0.1, 0.2)


def test_a_loss_that_is_not_a_number_equals_another_that_is_none(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", (5, float("nan"), (1, 2, 3)))
    assert compare_runs(one, one).is_equal


def test_within_a_tolerance_only_losses_and_batches_are_compared(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)))
    assert compare_runs(one, write_run(tmp_path / "b", (5, 0.50001, (7, 8, 3))), tolerance=1e-4).is_equal
    far = compare_runs(one, write_run(tmp_path / "c", (5, 0.51, (7, 8, 3))), tolerance=1e-4)
    assert [difference.name for difference in far.metrics] == ["train/loss"]
    batch = compare_runs(one, write_run(tmp_path / "d", (5, 0.5, (1, 2, 4))), tolerance=1e-4)
    assert [difference.name for difference in batch.tensors] == ["batch/image"]


def test_a_tensor_that_only_one_run_has_is_a_difference(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)))
    other = write_run(tmp_path / "b", (5, 0.5, (1, 3)), names=[NAMES[0], NAMES[2]])
    (difference,) = compare_runs(one, other).tensors
    assert (difference.name, difference.second) == ("params/dense/bias", None)


def test_steps_that_only_one_run_tells_of_are_listed(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)))
    other = write_run(tmp_path / "b", (10, 0.25, (4, 5, 6)))
    assert compare_runs(one, other).lonely_steps == (5,)


def test_runs_without_a_step_in_common_cannot_be_compared(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)))
    other = write_run(tmp_path / "b", (7, 0.5, (1, 2, 3)))
    with pytest.raises(ArgumentError, match=r"no step in common: one tells of the steps 5 to 5, and one .* 7 to 7"):
        compare_runs(one, other)


def test_what_is_no_run_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="There is no directory `.*gone`. Give the model_dir of a run"):
        RunRecord(tmp_path / "gone")
    with pytest.raises(ArgumentError, match="has no events.jsonl, so it tells of no run"):
        RunRecord(tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"")
    with pytest.raises(ArgumentError, match="tells nothing of the run: it is empty"):
        RunRecord(tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"\x00\x01\n{\n")
    with pytest.raises(ArgumentError, match="its 2 lines hold no event"):
        RunRecord(tmp_path)
    (tmp_path / "events.jsonl").unlink()
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(ArgumentError, match="events.jsonl` cannot be read: Is a directory"):
        RunRecord(tmp_path)


def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)))
    file = tmp_path / "a/events.jsonl"
    garbled = f'{{"kind": "summary", "step": 10, "crc32": {zlib.crc32(b"other")}}}\n'
    file.write_text(file.read_text() + garbled)
    run = RunRecord(tmp_path / "a")
    assert run.damage == f"`{file}` is damaged: 1 of its 5 lines hold no event."
    assert [*run.metrics] == [5, 10]


def test_trees_are_compared_if_the_names_of_tensors_are_lost(tmp_path: Path) -> None:
    event = {"kind": "fingerprint", "step": 5, "params": "a", "batch": "b", "tensors": digits(1, 2)}
    runs = []
    for name, params in (("a", "1"), ("b", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_text(json.dumps(event | {"params": params}))
        runs.append(RunRecord(tmp_path / name))
    assert [difference.name for difference in compare_runs(*runs).tensors] == ["params"]


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ArgumentError, match="model_dir is `gs://bucket/run`"):
        RunRecord("gs://bucket/run")
