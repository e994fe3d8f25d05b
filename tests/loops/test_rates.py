"""What the clock says of the steps of a checkpoint."""

from typing import Any

import jax.numpy as jnp
import pytest

import trellis
from tests import tiny
from trellis.loops import CLOCKED_METRICS, Session
from trellis.runtime import Peak


def test_a_checkpoint_tells_examples_a_second_without_the_time_of_compiling() -> None:
    checkpoint = tiny.train_loop(n_steps=20, n_steps_per_checkpoint=20).next_checkpoint()
    seconds = checkpoint.elapsed_time - checkpoint.compile_time
    assert checkpoint.rates["examples_per_second"] == pytest.approx(20 * 16 / seconds)
    assert 0 <= checkpoint.rates["input_wait"] <= 1
    train = trellis.Summary.from_checkpoint(checkpoint).metrics["train"]
    assert set(checkpoint.rates) <= train.keys() & set(CLOCKED_METRICS)


def test_tokens_are_counted_on_the_devices_where_a_task_says_how() -> None:
    def count_tokens(batch: Any) -> Any:
        return jnp.sum(batch[1] > 0)

    loop = tiny.train_loop(tiny.train_task(count_tokens=count_tokens), n_steps=20, n_steps_per_checkpoint=20)
    checkpoint = loop.next_checkpoint()
    seconds = checkpoint.elapsed_time - checkpoint.compile_time
    n_tokens = sum((tiny.stream().batch(step)[1] > 0).sum() for step in range(20))
    assert checkpoint.rates["tokens_per_second"] * seconds == pytest.approx(n_tokens)
    assert list(checkpoint.train_metrics) == []
    assert loop.outline().metrics == ("loss",)


def test_a_batch_without_tokens_has_no_rate_of_them() -> None:
    checkpoint = tiny.train_loop(tiny.train_task(count_tokens=lambda batch: None), n_steps=5).next_step()
    assert "tokens_per_second" not in checkpoint.rates


def test_the_utilisation_is_that_of_all_devices_where_their_peak_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tiny.train_loop(n_steps=20, n_steps_per_checkpoint=20)
    assert "flops_utilisation" not in loop.next_checkpoint().rates
    monkeypatch.setattr("trellis.loops.train_loop.chip_peak", lambda kind: Peak("Toy", 1e9))
    loop = tiny.train_loop(n_steps=20, n_steps_per_checkpoint=20)
    rates = loop.next_checkpoint().rates
    steps_per_second = rates["examples_per_second"] / 16
    assert rates["flops_utilisation"] == pytest.approx(steps_per_second * loop.outline().flops / 1e9)


def test_a_run_that_waits_for_input_says_once_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.loops.train_loop._SECONDS_BEFORE_ADVICE", 0.0)
    loop = tiny.train_loop(n_steps=30, n_steps_per_checkpoint=10)
    monkeypatch.setattr(Session, "emit", told := Told())
    checkpoints = iter(loop)
    next(checkpoints)
    loop._running.input_meter.waited += 1000
    for _ in checkpoints:
        loop._running.input_meter.waited += 1000
    texts = [text for kind, text in told.events if kind == "input_bound"]
    assert len(texts) == 1
    assert "the devices waited for input for 100 % of the time" in texts[0]
    assert "trellis runs time" in texts[0]


class Told:
    """What a session was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def __call__(self, kind: str, *, step: int, text: str = "", **values: Any) -> None:
        self.events.append((kind, text))
