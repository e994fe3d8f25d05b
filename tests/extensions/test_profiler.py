"""A trace of some steps, and the table of what took the longest."""

import itertools
from pathlib import Path

import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError
from trellis.extensions import profiler


def run(profiler: trellis.Profiler, *, first: int = 0, last: int = 60) -> list[int]:
    """Trains up to a step, the profiler attached when the first steps are done; returns where calls were cut."""
    loop = tiny.train_loop(n_steps_per_checkpoint=30)
    if first:
        list(loop.run(first))
    loop.attach(profiler)
    cuts: list[int] = []
    loop.session.subscribe_to_progress(lambda step, n_steps: cuts.append(step))
    list(loop.run(last))
    return sorted(set(cuts))


def test_a_trace_is_written_and_the_ten_largest_operations_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = run(trellis.Profiler(tmp_path, start=13, stop=35))
    assert cuts == [0, 10, 20, 30, 40, 50, 60], "the calls are those of a run without a trace"
    first, heading, *rows = capsys.readouterr().out.splitlines()
    assert first == f"Traced the steps after 20 up to 40 (asked for: 13 to 35): {tmp_path / 'profile'}"
    assert heading.split("  ")[0] == "ms a step"
    assert 1 <= len([row for row in rows if " % " in row and not row.startswith("and ")]) <= 10
    (trace,) = (tmp_path / "profile").rglob("*.xplane.pb")
    operations = profiler.largest_operations(trace)
    assert all(one.seconds >= other.seconds for one, other in itertools.pairwise(operations))
    assert any("dot" in operation.name or "fusion" in operation.name for operation in operations)


def test_a_trace_that_is_under_way_ends_with_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trellis.Profiler(tmp_path, start=40, stop=500))
    assert "Traced the steps after 40 up to 60 (asked for: 40 to 500)" in capsys.readouterr().out


def test_a_run_that_goes_on_in_the_midst_traces_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(trellis.Profiler(tmp_path, start=10, stop=50), first=30)
    assert "Traced the steps after 30 up to 50 (asked for: 10 to 50)" in capsys.readouterr().out


def test_steps_that_are_past_are_not_traced_and_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trellis.Profiler(tmp_path, start=10, stop=20), first=30)
    assert capsys.readouterr().out == (
        "Nothing is traced: the loop is at step 30, past the steps 10 to 20. A run that goes on has no earlier steps.\n"
    )
    assert not (tmp_path / "profile").exists()


def test_steps_that_never_come_are_not_traced_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(trellis.Profiler(tmp_path, start=100, stop=200))
    assert "Nothing is traced so far: the loop ended at step 60, before step 100." in capsys.readouterr().out


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (9, 3)])
def test_a_range_without_steps_is_refused(tmp_path: Path, start: int, stop: int) -> None:
    with pytest.raises(
        ArgumentError, match=rf"Profiler\(start={start}, stop={stop}\) has no step in it. Give the last"
    ):
        trellis.Profiler(tmp_path, start=start, stop=stop)


def test_an_operation_is_counted_without_those_inside_of_it() -> None:
    operations = [
        (0, 100e9, "while"),
        (10e9, 30e9, "dot"),
        (30e9, 50e9, "dot"),
        (35e9, 40e9, "add"),
        (200e9, 201e9, "dot"),
    ]
    assert sorted(profiler._own_times(operations)) == [
        ("add", 5.0),
        ("dot", 1.0),
        ("dot", 15.0),
        ("dot", 20.0),
        ("while", 60.0),
    ]
