"""Data that a run leaves out: known again, whatever happens to the file that says so."""

import json
from pathlib import Path

import pytest

import trellis
from tests import tiny
from trellis.errors import CheckpointFileError
from trellis.extensions import SkippedData

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
