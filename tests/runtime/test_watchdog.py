"""Who is lost, and who only takes long."""

import pytest

from trellis.errors import ArgumentError, ExitCode
from trellis.runtime import watchdog
from trellis.runtime.watchdog import Judge, Limits

LIMITS = Limits(silence=10, progress=100)


def judge_after(*seconds: float, phases: tuple[str, str], moving: tuple[bool, bool] = (False, False)) -> str:
    """What is judged of two processes that are heard every second, the second one until it falls silent.

    Args:
        seconds: How long the second one is heard, and how long the watch goes on.
    """
    judge = Judge(LIMITS, now=0)
    heard, end = seconds
    for now in range(int(end) + 1):
        judge.answer(now)
        for index, phase in enumerate(phases):
            if index == 0 or now <= heard:
                judge.hear(index, now, now if moving[index] else 0, 7 + index, phase, now=now)
        verdict = judge.verdict(now, longest_pause=3)
        if verdict:
            return f"{now}: {verdict}"
    return ""


def test_one_that_falls_silent_is_named_whatever_it_did() -> None:
    for phase in ("step", "compiling"):
        verdict = judge_after(5, 100, phases=("step", phase), moving=(True, True))
        assert verdict.startswith("16: Process 1 is stopped or gone: nothing was heard of it for 10 seconds")
        assert "It was at step 8" in verdict


def test_one_that_prepares_data_may_be_silent() -> None:
    assert judge_after(5, 100, phases=("step", "start"), moving=(True, True)) == ""


def test_one_that_stays_where_it_is_is_named_unless_it_may_take_long() -> None:
    verdict = judge_after(300, 300, phases=("waiting", "input"), moving=(True, False))
    assert verdict.startswith("101: Process 1 has made no progress for 100 seconds (TRELLIS_PROGRESS_TIMEOUT): ")
    assert "process 0 is at step 7, waiting for others; process 1 is at step 8, waiting for input." in verdict
    for phase in ("compiling", "start"):
        assert judge_after(300, 300, phases=("waiting", phase)) == ""
        assert judge_after(300, 300, phases=("step", phase)) == "", "it waits for the other"
    assert judge_after(300, 300, phases=("waiting", "waiting")) == ""


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ((40, "step"), (38, "step"), "Process 1 has made no progress"),
        ((40, "step"), (40, "input"), "Process 1 has made no progress"),
        ((40, "saving"), (40, "step"), "Process 0 has made no progress"),
        ((40, "saving"), (40, "input"), "Process 1 has made no progress"),
        ((40, "step"), (42, "input"), "Process 1 has made no progress"),
        ((40, "step"), (40, "step"), "None of the processes has made progress"),
    ],
)
def test_of_two_that_do_not_move_the_one_that_the_other_waits_for_is_named(
    first: tuple[int, str], second: tuple[int, str], named: str
) -> None:
    judge = Judge(LIMITS, now=0)
    verdict = ""
    for now in range(200):
        judge.answer(now)
        judge.hear(0, now, 0, *first, now=now)
        judge.hear(1, now, 0, *second, now=now)
        verdict = verdict or judge.verdict(now, longest_pause=3)
    assert verdict.startswith(f"{named} for 100 seconds (TRELLIS_PROGRESS_TIMEOUT): process 0 is at step 40")


def test_a_first_process_that_does_not_answer_is_named() -> None:
    judge = Judge(LIMITS, now=0)
    judge.hear(0, 0, 0, 3, "saving", now=0)
    verdicts = [judge.verdict(now, longest_pause=3) for now in range(12)]
    assert verdicts[:11] == [""] * 11
    assert verdicts[11].startswith("Process 0 is stopped or gone: it has not answered for 10 seconds")
    assert "It was at step 3, saving." in verdicts[11]


def test_one_that_was_stopped_itself_blames_nobody() -> None:
    judge = Judge(LIMITS, now=0)
    judge.hear(1, 0, 0, 3, "step", now=0)
    assert judge.verdict(0, longest_pause=3) == ""
    assert judge.verdict(500, longest_pause=3) == ""
    assert judge.verdict(501, longest_pause=3) == ""


def test_one_that_is_at_its_end_may_be_silent() -> None:
    assert judge_after(5, 100, phases=("step", "end"), moving=(True, True)) == ""


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_limits_are_seconds(text: str) -> None:
    assert Limits.of({}) == Limits(60, 1800)
    assert Limits.of({"TRELLIS_WORKER_TIMEOUT": "5"}) == Limits(5, 1800)
    with pytest.raises(ArgumentError, match=f"TRELLIS_PROGRESS_TIMEOUT is '{text}'. Give a number of seconds above 0"):
        Limits.of({"TRELLIS_PROGRESS_TIMEOUT": text})


@pytest.mark.parametrize("is_first", [True, False])
def test_nobody_leaves_before_all_have_printed_their_stacks_and_the_first_leaves_last(
    is_first: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[object] = []
    monkeypatch.setattr(watchdog, "is_first_process", lambda: is_first)
    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback", lambda **options: done.append("stacks"))
    monkeypatch.setattr(watchdog.time, "sleep", done.append)
    monkeypatch.setattr(watchdog.os, "_exit", done.append)
    watch = watchdog._Watch(LIMITS)
    watch._end("Process 1 is gone.", is_told=True)
    # One beat until another hears of it, and one until it looks at what it has heard.
    longest = 2 * watch._period
    assert done[0::2] == ["stacks", ExitCode.LOST]
    assert isinstance(done[1], float)
    assert done[1] > (2 if is_first else 1) * longest
    assert "Process 1 is gone. The run ends with code 75; the same command goes on" in capsys.readouterr().err
