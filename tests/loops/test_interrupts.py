"""A loop that somebody interrupts keeps its state, as whoever works in a notebook needs it."""

import contextlib
import os
import signal
from typing import Any

import jax
import numpy as np
import pytest

import trellis
from tests import tiny
from trellis.errors import StaleCheckpointError

pytestmark = pytest.mark.usefixtures("heeds_interrupts")


def interrupted_loop(*steps: int, **options: Any) -> trellis.TrainLoop:
    """A loop in whose midst, at some steps, somebody presses Ctrl-C, each time once."""
    loop = tiny.train_loop(n_steps=40, n_steps_per_checkpoint=20, **options)
    rest = set(steps)

    def press(step: int, n_steps: int | None) -> None:
        if step in rest:
            rest.remove(step)
            os.kill(os.getpid(), signal.SIGINT)

    loop.session.subscribe_to_progress(press)
    return loop


def results(checkpoint: trellis.Checkpoint) -> list[np.ndarray]:
    return tiny.arrays((checkpoint.model_params, checkpoint.optimizer_state, checkpoint.loss))


def test_a_loop_that_is_interrupted_goes_on_to_the_same_bits(capfd: pytest.CaptureFixture[str]) -> None:
    whole = [results(checkpoint) for checkpoint in interrupted_loop()]
    loop = interrupted_loop(10, 30, stdout=True)
    parts: list[list[np.ndarray]] = []
    for step in (10, 30):
        with pytest.raises(KeyboardInterrupt):
            for checkpoint in loop:
                parts.append(results(checkpoint))  # noqa: PERF401  (those before the interrupt stay)
        captured = capfd.readouterr()
        assert "The run stops when the steps under way are done. Ctrl-C again leaves at once." in captured.err
        told = f"Stopped by Ctrl-C: step {step} is in `loop.checkpoint`, and in no file. To run the loop again goes on"
        assert told in captured.out
        now = loop.checkpoint
        assert (now.step, now.n_completed_steps, loop.step) == (step, 10, step)
        assert np.isfinite(now.loss)
        assert now.elapsed_time > 0
    parts += [results(checkpoint) for checkpoint in loop]
    for one, other in zip(parts, whole, strict=True):
        tiny.assert_equal(one, other)


def test_the_state_after_an_interrupt_can_be_saved_and_gone_on_with(tmp_path: Any) -> None:
    loop = interrupted_loop(10)
    with pytest.raises(KeyboardInterrupt):
        list(loop)
    trellis.CheckpointFileWriter(tmp_path)(loop.checkpoint)
    reader = trellis.CheckpointFileReader(tmp_path, target=tiny.Classifier().init)
    first, whole = next(interrupted_loop(init=reader)), next(interrupted_loop())
    assert (first.step, first.n_completed_steps) == (20, 20)
    tiny.assert_equal(results(first), results(whole))


def test_single_steps_are_not_cut_in_two_either() -> None:
    loop, whole = interrupted_loop(5), interrupted_loop()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(10):
            loop.next_step()
    step = loop.checkpoint.step
    assert step == 5
    last, expected = ([each.next_step() for _ in range(n)][-1] for each, n in ((loop, 8 - step), (whole, 8)))
    assert last.step == 8
    tiny.assert_equal(results(last), results(expected))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_of_what_is_done_with_a_checkpoint_comes_at_once() -> None:
    loop = interrupted_loop()
    with pytest.raises(KeyboardInterrupt):
        for checkpoint in loop:
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail(f"the body of step {checkpoint.step} went on")
    assert loop.checkpoint is checkpoint
    assert [checkpoint.step for checkpoint in loop] == [40]


def test_the_checkpoint_of_a_loop_is_its_last_and_before_the_first_what_it_starts_from() -> None:
    loop = tiny.train_loop(tiny.train_task(data=tiny.batches()), n_steps=4, n_steps_per_checkpoint=2)
    start = loop.checkpoint
    assert (start.step, start.n_completed_steps) == (0, 0)
    for checkpoint in loop:
        assert loop.checkpoint is checkpoint
    assert loop.checkpoint.step == 4
    assert trellis.Summary.from_checkpoint(loop.checkpoint).metrics["train"]["loss"] == checkpoint.loss
    with pytest.raises(StaleCheckpointError, match=r"`model_params` of the checkpoint at step 0 is gone"):
        _ = start.model_params


def test_a_loop_that_was_left_in_the_midst_of_a_step_says_so() -> None:
    loop = interrupted_loop()
    with contextlib.suppress(KeyboardInterrupt):
        for checkpoint in loop:
            jax.tree.map(lambda leaf: leaf.delete(), checkpoint.model_params)  # as a second Ctrl-C may leave them
            raise KeyboardInterrupt
    message = r"The loop was left in the midst of steps, after step 20 was begun, so that it has no state any more"
    with pytest.raises(StaleCheckpointError, match=message):
        _ = loop.checkpoint
    with pytest.raises(StaleCheckpointError, match=message):
        next(loop)
