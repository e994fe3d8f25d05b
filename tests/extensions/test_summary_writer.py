"""Scalars for TensorBoard, read back by its own readers, each point once."""

import math
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

import trellis
from tests import tiny
from trellis.errors import ArgumentError, FileWriteError
from trellis.extensions import summary_writer
from trellis.loops import Session

Points = dict[str, list[tuple[int, float]]]


def new_tensorboard(directory: Path) -> EventMultiplexer:
    return EventMultiplexer(tensor_size_guidance={"tensors": 0}).AddRunsFromDirectory(str(directory))


def points_in_tensorboard(multiplexer: EventMultiplexer) -> Points:
    """Steps and values by run and tag, as TensorBoard shows them."""
    multiplexer.Reload()
    return {
        f"{run}/{tag}": [(event.step, event.tensor_proto.float_val[0]) for event in multiplexer.Tensors(run, tag)]
        for run, kinds in multiplexer.Runs().items()
        for tag in kinds["tensors"]
    }


def points_in_accumulators(accumulators: dict[str, EventAccumulator]) -> Points:
    """The same, as TensorBoard's older reader sees them."""
    for accumulator in accumulators.values():
        accumulator.Reload()
    return {
        f"{run}/{tag}": [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for run, accumulator in accumulators.items()
        for tag in accumulator.Tags()["scalars"]
    }


def accumulators(directory: Path) -> dict[str, EventAccumulator]:
    return {run.name: EventAccumulator(str(run), size_guidance={"scalars": 0}) for run in directory.iterdir()}


def points_in_files(directory: Path) -> Points:
    """Steps and values by run and tag, for a reader that takes what it finds: no marks, no order but of the names."""
    points: Points = {}
    for path in sorted(directory.glob("*/events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                points.setdefault(f"{path.parent.name}/{value.tag}", []).append((event.step, value.simple_value))
    return points


def assert_points(directory: Path, expected: Points) -> None:
    """Asserts that every kind of reader finds exactly these."""
    assert points_in_files(directory) == expected
    assert points_in_tensorboard(new_tensorboard(directory)) == expected
    assert points_in_accumulators(accumulators(directory)) == expected


def write_steps(directory: Path, steps: range, loss: float) -> None:
    """A process that makes a summary at each of some steps, and dies."""
    writer, session = trellis.SummaryWriter(directory), Session()
    for step in steps:
        writer(tiny.checkpoint(step, n_completed_steps=steps.step, train={"loss": loss + step}, session=session))


def test_a_summary_is_read_back_by_tensorboard(tmp_path: Path) -> None:
    writer = trellis.SummaryWriter(tmp_path)
    first = tiny.checkpoint(5, train={"loss": 0.5}, eval={"accuracy": 0.1, "loss": -2.0})
    assert writer(first) is first
    writer(tiny.checkpoint(10, train={"loss": 0.25}, eval={"accuracy": np.float32(0.2), "loss": -3.0}))
    accuracies = [(5, float(np.float32(0.1))), (10, float(np.float32(0.2)))]
    assert_points(
        tmp_path,
        {"train/loss": [(5, 0.5), (10, 0.25)], "eval/accuracy": accuracies, "eval/loss": [(5, -2.0), (10, -3.0)]},
    )


def test_training_and_evaluation_are_two_runs_of_one_chart(tmp_path: Path) -> None:
    trellis.SummaryWriter(tmp_path)(tiny.checkpoint(5, train={"loss": 0.5}, eval={"loss": 0.75}))
    runs = new_tensorboard(tmp_path).Reload().Runs()
    assert {run: kinds["tensors"] for run, kinds in runs.items()} == {"train": ["loss"], "eval": ["loss"]}


def test_a_group_of_any_name_is_a_run_in_the_directory(tmp_path: Path) -> None:
    writer = trellis.SummaryWriter(tmp_path / "runs", run_dirs={"eval": "."})
    summary = tiny.checkpoint(5, eval={"loss": 0.5})
    writer(summary.with_metrics(**{"../test/b": {"loss": 0.75}, "empty": {}}))
    runs = new_tensorboard(tmp_path).Reload().Runs()
    assert {run: kinds["tensors"] for run, kinds in runs.items()} == {"runs": ["loss"], "runs/test/b": ["loss"]}


def test_lost_evaluations_are_gone_before_the_next_one(tmp_path: Path) -> None:
    def write(steps: range, loss: float) -> None:
        writer, session = trellis.SummaryWriter(tmp_path), Session()
        for step in steps:
            evaluation = {} if step % 3 else {"eval": {"loss": loss}}
            writer(tiny.checkpoint(step, train={"loss": loss}, session=session, **evaluation))

    write(range(1, 8), loss=1)
    write(range(4, 6), loss=2)
    losses = [(step, 1.0 if step < 4 else 2.0) for step in range(1, 6)]
    assert_points(tmp_path, {"train/loss": losses, "eval/loss": [(3, 1.0)]})


def test_points_that_an_earlier_version_wrote_for_lost_work_are_gone_too(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 5), loss=100)
    (file,) = (tmp_path / "train").iterdir()
    file.rename(tmp_path / file.name)
    write_steps(tmp_path, range(3, 5), loss=200)
    assert points_in_tensorboard(new_tensorboard(tmp_path)) == {
        "./loss": [(1, 101), (2, 102)],
        "train/loss": [(3, 203), (4, 204)],
    }


def test_tensorboard_takes_the_metrics_for_scalars(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 2), loss=1)
    (file,) = (tmp_path / "train").iterdir()
    (value,) = [value for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    assert value.metadata.plugin_data.plugin_name == "scalars"


def test_a_process_writes_one_file_and_each_summary_is_there_at_once(tmp_path: Path) -> None:
    writer = trellis.SummaryWriter(tmp_path)
    for step in range(1, 5):
        writer(tiny.checkpoint(step, train={"loss": step}))
        assert points_in_files(tmp_path) == {"train/loss": [(past, past) for past in range(1, step + 1)]}
    assert len(list((tmp_path / "train").iterdir())) == 1


def test_a_checkpoint_that_was_not_evaluated_is_written_with_its_train_metrics(tmp_path: Path) -> None:
    params = {"kernel": np.array([3.0, 4.0])}
    fields = {"grads": None, "loss": 0.25, "n_completed_steps": 2, "elapsed_time": 1.0, "step": 2}
    trellis.SummaryWriter(tmp_path)(trellis.Checkpoint(params, {}, (), **fields))
    assert_points(
        tmp_path,
        {"train/seconds_per_step": [(2, 0.5)], "train/weights_l2norm": [(2, 5.0)], "train/loss": [(2, 0.25)]},
    )


def test_what_is_not_a_number_is_written_as_it_is(tmp_path: Path) -> None:
    trellis.SummaryWriter(tmp_path)(tiny.checkpoint(1, train={"loss": math.nan, "peak": math.inf, "huge": 1e300}))
    points = points_in_tensorboard(new_tensorboard(tmp_path))
    assert math.isnan(points["train/loss"][0][1])
    assert points["train/peak"] == points["train/huge"] == [(1, math.inf)]


def test_an_unused_writer_makes_the_directory_and_nothing_in_it(tmp_path: Path) -> None:
    trellis.SummaryWriter(tmp_path / "runs" / "a")
    assert list((tmp_path / "runs" / "a").iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"output_dir `.*/file/run`: Not a directory\. Choose another directory\."):
        trellis.SummaryWriter(tmp_path / "file" / "run")


def test_after_a_resume_no_point_appears_twice(tmp_path: Path) -> None:
    write_steps(tmp_path, range(10, 60, 10), loss=100)
    write_steps(tmp_path, range(40, 90, 10), loss=200)
    first = [(step, 100 + step) for step in (10, 20, 30)]
    assert_points(tmp_path, {"train/loss": first + [(step, 200 + step) for step in range(40, 90, 10)]})
    assert len(list((tmp_path / "train").iterdir())) == 2


def test_after_several_kills_in_a_row_no_point_appears_twice(tmp_path: Path) -> None:
    write_steps(tmp_path, range(10, 60, 10), loss=100)
    write_steps(tmp_path, range(40, 70, 10), loss=200)
    write_steps(tmp_path, range(60, 70, 10), loss=300)
    write_steps(tmp_path, range(20, 90, 10), loss=400)
    write_steps(tmp_path, range(20, 40, 10), loss=500)
    write_steps(tmp_path, range(40, 60, 10), loss=600)
    assert_points(tmp_path, {"train/loss": [(10, 110), (20, 520), (30, 530), (40, 640), (50, 650)]})


def test_a_resume_that_lost_nothing_leaves_the_files_before_it_alone(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4), loss=100)
    (file,) = (tmp_path / "train").iterdir()
    before = file.read_bytes(), file.stat().st_ino
    write_steps(tmp_path, range(4, 6), loss=200)
    assert (file.read_bytes(), file.stat().st_ino) == before
    assert_points(tmp_path, {"train/loss": [(1, 101), (2, 102), (3, 103), (4, 204), (5, 205)]})


def test_a_run_from_the_start_leaves_no_point_of_the_run_before_it(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4), loss=100)
    write_steps(tmp_path, range(1, 3), loss=200)
    assert_points(tmp_path, {"train/loss": [(1, 201), (2, 202)]})


def test_one_writer_may_serve_loops_one_after_another(tmp_path: Path) -> None:
    writer = trellis.SummaryWriter(tmp_path)
    first, second = Session(), Session()
    writer(tiny.checkpoint(2, n_completed_steps=2, train={"loss": 102}, session=first))
    writer(tiny.checkpoint(2, n_completed_steps=2, train={"loss": 202}, session=second))
    writer(tiny.checkpoint(3, train={"loss": 203}, session=second))
    assert_points(tmp_path, {"train/loss": [(2, 202), (3, 203)]})


def test_two_summaries_of_one_step_are_both_kept(tmp_path: Path) -> None:
    writer = trellis.SummaryWriter(tmp_path)
    writer(tiny.checkpoint(1, train={"loss": 1.0}))
    writer(tiny.checkpoint(1, eval={"loss": 2.0}))
    assert_points(tmp_path, {"train/loss": [(1, 1.0)], "eval/loss": [(1, 2.0)]})


def test_a_tensorboard_that_is_running_forgets_lost_work(tmp_path: Path) -> None:
    new, old = new_tensorboard(tmp_path), {"train": EventAccumulator(str(tmp_path / "train"))}
    for loss, steps, expected in (
        (100, range(1, 6), [101, 102, 103, 104, 105]),
        (200, range(3, 5), [101, 102, 203, 204]),
        (300, range(5, 6), [101, 102, 203, 204, 305]),
        (400, range(2, 4), [101, 402, 403]),
    ):
        write_steps(tmp_path, steps, loss)
        assert points_in_tensorboard(new.AddRunsFromDirectory(str(tmp_path))) == {
            "train/loss": list(enumerate(expected, start=1))
        }
        assert points_in_accumulators(old) == {"train/loss": list(enumerate(expected, start=1))}


@pytest.mark.parametrize("n_bytes_lost", [1, 5, 30])
def test_a_record_that_was_cut_short_does_no_harm(tmp_path: Path, n_bytes_lost: int) -> None:
    write_steps(tmp_path, range(1, 5), loss=100)
    (file,) = (tmp_path / "train").iterdir()
    file.write_bytes(file.read_bytes()[:-n_bytes_lost])
    write_steps(tmp_path, range(4, 6), loss=200)
    assert_points(tmp_path, {"train/loss": [(1, 101), (2, 102), (3, 103), (4, 204), (5, 205)]})
    write_steps(tmp_path, range(2, 3), loss=300)
    assert_points(tmp_path, {"train/loss": [(1, 101), (2, 302)]})


def test_a_garbled_file_does_no_harm(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 5), loss=100)
    (file,) = (tmp_path / "train").iterdir()
    content = bytearray(file.read_bytes())
    content[-20] ^= 0xFF
    file.write_bytes(content)
    write_steps(tmp_path, range(3, 5), loss=200)
    assert_points(tmp_path, {"train/loss": [(1, 101), (2, 102), (3, 203), (4, 204)]})


def test_nothing_is_half_written_when_a_process_dies_while_it_drops_lost_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    write_steps(tmp_path, range(1, 4), loss=100)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            write_steps(tmp_path, range(2, 3), loss=200)
    assert points_in_tensorboard(new_tensorboard(tmp_path)) == {"train/loss": [(1, 101), (2, 102), (3, 103)]}
    write_steps(tmp_path, range(2, 3), loss=300)
    assert_points(tmp_path, {"train/loss": [(1, 101), (2, 302)]})


def test_files_are_in_the_order_of_the_runs_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, now in enumerate((2e9, 1e9, 1e9, 3e9)):
        monkeypatch.setattr(summary_writer.time, "time", lambda now=now: now)
        write_steps(tmp_path, range(run + 1, run + 2), loss=100)
    assert_points(tmp_path, {"train/loss": [(1, 101), (2, 102), (3, 103), (4, 104)]})


@pytest.mark.parametrize("name", ["events.out.tfevents.1700000000.host", "events.out.tfevents.old.trellis"])
def test_event_files_of_others_are_left_alone(tmp_path: Path, name: str) -> None:
    other = tmp_path / "train" / name
    write_steps(tmp_path, range(1, 4), loss=100)
    next((tmp_path / "train").iterdir()).rename(other)
    before = other.read_bytes()
    write_steps(tmp_path, range(1, 2), loss=200)
    assert other.read_bytes() == before


def test_a_damaged_file_is_set_aside_before_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_steps(tmp_path, range(1, 5), loss=100)
    (file,) = (tmp_path / "train").iterdir()
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    trellis.SummaryWriter(tmp_path).attach(Session(stdout=True))
    line = capsys.readouterr().out
    assert f"`{file}` is damaged: " in line
    (aside,) = tmp_path.glob("train/*.damaged")
    assert f"It is set aside as `{aside.name}`; what comes before the damage is kept." in line
    assert aside.read_bytes() == content
    assert_points(tmp_path, {"train/loss": [(1, 101), (2, 102), (3, 103)]})


@pytest.mark.parametrize(("n_bytes", "end"), [(0, b""), (5, b""), (-3, b""), (0, bytes(50)), (None, bytes(5000))])
def test_a_file_that_a_kill_or_a_power_cut_has_left_without_its_end_is_no_damage(
    n_bytes: int | None, end: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path, range(1, 5), loss=100)
    (file,) = (tmp_path / "train").iterdir()
    file.write_bytes(file.read_bytes()[:n_bytes] + end)
    trellis.SummaryWriter(tmp_path).attach(Session(stdout=True))
    assert capsys.readouterr().out == ""
    assert list(file.parent.iterdir()) == [file]


def test_histograms_images_and_text_are_on_the_pages_of_tensorboard(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    media = {
        "kernel": trellis.Histogram([1.0, 2.0, math.nan]),
        "hardest": trellis.Image(pixels),
        "answers": trellis.Text("**3**"),
    }
    writer, session = trellis.SummaryWriter(tmp_path), Session()
    for step in (1, 2):
        writer(tiny.checkpoint(step, eval={"loss": 0.5}, session=session).with_media(eval=media))
    # A process that goes on from the first step tells of the second again.
    again = tiny.checkpoint(2, eval={"loss": 0.5}, session=Session()).with_media(eval=media)
    trellis.SummaryWriter(tmp_path)(again)
    accumulator = EventAccumulator(str(tmp_path / "eval"), size_guidance={"images": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    assert [event.step for event in accumulator.Histograms("kernel")] == [1, 2]
    histogram = accumulator.Histograms("kernel")[0].histogram_value
    assert (histogram.num, histogram.min, histogram.max, sum(histogram.bucket)) == (2, 1, 2, 2)
    assert [(event.step, event.value) for event in accumulator.Scalars("kernel/not_finite")] == [(1, 1), (2, 1)]
    images = accumulator.Images("hardest")
    assert [(image.step, image.width, image.height) for image in images] == [(1, 2, 2), (2, 2, 2)]
    assert images[0].encoded_image_string == trellis.Image(pixels).png()
    multiplexer = new_tensorboard(tmp_path).Reload()
    texts = [(event.step, event.tensor_proto.string_val[0]) for event in multiplexer.Tensors("eval", "answers")]
    assert texts == [(1, b"**3**"), (2, b"**3**")]
    plugins = {multiplexer.SummaryMetadata("eval", tag).plugin_data.plugin_name for tag in (*media, "loss")}
    assert plugins == {"histograms", "images", "text", "scalars"}


def test_a_directory_that_vanishes_is_told(tmp_path: Path) -> None:
    writer, session = trellis.SummaryWriter(tmp_path / "run"), Session()
    writer(tiny.checkpoint(5, train={"loss": 0.5}, session=session))
    (tmp_path / "run").rename(tmp_path / "away")
    with pytest.raises(FileWriteError, match=r"tfevents\S* could not be written: No such file .* Make room or bring"):
        writer(tiny.checkpoint(10, train={"loss": 0.25}, session=session))
    (tmp_path / "away").rename(tmp_path / "run")
    writer(tiny.checkpoint(10, train={"loss": 0.25}, session=session))
    assert_points(tmp_path / "run", {"train/loss": [(5, 0.5), (10, 0.25)]})
