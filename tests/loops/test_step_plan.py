"""The plan of steps: laws over many periods and limits."""

import pytest

from trellis.errors import ArgumentError
from trellis.loops.fused_steps import StepPlan

PLANS = [(1,), (3,), (25,), (997,), (4, 6), (500, 1234)]


def calls(plan: StepPlan, start: int, stop: int, most: int, *, least: int = 50) -> list[tuple[int, int]]:
    """The calls from one step to another, as (step, number of steps)."""
    made = []
    while start < stop:
        n = plan.n_steps_in_call(start, (least, most), stop)
        made.append((start, n))
        start += n
    return made


@pytest.mark.parametrize("periods", PLANS)
@pytest.mark.parametrize("most", [1, 2, 7, 50])
def test_calls_are_never_longer_than_allowed_and_never_pass_a_checkpoint(periods: tuple[int, ...], most: int) -> None:
    plan = StepPlan.of(periods)
    for step, n in calls(plan, 0, 3000, most):
        assert 1 <= n <= most
        assert all((step // period) == (step + n - 1) // period for period in periods)


@pytest.mark.parametrize("periods", PLANS)
@pytest.mark.parametrize("most", [1, 7, 50])
def test_a_resumed_run_makes_the_calls_that_an_uninterrupted_one_makes(periods: tuple[int, ...], most: int) -> None:
    plan = StepPlan.of(periods)
    whole = calls(plan, 0, 3000, most)
    for step, _ in whole[:: max(1, len(whole) // 40)]:
        assert calls(plan, step, 3000, most) == [call for call in whole if call[0] >= step]


def test_steps_are_cut_evenly_where_that_is_not_wasteful() -> None:
    assert {n for _, n in calls(StepPlan.of(500), 0, 500, 50)} == {50}
    assert {n for _, n in calls(StepPlan.of(60), 0, 60, 50)} == {30}
    assert [n for _, n in calls(StepPlan.of(53), 0, 53, 50)] == [50, 3]
    assert [n for _, n in calls(StepPlan.of(24), 0, 24, 10, least=8)] == [8, 8, 8]
    assert [n for _, n in calls(StepPlan.of(44), 0, 44, 10, least=5)] == [10, 10, 10, 10, 4]
    assert [n for _, n in calls(StepPlan.of(44), 0, 44, 10, least=4)] == [4] * 11


def test_the_end_of_a_run_is_reached_by_even_calls_too() -> None:
    assert {n for _, n in calls(StepPlan.of(1000), 0, 570, 50)} == {38}
    assert {n for _, n in calls(StepPlan.of(500), 0, 575, 50)} == {50, 25}


def test_a_checkpoint_is_due_at_the_multiples_of_every_period() -> None:
    plan, step, due = StepPlan.of((4, 6)), 0, []
    while step < 24:
        step = plan.due_after(step)
        due.append(step)
    assert due == [4, 6, 8, 12, 16, 18, 20, 24]


@pytest.mark.parametrize("periods", [0, -1, (), (3, 0)])
def test_a_period_without_steps_is_refused(periods: int) -> None:
    with pytest.raises(ArgumentError, match="n_steps_per_checkpoint is"):
        StepPlan.of(periods)
