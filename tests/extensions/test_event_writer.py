"""Everything that happens, as lines of JSON, each of them once."""

import json
import math
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError, FileWriteError
from trellis.loops import Session


def read_events(directory: Path) -> list[dict[str, Any]]:
    """The lines, each of which is strict JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    lines = (directory / "events.jsonl").read_text().split("\n")
    assert lines.pop() == ""
    return [json.loads(line, parse_constant=refuse) for line in lines]


def losses(directory: Path) -> list[tuple[int, float]]:
    """Step and loss of each summary."""
    return [
        (line["step"], line["metrics"]["train"]["loss"]) for line in read_events(directory) if line["kind"] == "summary"
    ]


def write_steps(directory: Path, steps: range, loss: float) -> None:
    """A process that makes a summary at each of some steps, and dies."""
    writer, session = trellis.EventWriter(directory), Session()
    session.emit("initialized", step=steps.start - steps.step, seconds=loss)
    writer.attach(session)
    for step in steps:
        writer(tiny.checkpoint(step, n_completed_steps=steps.step, train={"loss": loss + step}, session=session))


def test_events_and_summaries_are_written_in_the_order_in_which_they_happen(tmp_path: Path) -> None:
    writer, session = trellis.EventWriter(tmp_path), Session()
    session.emit("initialized", step=0, text="Two lines\nof “text”.", seconds=1.5)
    writer.attach(session)
    summary = tiny.checkpoint(5, n_completed_steps=5, train={"loss": 0.5}, eval={"accuracy": 1.0}, session=session)
    assert writer(summary) is summary
    session.emit("finished", step=5)
    events = read_events(tmp_path)
    assert all(event.pop("time") > 1.7e9 for event in events)
    assert all(isinstance(event.pop("crc32"), int) for event in events)
    assert events == [
        {"kind": "initialized", "step": 0, "text": "Two lines\nof “text”.", "seconds": 1.5},
        {
            "kind": "summary",
            "step": 5,
            "n_completed_steps": 5,
            "elapsed_time": 0.1,
            "metrics": {"train": {"loss": 0.5}, "eval": {"accuracy": 1.0}},
        },
        {"kind": "finished", "step": 5},
    ]


def test_a_writer_that_is_not_attached_writes_what_happened_before_its_first_checkpoint(tmp_path: Path) -> None:
    session = Session()
    session.emit("initialized", step=0)
    process = trellis.serial(trellis.EventWriter(tmp_path))
    process(tiny.checkpoint(1, session=session))
    process(tiny.checkpoint(2, session=session))
    session.emit("finished", step=2)
    assert [(event["kind"], event["step"]) for event in read_events(tmp_path)] == [
        ("initialized", 0),
        ("summary", 1),
        ("summary", 2),
        ("finished", 2),
    ]


def test_what_is_not_a_number_is_written_as_a_string(tmp_path: Path) -> None:
    writer, session = trellis.EventWriter(tmp_path), Session()
    writer.attach(session)
    session.emit("measured", step=1, values=[1.0, math.nan, {"deep": -math.inf}])
    writer(tiny.checkpoint(2, train={"loss": math.nan, "peak": math.inf}))
    measured, summary = read_events(tmp_path)
    assert measured["values"] == [1.0, "nan", {"deep": "-inf"}]
    assert summary["metrics"] == {"train": {"loss": "nan", "peak": "inf"}}
    assert math.isnan(float(summary["metrics"]["train"]["loss"]))


def test_a_directory_that_vanishes_is_told(tmp_path: Path) -> None:
    writer, session = trellis.EventWriter(tmp_path / "run"), Session()
    writer.attach(session)
    session.emit("first", step=1)
    (tmp_path / "run").rename(tmp_path / "away")
    with pytest.raises(
        FileWriteError, match=r"run/events.jsonl` could not be written: No such file .* Make room or bring"
    ):
        session.emit("second", step=2)
    (tmp_path / "away").rename(tmp_path / "run")
    session.emit("third", step=3)
    assert [event["kind"] for event in read_events(tmp_path / "run")] == ["first", "third"]


def test_what_a_full_disk_has_cut_short_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, session = trellis.EventWriter(tmp_path), Session()
    writer.attach(session)
    session.emit("first", step=1)
    size = (tmp_path / "events.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system writes what there is room for, and then fails.
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        with pytest.raises(FileWriteError, match="could not be written: File too large"):
            session.emit("second", step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    session.emit("third", step=3)
    assert [event["kind"] for event in read_events(tmp_path)] == ["first", "third"]


def test_an_unused_writer_makes_the_directory_and_nothing_in_it(tmp_path: Path) -> None:
    trellis.EventWriter(tmp_path / "runs" / "a")
    assert list((tmp_path / "runs" / "a").iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"output_dir `.*/file/run`: Not a directory\. Choose another directory\."):
        trellis.EventWriter(tmp_path / "file" / "run")


def test_after_a_resume_no_summary_appears_twice_and_no_event_is_lost(tmp_path: Path) -> None:
    write_steps(tmp_path, range(10, 60, 10), loss=100)
    write_steps(tmp_path, range(40, 70, 10), loss=200)
    write_steps(tmp_path, range(60, 70, 10), loss=300)
    write_steps(tmp_path, range(20, 90, 10), loss=400)
    write_steps(tmp_path, range(90, 110, 10), loss=500)
    assert losses(tmp_path) == [
        (10, 110),
        *[(step, 400 + step) for step in range(20, 90, 10)],
        *[(step, 500 + step) for step in range(90, 110, 10)],
    ]
    starts = [(event["step"], event["seconds"]) for event in read_events(tmp_path) if event["kind"] == "initialized"]
    assert starts == [(0, 100), (30, 200), (50, 300), (10, 400), (80, 500)]
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_lost_summaries_stay_until_the_resumed_run_has_one_of_its_own(tmp_path: Path) -> None:
    write_steps(tmp_path, range(10, 40, 10), loss=100)
    session = Session()
    session.emit("initialized", step=10)
    trellis.EventWriter(tmp_path).attach(session)
    assert losses(tmp_path) == [(10, 110), (20, 120), (30, 130)]


def test_a_run_from_the_start_leaves_no_summary_of_the_run_before_it(tmp_path: Path) -> None:
    write_steps(tmp_path, range(10, 40, 10), loss=100)
    write_steps(tmp_path, range(10, 20, 10), loss=200)
    assert losses(tmp_path) == [(10, 210)]


def test_one_writer_may_serve_loops_one_after_another(tmp_path: Path) -> None:
    writer = trellis.EventWriter(tmp_path)
    first, second = Session(), Session()
    writer(tiny.checkpoint(2, n_completed_steps=2, train={"loss": 102}, session=first))
    writer(tiny.checkpoint(2, n_completed_steps=2, train={"loss": 202}, session=second))
    writer(tiny.checkpoint(3, train={"loss": 203}, session=second))
    assert losses(tmp_path) == [(2, 202), (3, 203)]


def test_two_summaries_of_one_step_are_both_kept(tmp_path: Path) -> None:
    writer = trellis.EventWriter(tmp_path)
    writer(tiny.checkpoint(1, train={"loss": 1.0}))
    writer(tiny.checkpoint(1, train={"loss": 2.0}))
    assert losses(tmp_path) == [(1, 1.0), (1, 2.0)]


@pytest.mark.parametrize("n_bytes_lost", [1, 2, 40, 100])
def test_a_last_line_that_was_cut_short_is_repaired(tmp_path: Path, n_bytes_lost: int) -> None:
    write_steps(tmp_path, range(1, 4), loss=100)
    file = tmp_path / "events.jsonl"
    file.write_bytes(file.read_bytes()[:-n_bytes_lost])
    session = Session()
    session.emit("initialized", step=3)
    trellis.EventWriter(tmp_path).attach(session)
    # Only the end of the line is missing: all that it says is there.
    expected = [(1, 101), (2, 102), (3, 103)] if n_bytes_lost == 1 else [(1, 101), (2, 102)]
    assert losses(tmp_path) == expected
    write_steps(tmp_path, range(3, 5), loss=200)
    assert losses(tmp_path) == [(1, 101), (2, 102), (3, 203), (4, 204)]


@pytest.mark.parametrize("damage", ["garbage", "not UTF-8", "a flipped bit", "cut in its midst"])
def test_a_damaged_file_is_set_aside_before_a_run_goes_on_and_its_whole_lines_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    write_steps(tmp_path, range(1, 4), loss=100)
    file = tmp_path / "events.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    flipped = lines[2].replace(b'"loss": 102', b'"loss": 302')
    lines[2] = {
        "garbage": b"no JSON at all\n",
        "not UTF-8": b'{"kind": "summary", "text": "\xff"}\n',
        "a flipped bit": flipped,
        "cut in its midst": lines[2][:20] + lines[2][30:],
    }[damage]
    file.write_bytes(b"".join(lines))
    session = Session(stdout=True)
    session.emit("initialized", step=3)
    trellis.EventWriter(tmp_path).attach(session)
    assert "events.jsonl` is damaged: 1 of its 4 lines hold no event, the first is line 3." in capsys.readouterr().out
    assert (tmp_path / "events.jsonl.damaged").read_bytes() == b"".join(lines)
    assert losses(tmp_path) == [(1, 101), (3, 103)]
    assert [event["kind"] for event in read_events(tmp_path)][-2:] == ["initialized", "damaged"]


@pytest.mark.parametrize("damage", ["a directory", "a link to nothing"])
def test_what_is_no_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "events.jsonl"
    if damage == "a directory":
        file.mkdir()
    else:
        file.symlink_to(tmp_path / "gone" / "file")
    write_steps(tmp_path, range(1, 2), loss=100)
    assert losses(tmp_path) == [(1, 101)]
    assert (tmp_path / "events.jsonl.damaged").is_symlink() == (damage == "a link to nothing")


def test_lines_of_an_older_version_have_no_checksum_and_are_kept(tmp_path: Path) -> None:
    older = b'{"kind": "summary", "step": 1, "time": 1.0, "metrics": {"train": {"loss": 7.0}}}\n'
    (tmp_path / "events.jsonl").write_bytes(older)
    write_steps(tmp_path, range(2, 3), loss=100)
    assert losses(tmp_path) == [(1, 7), (2, 102)]
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_summaries_are_known_whatever_the_order_of_their_keys(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    lines = [
        {"metrics": {"train": {"loss": 100.0 + step}}, "time": 1.0, "step": step, "kind": "summary"}
        for step in (1, 2, 3)
    ]
    text = '{"kind": "diverged", "step": 9, "text": "not a \\"kind\\": \\"summary\\""}\n'
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + text)
    write_steps(tmp_path, range(2, 3), loss=200)
    assert losses(tmp_path) == [(1, 101), (2, 202)]
    assert text in file.read_text()


@pytest.mark.parametrize("step", [None, "3", 3.5, {}])
def test_a_summary_of_others_without_a_step_is_kept(tmp_path: Path, step: Any) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(json.dumps({"kind": "summary", "step": step}) + "\n")
    before = file.read_bytes()
    write_steps(tmp_path, range(1, 2), loss=100)
    assert file.read_bytes().startswith(before)


def test_nothing_is_half_written_when_a_process_dies_while_it_drops_lost_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_steps(tmp_path, range(1, 4), loss=100)
    before = (tmp_path / "events.jsonl").read_bytes()

    def die(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            trellis.EventWriter(tmp_path)(tiny.checkpoint(2, train={"loss": 202}))
    assert (tmp_path / "events.jsonl").read_bytes() == before
    trellis.EventWriter(tmp_path)(tiny.checkpoint(2, train={"loss": 202}))
    assert losses(tmp_path) == [(1, 101), (2, 202)]
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_events_of_several_threads_are_whole_lines(tmp_path: Path) -> None:
    writer, session = trellis.EventWriter(tmp_path), Session()
    writer.attach(session)
    with ThreadPoolExecutor(4) as pool:
        for step in range(200):
            pool.submit(session.emit, "saved", step=step, path="x" * 500)
            if step % 10 == 0:
                writer(tiny.checkpoint(step, n_completed_steps=10, train={"loss": 1.0}, session=session))
    events = read_events(tmp_path)
    assert sorted(event["step"] for event in events if event["kind"] == "saved") == list(range(200))
    assert [step for step, _ in losses(tmp_path)] == list(range(0, 200, 10))


def test_fingerprints_of_lost_work_are_dropped_as_its_summaries_are(tmp_path: Path) -> None:
    lines = [{"kind": kind, "step": step, "time": 0.0} for step in (5, 10) for kind in ("summary", "fingerprint")]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    summary = trellis.Checkpoint({}, {}, {}, None, loss=1.0, n_completed_steps=5, elapsed_time=1.0, step=10)
    trellis.EventWriter(tmp_path)(summary)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["kind"], event["step"]) for event in events] == [("summary", 5), ("fingerprint", 5), ("summary", 10)]
