"""Who is lost, and who only takes long."""

import pytest

from trellis.errors import ArgumentError
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


def test_one_that_stays_where_it_is_is_named_unless_it_may_take_long() -> None:
    verdict = judge_after(300, 300, phases=("waiting", "input"), moving=(True, False))
    assert verdict.startswith(
        "101: Process 1 has made no progress for 100 seconds (TRELLIS_PROGRESS_TIMEOUT): it is at"
    )
    assert "at step 8, waiting for input. Process 0 is at step 7, waiting for others." in verdict
    for phase in ("compiling", "start", "waiting"):
        assert judge_after(300, 300, phases=("waiting", phase)) == ""


def test_of_two_that_do_not_move_the_one_that_has_stopped_first_is_named() -> None:
    judge = Judge(LIMITS, now=0)
    verdict = ""
    for now in range(200):
        judge.answer(now)
        judge.hear(0, now, min(now, 30), 40, "step", now=now)
        judge.hear(1, now, min(now, 28), 40, "step", now=now)
        verdict = verdict or judge.verdict(now, longest_pause=3)
    assert verdict.startswith("Process 1 has made no progress")


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
