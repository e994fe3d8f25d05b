"""Progress: lines in a log, a bar on a terminal, and nothing torn on either."""

import builtins
import contextlib
import math
import sys
from types import ModuleType
from typing import Any

import pytest

import trellis
from tests import tiny
from tests.screen import terminal
from trellis.errors import ArgumentError
from trellis.extensions import progress
from trellis.loops import Session
from trellis.runtime import describe_metric, print_line


class Clock:
    """A time that passes when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


def train(session: Session, clock: Clock, steps: range, n_steps: int | None, *, rate: float) -> None:
    """Completes steps at so many a second."""
    for step in steps:
        clock.now += steps.step / rate
        session.progress(step, n_steps)


def attached(**options: float) -> tuple[trellis.ProgressBar, Session]:
    bar, session = trellis.ProgressBar(**options), Session()
    bar.attach(session)
    return bar, session


def test_a_log_has_the_first_line_then_one_now_and_then_and_the_last(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    _, session = attached()
    train(session, clock, range(10, 10001, 10), 10000, rate=85.3)
    session.emit("finished", step=10000)
    assert capsys.readouterr().out.splitlines() == [
        "Step     10 of 10000 (0 %)",
        "Step   2570 of 10000 (25 %), 85.3 steps/s, 1 min 27 s left",
        "Step   5130 of 10000 (51 %), 85.3 steps/s, 57 s left",
        "Step   7690 of 10000 (76 %), 85.3 steps/s, 27 s left",
        "Step  10000 of 10000 (100 %), 85.3 steps/s, took 1 min 57 s",
    ]


def test_lines_may_be_more_frequent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, session = attached(line_interval=2)
    train(session, clock, range(1, 8), 100, rate=1)
    assert [line[:20] for line in capsys.readouterr().out.splitlines()] == [
        "Step      1 of 100 (",
        "Step      3 of 100 (",
        "Step      5 of 100 (",
        "Step      7 of 100 (",
    ]


def test_seconds_between_lines_are_not_negative() -> None:
    with pytest.raises(ArgumentError, match=r"line_interval is -1, but seconds between two lines are 0 or more"):
        trellis.ProgressBar(line_interval=-1)


def test_the_rate_of_a_resumed_run_is_its_own(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, session = attached()
    train(session, clock, range(5010, 5401, 10), 6000, rate=10)
    assert capsys.readouterr().out.splitlines()[-1] == "Step   5310 of 6000 (88 %), 10.0 steps/s, 1 min 9 s left"


def test_compilation_is_not_in_the_rate_and_the_work_between_steps_is(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    _, session = attached()
    session.progress(0, 1000)
    clock.now += 100  # compiles
    session.progress(10, 1000)
    clock.now += 10
    session.progress(60, 1000)
    clock.now += 40  # evaluates
    session.progress(110, 1000)
    assert capsys.readouterr().out.splitlines() == [
        "Step      0 of 1000 (0 %)",
        "Step     10 of 1000 (1 %)",
        "Step    110 of 1000 (11 %), 2.00 steps/s, 7 min 25 s left",
    ]


def test_the_loss_of_the_last_checkpoint_is_shown(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar, session = attached(line_interval=0)
    session.progress(1, 100)
    checkpoint = tiny.checkpoint(1, loss=0.123456, session=session)
    assert bar(checkpoint) is checkpoint
    train(session, clock, range(2, 4), 100, rate=0.1)
    bar(tiny.checkpoint(3, loss=math.nan, session=session))
    train(session, clock, range(4, 5), 100, rate=0.1)
    assert capsys.readouterr().out.splitlines() == [
        "Step      1 of 100 (1 %)",
        "Step      2 of 100 (2 %), loss 0.1235",
        "Step      3 of 100 (3 %), 10.0 s/step, 16 min 10 s left, loss 0.1235",
        "Step      4 of 100 (4 %), 10.0 s/step, 16 min 0 s left, loss nan",
    ]


def test_a_run_without_a_known_end_has_a_rate_only(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, session = attached(line_interval=0)
    train(session, clock, range(1, 4), None, rate=200)
    session.progress(11, 10)  # single steps may go past the end
    assert capsys.readouterr().out.splitlines() == [
        "Step      1",
        "Step      2",
        "Step      3, 200 steps/s",
        "Step      3, 200 steps/s, took 0.0 s",
        "Step     11",
    ]


def test_a_run_that_ends_early_has_a_last_line_too(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in ("finished", "preempted"):
        _, session = attached()
        train(session, clock, range(1, 20), 100, rate=1)
        session.emit(ending, step=19)
        assert capsys.readouterr().out.splitlines() == [
            "Step      1 of 100 (1 %)",
            "Step     19 of 100 (19 %), 1.00 steps/s, took 18 s",
        ]


def test_a_loop_that_is_run_twice_has_two_runs(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, session = attached()
    train(session, clock, range(1, 11), 10, rate=1)
    session.emit("finished", step=10)
    clock.now += 3600
    train(session, clock, range(11, 21), 20, rate=2)
    session.emit("finished", step=20)
    assert capsys.readouterr().out.splitlines() == [
        "Step      1 of 10 (10 %)",
        "Step     10 of 10 (100 %), 1.00 steps/s, took 9.0 s",
        "Step     11 of 20 (55 %)",
        "Step     20 of 20 (100 %), 2.00 steps/s, took 4.5 s",
    ]


def test_a_run_that_was_broken_off_does_not_count_for_the_next(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    bar, session = attached()
    train(session, clock, range(1, 6), 10, rate=1)
    clock.now += 3600
    bar.attach(other := Session())
    train(other, clock, range(1, 3), 10, rate=1)
    assert capsys.readouterr().out.splitlines() == [
        "Step      1 of 10 (10 %)",
        "Step      5 of 10 (50 %), 1.00 steps/s, took 4.0 s",
        "Step      1 of 10 (10 %)",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (9e4, "1 d 1 h"),
    ],
)
def test_a_duration_has_the_two_units_that_matter(
    clock: Clock, capsys: pytest.CaptureFixture[str], seconds: float, text: str
) -> None:
    _, session = attached()
    session.progress(1, 2)
    clock.now += seconds
    session.progress(2, 2)
    assert capsys.readouterr().out.splitlines()[-1] == f"Step      2 of 2 (100 %), took {text}"


def test_on_a_terminal_there_is_a_bar_which_stays_when_it_is_full(clock: Clock) -> None:
    with terminal() as screen:
        _, session = attached()
        train(session, clock, range(10, 1001, 10), 1000, rate=100)
        session.emit("finished", step=1000)
        print("Done.")
    assert screen.lines == [f"Step 1000 of 1000 |{'█' * 29}| 100 %, 100 steps/s, took 9.9 s", "Done."]


def test_lines_that_are_printed_meanwhile_are_not_torn(clock: Clock) -> None:
    with terminal() as screen:
        bar, session = attached()
        process = trellis.serial(bar, trellis.SummaryLogger())
        for step in range(10, 200, 10):
            train(session, clock, range(step, step + 1), 1000, rate=1)
            if step % 50 == 0:
                process(tiny.checkpoint(step, train={"loss": step / 10}, session=session))
                print_line(f"Saved step {step}.")
        session.emit("preempted", step=190)
    *lines, last = screen.lines
    assert lines == [
        line
        for step in (50, 100, 150)
        for line in (
            f"Step {step:4d} of 1000  loss {describe_metric(step / 10)}",
            f"Saved step {step}.",
        )
    ]
    assert last == f"Step 190 of 1000 |{'█' * 5}▉{' ' * 25}| 19 %, 10.0 steps/s, took 18 s"


def test_what_a_user_prints_is_on_lines_of_its_own(clock: Clock) -> None:
    with terminal() as screen:
        _, session = attached()
        for step in (10, 20, 30):
            train(session, clock, range(step, step + 1), 100, rate=1)
            print(f"mine at {step}")
        session.emit("finished", step=30)
    assert [line.split(" |")[0] for line in screen.lines] == [
        "Step 10 of 100",
        "mine at 10",
        "Step 20 of 100",
        "mine at 20",
        "Step 30 of 100",
        "mine at 30",
        "Step 30 of 100",
    ]


def test_an_error_is_printed_below_the_bar_which_stands_at_the_step_of_the_checkpoint(clock: Clock) -> None:
    with terminal() as screen:
        bar, session = attached()
        train(session, clock, range(1, 51), 100, rate=100)
        bar(tiny.checkpoint(50, loss=0.5, session=session))
        error = RuntimeError("The evaluation failed.")
        sys.excepthook(RuntimeError, error, None)
    bar_line, *lines = screen.lines
    assert bar_line.startswith("Step 50 of 100 |█")
    assert bar_line.endswith("| 50 %, 100 steps/s, 0.5 s left, loss 0.5")
    assert lines == ["RuntimeError: The evaluation failed."]


def test_a_terminal_without_a_size_gets_lines(clock: Clock) -> None:
    with terminal(n_columns=0) as screen:
        _, session = attached()
        train(session, clock, range(1, 3), 2, rate=1)
    assert screen.lines == ["Step      1 of 2 (50 %)", "Step      2 of 2 (100 %), took 1.0 s"]


def test_a_dumb_terminal_gets_lines(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal() as screen:
        _, session = attached()
        train(session, clock, range(1, 3), 2, rate=1)
    assert screen.output == b"Step      1 of 2 (50 %)\r\nStep      2 of 2 (100 %), took 1.0 s\r\n"


def test_a_run_without_a_known_end_has_no_bar_to_fill(clock: Clock) -> None:
    with terminal() as screen:
        bar, session = attached()
        train(session, clock, range(1, 5), None, rate=200)
        bar(tiny.checkpoint(4, loss=0.5, session=session))
        print("mine")
        session.emit("finished", step=4)
    assert screen.lines == ["Step 4, 200 steps/s, loss 0.5", "mine", "Step 4, 200 steps/s, took 0.0 s"]


def test_on_a_terminal_a_loop_that_is_run_twice_has_two_bars(clock: Clock) -> None:
    with terminal() as screen:
        _, session = attached()
        for n_steps in (100, 200):
            train(session, clock, range(n_steps - 90, n_steps + 1, 10), n_steps, rate=100)
            session.emit("finished", step=n_steps)
    assert [line.split(" |")[0] for line in screen.lines] == ["Step 100 of 100", "Step 200 of 200"]


def test_a_bar_is_drawn_a_few_times_a_second_however_many_steps_there_are(clock: Clock) -> None:
    with terminal() as screen:
        bar, session = attached()
        session.progress(0, 100_001)
        checkpoint = tiny.checkpoint(1, session=session)
        for step in range(1, 1001):
            train(session, clock, range(step, step + 1), 100_001, rate=1000)
            bar(checkpoint)
        session.emit("finished", step=1000)
    assert 10 <= screen.output.count(b" of 100001 |") <= 16


def test_a_run_goes_on_when_its_terminal_is_closed(clock: Clock) -> None:
    has_finished = False
    with contextlib.suppress(OSError), terminal() as screen:  # streams to a closed terminal cannot be closed in peace
        _, session = attached()
        train(session, clock, range(10, 50, 10), 100, rate=1)
        screen.hang_up()
        train(session, clock, range(50, 90, 10), 100, rate=1)
        session.emit("finished", step=90)
        has_finished = True
    assert has_finished


def test_a_real_loop_moves_the_bar_from_its_first_step_to_its_last() -> None:
    with terminal() as screen:
        bar = trellis.ProgressBar()
        loop = tiny.train_loop(n_steps=6, n_steps_per_checkpoint=3, stdout=True)
        loop.attach(bar)
        for checkpoint in loop:
            bar(checkpoint)
    initialized, weights, blank, bar_line = screen.lines
    assert initialized.startswith("Total model initialization time is ")
    assert weights.startswith("Total number of trainable weights: ")
    assert blank == ""
    assert bar_line.startswith("Step 6 of 6 |███")


class ZMQInteractiveShell:
    """The name by which a notebook's kernel is known."""


class Cell:
    """The output of a notebook's cell: what is displayed in it, and how often that was replaced."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.n_updates = 0

    def display(self, content: dict[str, str], **options: Any) -> "Cell":
        assert options == {"raw": True, "display_id": True}
        self.lines.append(content["text/plain"])
        return self

    def update(self, content: dict[str, str], **options: Any) -> None:
        assert options == {"raw": True}
        self.lines[-1] = content["text/plain"]
        self.n_updates += 1


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Has the test run as in a notebook."""
    cell = Cell()
    display = ModuleType("IPython.display")
    display.display = cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return cell


def test_in_a_notebook_there_is_one_line_that_is_replaced(
    clock: Clock, cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    _, session = attached()
    train(session, clock, range(10, 1001, 10), 1000, rate=100)
    session.emit("finished", step=1000)
    assert cell.lines == [f"Step 1000 of 1000 |{'█' * 49}| 100 %, 100 steps/s, took 9.9 s"]
    assert cell.n_updates == 99
    assert capsys.readouterr() == ("", "")


def test_reports_fit_into_a_notebook(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {f"metric_{index}": 0.5 for index in range(15)}
    trellis.SummaryLogger()(tiny.checkpoint(1, train=metrics, eval=metrics))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 100
    assert cell.lines == []
