"""The report of a summary."""

import math
import re
from typing import Any

import numpy as np
import pytest

import trellis
from tests import tiny
from tests.screen import terminal
from trellis.loops import Session
from trellis.runtime import Peak, describe_metric


def session_of(n_steps: int) -> Session:
    """The session of a loop that trains up to a step."""
    session = Session()
    session.progress(1, n_steps)
    return session


def train_metrics(loss: float, **others: float) -> dict[str, float]:
    """What a trainer reports, in its order."""
    times = {"seconds_per_step": 0.002, "compile_seconds": 1.5, "weights_l2norm": 8.5}
    return {**times, "loss": loss, **others, "learning_rate": 8.0381e-05}


def lines_on_terminal(n_columns: int, *summaries: trellis.Summary) -> list[str]:
    """What a person sees of reports."""
    with terminal(n_columns=n_columns) as screen:
        log = trellis.SummaryLogger()
        for summary in summaries:
            log(summary)
    return screen.lines


def test_a_report_is_one_line_of_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    log = trellis.SummaryLogger()
    session = session_of(60)
    learning = "accuracy 0.1922  learning_rate 8.038e-5"
    train = train_metrics(2.27740955, accuracy=0.1921875)
    log(tiny.checkpoint(20, train=train, eval={"accuracy": 0.21212, "loss": 2.222643}, session=session))
    log(tiny.checkpoint(40, train=train_metrics(0.0223066, accuracy=0.1921875), session=session))
    log(
        tiny.checkpoint(
            60, train=train_metrics(0.0009, accuracy=0.1921875), eval={"accuracy": 1, "loss": 0.5}, session=session
        )
    )
    assert capsys.readouterr().out.splitlines() == [
        f"Step 20 of 60  loss 2.2774    {learning}  500 steps/s   eval/accuracy 0.2121  eval/loss 2.2226",
        f"Step 40 of 60  loss 0.02231   {learning}  500 steps/s",
        f"Step 60 of 60  loss 9.000e-4  {learning}  500 steps/s   eval/accuracy 1.0000  eval/loss 0.5000",
    ]


def test_columns_are_below_each_other_from_line_to_line_and_never_get_narrower(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = trellis.SummaryLogger()
    for step, loss in enumerate((2.5, -13.25, math.nan, 0.0, 1e-12, 3e8, 12345.6, math.inf, -0.5), start=1):
        log(tiny.checkpoint(step, train={"loss": loss, "accuracy": 0.5}))
    assert capsys.readouterr().out.splitlines() == [
        "Step      1  loss 2.5000    accuracy 0.5000",
        "Step      2  loss -13.250   accuracy 0.5000",
        "Step      3  loss nan       accuracy 0.5000",
        "Step      4  loss 0         accuracy 0.5000",
        "Step      5  loss 1.000e-12  accuracy 0.5000",
        "Step      6  loss 3.000e8    accuracy 0.5000",
        "Step      7  loss 12346      accuracy 0.5000",
        "Step      8  loss inf        accuracy 0.5000",
        "Step      9  loss -0.5000    accuracy 0.5000",
    ]


def test_an_evaluation_that_does_not_fit_is_on_the_next_line() -> None:
    summary = tiny.checkpoint(
        20, train=train_metrics(2.2774, accuracy=0.19), eval={"accuracy": 0.21, "loss": 2.2}, session=session_of(60)
    )
    train = "Step 20 of 60  loss 2.2774    accuracy 0.1900  learning_rate 8.038e-5  500 steps/s"
    evaluation = "eval/accuracy 0.2100  eval/loss 2.2000"
    assert lines_on_terminal(123, summary) == [f"{train}   {evaluation}"]
    assert lines_on_terminal(122, summary) == [train, f"{' ' * 15}{evaluation}"]


def test_where_room_is_short_the_metrics_of_the_task_come_before_the_rate() -> None:
    train = train_metrics(2.2774, accuracy=0.19)
    summaries = [
        tiny.checkpoint(step, train=train | {"seconds_per_step": seconds}, eval={"loss": 2.2}, session=session_of(60))
        for step, seconds in ((20, 0.002), (40, 0.0001))
    ]
    assert lines_on_terminal(83, *summaries) == [
        "Step 20 of 60  loss 2.2774    accuracy 0.1900  learning_rate 8.038e-5  500 steps/s",
        "               eval/loss 2.2000",
        "Step 40 of 60  loss 2.2774    accuracy 0.1900  learning_rate 8.038e-5",
        "               eval/loss 2.2000",
    ]


def test_evaluations_stay_on_lines_of_their_own() -> None:
    train = {f"metric_{index}": 0.5 for index in range(5)}
    summaries = [tiny.checkpoint(1, train=train, eval=train), tiny.checkpoint(2, eval={"metric_0": 0.5})]
    assert lines_on_terminal(120, *summaries)[2:] == ["Step      2", "             eval/metric_0 0.5000"]


def test_each_of_two_validation_sets_has_its_line() -> None:
    summary = tiny.checkpoint(
        5, train={"loss": 1.0}, eval={"loss": 2.0, "cls_accuracy": 0.5, "matthews_corrcoef": 0.25}
    )
    summary = summary.with_metrics(mismatched={"loss": 3.0, "cls_accuracy": 0.5, "matthews_corrcoef": 0.25})
    assert lines_on_terminal(80, summary) == [
        "Step      5  loss 1.0000",
        "             eval/loss 2.0000    eval/cls_accuracy 0.5000  +1",
        "             mismatched/loss 3.0000    mismatched/cls_accuracy 0.5000  +1",
    ]


def test_metrics_that_do_not_fit_are_counted_and_all_are_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    many: dict[str, Any] = {f"metric_{index}": index / 10 for index in range(15)}
    summary = tiny.checkpoint(20, train=train_metrics(2.2774, **many), eval=many, session=session_of(10_000))
    for n_columns in (80, 120, 200):
        lines = lines_on_terminal(n_columns, summary)
        assert len(lines) == 2
        assert all(len(line) <= n_columns for line in lines)
        assert lines[0].startswith("Step    20 of 10000  loss 2.2774    ")
        assert re.search(r"  \+\d+(  learning_rate 8.038e-5)?(  500 steps/s)?$", lines[0])
    assert lines_on_terminal(80, summary)[1].endswith("eval/metric_0 0       eval/metric_1 0.1000  +13")
    trellis.SummaryLogger()(summary)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert all(f" {name} " in out and f" eval/{name} " in out for name in many)


def test_a_line_fits_however_narrow_the_terminal_and_long_the_name() -> None:
    summary = tiny.checkpoint(20, train=train_metrics(2.2774, **{"x" * 100: 1.0}), eval={"y" * 100: 1.0})
    assert lines_on_terminal(40, summary) == ["Step     20  loss 2.2774    +1", "             +1"]


def test_a_group_or_a_summary_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    log = trellis.SummaryLogger()
    log(tiny.checkpoint(1, train={"loss": 1.0}, eval={}))
    log(tiny.checkpoint(2))
    assert capsys.readouterr().out == "Step      1  loss 1.0000\nStep      2\n"


def test_a_step_past_the_end_is_not_one_of_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    trellis.SummaryLogger()(tiny.checkpoint(11, train={"loss": 1.0}, session=session_of(10)))
    assert capsys.readouterr().out == "Step     11  loss 1.0000\n"


def test_a_loop_is_reported_with_its_last_step_and_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    log = trellis.serial(tiny.eval_loop(), trellis.SummaryLogger())
    for checkpoint in tiny.train_loop(n_steps=4, n_steps_per_checkpoint=2):
        log(checkpoint)
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("Step 2 of 4  loss ")
    assert re.search(r" steps/s +\d+ examples/s +eval/accuracy 0\.", last)


def test_details_are_all_metrics_in_eight_digits_one_to_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    train = {"seconds_per_step": 6.18608499, "gradients_l2norm": 2.90597e-12, "loss": -5.54844236}
    summary = tiny.checkpoint(1, elapsed_time=6.186, train=train, eval={"lnpp": math.nan})
    trellis.SummaryLogger(details=True)(summary)
    assert capsys.readouterr().out == (
        "Step      1: Ran 1 train steps in 6.19 seconds\n"
        "Step      1: train seconds_per_step | 6.186085\n"
        "Step      1: train gradients_l2norm | 2.90597e-12\n"
        "Step      1: train             loss | -5.5484424\n"
        "Step      1: eval              lnpp | nan\n"
        "\n"
    )


def test_a_checkpoint_that_was_not_evaluated_is_reported_with_its_train_metrics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = trellis.Checkpoint(
        model_params={"kernel": np.array([3.0, 4.0])},
        model_state={},
        optimizer_state=(),
        grads=None,
        loss=0.25,
        n_completed_steps=4,
        elapsed_time=2.0,
        step=8,
        train_metrics={"accuracy": 0.75},
    )
    assert trellis.SummaryLogger()(checkpoint) is checkpoint
    assert trellis.SummaryLogger(details=True)(checkpoint) is checkpoint
    assert capsys.readouterr().out == (
        "Step      8  loss 0.2500    accuracy 0.7500  2.00 steps/s\n"
        "Step      8: Ran 4 train steps in 2.00 seconds\n"
        "Step      8: train seconds_per_step | 0.5\n"
        "Step      8: train   weights_l2norm | 5\n"
        "Step      8: train             loss | 0.25\n"
        "Step      8: train         accuracy | 0.75\n"
        "\n"
    )


def test_a_logger_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    summary = tiny.checkpoint(1, train={"loss": 1.0})
    assert trellis.SummaryLogger(stdout=False)(summary) is summary
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0012344, "0.001234"),
        (0.00012344, "1.234e-4"),
        (9.99996, "10.000"),
        (99999.7, "100000"),
        (-1.5e7, "-1.500e7"),
    ],
)
def test_a_metric_has_four_digits_that_count(value: float, text: str) -> None:
    assert describe_metric(value) == text


def test_speeds_are_told_where_a_line_has_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = Peak("H200", 989e12)
    monkeypatch.setattr("trellis.extensions.summary_logger.chip_peak", lambda kind: peak)
    train = {"seconds_per_step": 0.05, "loss": 0.5, "examples_per_second": 640.0, "input_wait": 0.02}
    busy = train | {"tokens_per_second": 81920.0, "flops_utilisation": 0.413}
    log = trellis.SummaryLogger()
    for values in (train, busy):
        log(tiny.checkpoint(7, train=values, eval={"accuracy": 0.75}))
    monkeypatch.setattr("trellis.extensions.summary_logger.line_width", lambda: 60)
    log(tiny.checkpoint(7, train=busy, eval={"accuracy": 0.75}))
    assert capsys.readouterr().out.splitlines() == [
        "Step      7  loss 0.5000    20.0 steps/s  640 examples/s    eval/accuracy 0.7500",
        f"Step      7  loss 0.5000    20.0 steps/s  81920 tokens/s   41 % of {peak}  eval/accuracy 0.7500",
        "Step      7  loss 0.5000    20.0 steps/s",
        "             eval/accuracy 0.7500",
    ]


def test_details_say_of_what_peak_the_utilisation_is(capsys: pytest.CaptureFixture[str]) -> None:
    train = {"loss": 0.5, "examples_per_second": 640.0}
    trellis.SummaryLogger(details=True)(tiny.checkpoint(7, train=train))
    assert "Step      7: The peak of cpu is not known" in capsys.readouterr().out
