"""Checkpoint files as another process writes them, and the events that tell of its end."""

import json
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from trellis.disk import write_whole
from trellis.experiments import new_files as new_files_module
from trellis.experiments.new_files import NewEvents, new_files


def append(directory: Path, *kinds: str, **values: Any) -> None:
    """Adds events, whose kind does not come first."""
    with (directory / "events.jsonl").open("a") as file:
        for kind in kinds:
            file.write(json.dumps({"time": 1.0, "step": 5, **values, "kind": kind}) + "\n")


def add_file(directory: Path, step: int) -> None:
    """Adds what is enough of a checkpoint file."""
    manifest = {"version": 1, "step": step}
    document = {"checksum": zlib.crc32(json.dumps(manifest, indent=1).encode()), "manifest": manifest}
    write_whole(directory / f"regular_{step}" / "manifest.json", json.dumps(document).encode())


def kinds(events: NewEvents) -> list[Any]:
    return [event.get("kind") for event in events.read()]


def steps_until_the_end(directory: Path) -> list[str]:
    """The files that are yielded until no other one is awaited."""
    return [path.name for path in new_files(directory, timeout=None, last_step=None)]


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    events = NewEvents(tmp_path / "events.jsonl")
    assert kinds(events) == []
    append(tmp_path, "initialized", *100 * ["summary"])
    assert len(kinds(events)) == 101
    assert kinds(events) == []
    append(tmp_path, "stopped")
    assert kinds(events) == ["stopped"]
    assert kinds(events) == []


def test_a_look_at_a_large_file_takes_no_time(tmp_path: Path) -> None:
    events = NewEvents(tmp_path / "events.jsonl")
    append(tmp_path, *200_000 * ["summary"])
    started = time.perf_counter()
    events.read()
    first = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(10):
        append(tmp_path, "summary")
        assert len(events.read()) == 1
    assert time.perf_counter() - started < first / 2


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    events = NewEvents(tmp_path / "events.jsonl")
    append(tmp_path, "initialized")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"kind": "stop')
        file.flush()
        assert kinds(events) == ["initialized"]
        assert kinds(events) == []
        file.write('ped"}\n{"kind"')
    assert kinds(events) == ["stopped"]


def test_a_file_that_was_replaced_or_cut_is_read_anew(tmp_path: Path) -> None:
    events = NewEvents(tmp_path / "events.jsonl")
    append(tmp_path, "initialized", "summary", "summary")
    assert len(kinds(events)) == 3
    assert events.is_new
    assert kinds(events) == []
    assert not events.is_new
    write_whole(tmp_path / "events.jsonl", b'{"kind": "initialized"}\n' * 50)
    assert kinds(events) == 50 * ["initialized"]
    assert events.is_new
    (tmp_path / "events.jsonl").write_text('{"kind": "stopped"}\n')
    assert kinds(events) == ["stopped"]
    (tmp_path / "events.jsonl").unlink()
    assert kinds(events) == []
    append(tmp_path, "finished")
    assert kinds(events) == ["finished"]


def test_lines_of_others_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'\n\xff\xfe\n\n[1]\n3\n"kind"\n{"no": "kind"}\n{"kind": "stopped"}\n')
    assert kinds(NewEvents(tmp_path / "events.jsonl")) == [None, "stopped"]


def test_a_run_that_has_stopped_early_gets_no_more_files(tmp_path: Path) -> None:
    for step in (5, 10):
        add_file(tmp_path, step)
    append(tmp_path, "initialized", "summary", "stopped_early", text='a "kind": "finished" of its own')
    append(tmp_path, "summary", *2000 * ["superseded"], "stopped")
    assert steps_until_the_end(tmp_path) == ["regular_5", "regular_10"]


@pytest.mark.parametrize(
    "events",
    [
        ["initialized", "stopped"],
        ["initialized", "stopped_early", "summary"],
        ["initialized", "stopped_early", "stopped", "initialized", "summary"],
        ["initialized", "stopped_early", "stopped", "initialized", "stopped"],
    ],
)
def test_a_run_that_goes_on_or_was_interrupted_may_still_write(
    tmp_path: Path, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    add_file(tmp_path, 5)
    append(tmp_path, *events)
    assert [path.name for path in new_files(tmp_path, timeout=0, last_step=None)] == ["regular_5"]
    assert "No new checkpoint file" in capsys.readouterr().out


def test_what_only_has_the_name_of_a_checkpoint_file_is_told_of_and_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (5, 15):
        add_file(tmp_path, step)
    (tmp_path / "regular_10").mkdir()
    (tmp_path / "regular_99").write_text("mine")
    assert [path.name for path in new_files(tmp_path, timeout=0, last_step=None)] == ["regular_5", "regular_15"]
    out = capsys.readouterr().out
    assert out.count(f"Skipping the damaged checkpoint file `{tmp_path}/regular_10`: manifest.json is missing.") == 1
    assert out.count(f"`{tmp_path}/regular_99`: it is no directory, as checkpoint files are.") == 1


@pytest.mark.parametrize("events", [[], ["initialized"], ["initialized", "stopped"]])
def test_a_training_is_awaited_up_to_its_last_step_beyond_the_time_out(
    tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def look_again(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) % 3 == 0:
            add_file(tmp_path, 5 * len(looks) // 3)

    monkeypatch.setattr(new_files_module.time, "sleep", look_again)
    append(tmp_path, *events)
    assert [path.name for path in new_files(tmp_path, timeout=0, last_step=10)] == ["regular_5", "regular_10"]
    line = f"No new checkpoint file in `{tmp_path}` for 0 seconds: still waiting for step 10, that of trainer"
    assert capsys.readouterr().out.count(line) == 2


def test_a_training_that_has_finished_before_is_not_awaited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_file(tmp_path, 5)
    append(tmp_path, "initialized", "finished")
    assert [path.name for path in new_files(tmp_path, timeout=0, last_step=10)] == ["regular_5"]
    assert "for 0 seconds, and its training has finished: the evaluation ends." in capsys.readouterr().out
