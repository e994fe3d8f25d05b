"""The report of a summary."""

import math

import numpy as np
import pytest

import trellis
from tests import tiny


def test_a_report_has_a_line_on_the_steps_one_for_each_metric_and_a_blank_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train = {"seconds_per_step": 6.18608499, "gradients_l2norm": 0.00290597, "loss": -5.54844236}
    summary = tiny.checkpoint(1, elapsed_time=6.186, train=train, eval={"lnpp": 5.54712152})
    trellis.SummaryLogger()(summary)
    assert capsys.readouterr().out == (
        "Step      1: Ran 1 train steps in 6.19 seconds\n"
        "Step      1: train seconds_per_step | 6.18608499\n"
        "Step      1: train gradients_l2norm | 0.00290597\n"
        "Step      1: train             loss | -5.54844236\n"
        "Step      1: eval              lnpp | 5.54712152\n"
        "\n"
    )


def test_columns_are_as_wide_as_each_summary_needs(capsys: pytest.CaptureFixture[str]) -> None:
    log = trellis.SummaryLogger()
    log(tiny.checkpoint(1, train={"loss": 1.0}))
    log(tiny.checkpoint(2, train={"loss": 1.0}, eval={"perplexity": 20.0}))
    log(tiny.checkpoint(3, eval={"f1": 0.5}))
    lines = [line for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert lines == [
        "Step      1: train loss | 1.00000000",
        "Step      2: train       loss | 1.00000000",
        "Step      2: eval  perplexity | 20.00000000",
        "Step      3: eval f1 | 0.50000000",
    ]


def test_a_group_or_a_summary_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    log = trellis.SummaryLogger()
    log(tiny.checkpoint(1, train={"loss": 1.0}, eval={}))
    log(tiny.checkpoint(2))
    assert capsys.readouterr().out == (
        "Step      1: Ran 1 train steps in 0.10 seconds\n"
        "Step      1: train loss | 1.00000000\n"
        "\n"
        "Step      2: Ran 1 train steps in 0.10 seconds\n"
        "\n"
    )


def test_what_is_not_a_number_is_shown_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    trellis.SummaryLogger()(tiny.checkpoint(1_000_000, train={"loss": math.nan, "peak": math.inf}))
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "Step 1000000: train loss | nan",
        "Step 1000000: train peak | inf",
    ]


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
    assert capsys.readouterr().out == (
        "Step      8: Ran 4 train steps in 2.00 seconds\n"
        "Step      8: train seconds_per_step | 0.50000000\n"
        "Step      8: train   weights_l2norm | 5.00000000\n"
        "Step      8: train             loss | 0.25000000\n"
        "Step      8: train         accuracy | 0.75000000\n"
        "\n"
    )


def test_a_logger_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    summary = tiny.checkpoint(1, train={"loss": 1.0})
    assert trellis.SummaryLogger(stdout=False)(summary) is summary
    assert capsys.readouterr().out == ""
