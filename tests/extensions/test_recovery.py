"""A loss that blows up is told; data that a run leaves out is known again, whatever happens to the file."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError, CheckpointFileError
from trellis.extensions import SkippedData
from trellis.loops import Event, Session

WINDOWS = [(4, 2), (8, 3)]


def write_run(directory: Path, *, notes: bool) -> Path:
    """A run that has left out data twice, and notes it in its checkpoint file or not; returns the file that says so."""
    skipped = SkippedData(directory)
    for step, n_batches in WINDOWS:
        skipped.add(step=step, n_batches=n_batches)
    named = {skipped.note: skipped.windows} if notes else {}
    trellis.CheckpointFileWriter(directory, notes=named)(tiny.checkpoint(step=12))
    return directory / "skipped_data.json"


@pytest.mark.parametrize("damage", [None, b"", b"[", b"\xff", b"[3]", b'[{"step": 4, "n_batches": "2"}]', b"[]"])
def test_a_damaged_file_comes_back_from_the_newest_checkpoint_file(
    tmp_path: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_run(tmp_path, notes=True)
    content = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    skipped = SkippedData(tmp_path)
    assert skipped.windows == WINDOWS
    assert [path.name for path in tmp_path.glob("*.damaged")] == [], "whoever reads changes nothing"
    skipped.mend()
    assert f"`{file}`" in capsys.readouterr().out
    assert file.read_bytes() == content
    assert [path.read_bytes() for path in tmp_path.glob("*.damaged")] == ([] if damage is None else [damage])


def test_a_run_whose_checkpoint_files_note_nothing_cannot_go_on_without_the_file(tmp_path: Path) -> None:
    file = write_run(tmp_path, notes=False)
    assert SkippedData(tmp_path).windows == WINDOWS
    file.write_text("garbled")
    with pytest.raises(CheckpointFileError, match=r"skipped_data.json`, which says .* Bring it back, or remove it"):
        _ = SkippedData(tmp_path).windows


def test_what_was_left_out_since_the_newest_checkpoint_file_counts(tmp_path: Path) -> None:
    file = write_run(tmp_path, notes=True)
    SkippedData(tmp_path).add(step=12, n_batches=1)
    assert SkippedData(tmp_path).windows == [*WINDOWS, (12, 1)]
    assert json.loads(file.read_text())[-1] == {"step": 12, "n_batches": 1}


def blow_ups(losses: Sequence[float], **options: float) -> list[Event]:
    """What is told of checkpoints with these losses, at the steps 0, 1, …"""
    check, session = trellis.BlowUpCheck(**options), Session()
    events: list[Event] = []
    session.subscribe(events.append)
    example = tiny.checkpoint(session=session)
    for step, loss in enumerate(losses):
        checkpoint = trellis.Checkpoint.of(tiny_state(example), step=step, loss=loss, session=session)
        assert check(checkpoint) is checkpoint
    return events


def tiny_state(checkpoint: trellis.Checkpoint) -> trellis.TrainState:
    return trellis.TrainState(np.int32(0), checkpoint.model_params, {}, ())


DECAY = [2.3 * math.exp(-step / 20) + 0.1 for step in range(100)]


def test_a_loss_that_blows_up_is_told_once_with_its_step_and_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    (event,) = blow_ups([*DECAY, *(50.0 * 2**step for step in range(40)), math.nan, math.inf])
    assert (event.kind, event.step) == ("blown_up", 102)
    assert event.values["loss"] == 200.0
    assert event.text == f"Step    102: the loss has blown up: it is 200, and was {event.values['usual_loss']:.4g}."
    trellis.BlowUpCheck()(tiny.checkpoint(5))
    assert capsys.readouterr().out == ""


def test_a_loss_that_grows_by_and_by_is_told_too() -> None:
    (event,) = blow_ups([*DECAY, *(0.1 * 1.4**step for step in range(40))])
    assert event.step < 120


def test_a_second_blow_up_is_told_after_the_loss_was_good() -> None:
    events = blow_ups([*DECAY, *[60.0] * 4, *[0.1] * 10, *[70.0] * 4])
    assert [event.step for event in events] == [102, 116]


def test_a_blow_up_of_a_negative_loss_is_told() -> None:
    assert [event.step for event in blow_ups([*(loss - 5 for loss in DECAY), *[1000.0] * 5])] == [102]


NOISE = np.random.default_rng(0)
STEPS = np.arange(1000)


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(2.3 * np.exp(-STEPS / 100) + np.abs(NOISE.normal(0, 0.05, 1000)), id="noisy"),
        pytest.param(NOISE.normal(0, 1, 1000), id="around zero"),
        pytest.param(NOISE.standard_cauchy(1000), id="spikes of any size"),
        pytest.param(np.where(STEPS % 50 < 2, 1000.0, 1.0) + NOISE.normal(0, 0.1, 1000), id="pairs of spikes"),
        pytest.param(2.3 * (0.005 + np.cos((STEPS % 200) / 400 * np.pi)), id="restarts"),
        pytest.param(np.exp(-STEPS / 50) + 1e-6 * np.exp(NOISE.normal(0, 2, 1000)), id="near zero"),
        pytest.param(3 - STEPS / 200 + NOISE.normal(0, 0.3, 1000), id="from positive to negative"),
        pytest.param([3.0] * 50 + [7.5] * 50, id="less than tenfold"),
        pytest.param([math.nan, math.inf] * 10, id="not finite"),
    ],
)
def test_ordinary_losses_are_no_blow_up(losses: Sequence[float]) -> None:
    assert blow_ups(losses) == []


def test_what_counts_as_a_blow_up_can_be_set() -> None:
    assert [event.step for event in blow_ups([3.0] * 50 + [7.5] * 50, factor=2)] == [52]
    with pytest.raises(ArgumentError, match=r"factor is 1, but a loss that has blown up is a multiple of the usual"):
        trellis.BlowUpCheck(factor=1)


def test_the_losses_of_another_loop_do_not_count() -> None:
    check = trellis.BlowUpCheck()
    for loss in (0.1, 100.0):
        session = Session()
        session.subscribe(lambda event: pytest.fail(event.text))
        for step in range(10):
            check(tiny.checkpoint(step, loss=loss, session=session))
