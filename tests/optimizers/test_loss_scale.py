"""The loss scale: gradients as without it, bad updates left out, and a scale that finds its size."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError
from trellis.optimizers import (
    EMAConfig,
    average_parameters,
    average_weights,
    current_loss_scale,
    loss_scale as scaling,
    scale_loss,
)
from trellis.runtime import Precision

PARAMS = {"w": jnp.float32(2), "b": jnp.float32(-1)}
GOOD = {"w": jnp.float32(0.5), "b": jnp.float32(0.25)}
BAD = {"w": jnp.float32(np.inf), "b": jnp.float32(0.25)}


def averaged() -> optax.GradientTransformation:
    return average_parameters(optax.adam(optax.linear_schedule(0.1, 0, 10)), config=EMAConfig(average_decay=0.9))


def run(optimizer: optax.GradientTransformation, *grads: Any) -> tuple[Any, Any]:
    params, state = PARAMS, optimizer.init(PARAMS)
    for given in grads:
        updates, state = jax.jit(optimizer.update)(given, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def test_good_updates_are_those_of_the_optimizer() -> None:
    params, state = run(scale_loss(averaged()), GOOD, GOOD)
    expected, inner = run(averaged(), GOOD, GOOD)
    tiny.assert_equal(params, expected)
    tiny.assert_equal(state.optimizer, inner)


@pytest.mark.parametrize("loss_scale", [None, "dynamic", 128.0])
def test_a_bad_update_changes_nothing_but_a_dynamic_scale(loss_scale: Any) -> None:
    optimizer = scale_loss(averaged(), loss_scale=loss_scale)
    params, state = run(optimizer, GOOD, BAD, GOOD)
    expected, before = run(optimizer, GOOD, GOOD)
    tiny.assert_equal(params, expected)
    tiny.assert_equal(state.optimizer, before.optimizer)
    tiny.assert_equal(average_weights(params, optimizer_state=state), average_weights(params, optimizer_state=before))
    assert current_loss_scale(state) == (128 if loss_scale == 128 else 2**14)


def test_a_scale_doubles_after_so_many_good_updates_in_a_row_and_stays_above_one() -> None:
    optimizer = scale_loss(optax.sgd(0.1))
    state = optimizer.init(PARAMS)

    def after(state: Any, *, n_good_steps: int, scale: float, grads: Any) -> tuple[float, int]:
        state = state._replace(n_good_steps=jnp.int32(n_good_steps), scale=jnp.float32(scale))
        _, state = optimizer.update(grads, state, PARAMS)
        return float(state.scale), int(state.n_good_steps)

    assert after(state, n_good_steps=1998, scale=8, grads=GOOD) == (8, 1999)
    assert after(state, n_good_steps=1999, scale=8, grads=GOOD) == (16, 0)
    assert after(state, n_good_steps=1999, scale=8, grads=BAD) == (4, 0)
    assert after(state, n_good_steps=7, scale=1, grads=BAD) == (1, 0)
    assert after(state, n_good_steps=1999, scale=2.0**127, grads=GOOD) == (2.0**127, 0)


def test_an_optimizer_without_a_scale_has_none() -> None:
    assert current_loss_scale(optax.adam(0.1).init(PARAMS)) is None


@pytest.mark.parametrize("loss_scale", [0.0, -2.0, float("nan")])
def test_a_scale_that_is_none_is_refused(loss_scale: float) -> None:
    with pytest.raises(ArgumentError, match=r"loss_scale is .*a number above 0, such as 128, or 'dynamic'"):
        scale_loss(optax.sgd(0.1), loss_scale=loss_scale)


def loop(**options: Any) -> trellis.TrainLoop:
    """Training in float16, whose first gradients overflow if the scale is large."""
    model = tiny.Classifier()
    task = trellis.TrainTask(
        apply=Precision("float16").applied_to(model.apply),
        optimizer=scale_loss(averaged()),
        loss=tiny.cross_entropy,
        data=tiny.stream(),
    )
    return tiny.train_loop(task, **{"n_steps": 8, "n_steps_per_checkpoint": 4} | options)


def test_an_overflow_is_skipped_and_told_and_the_loss_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_FIRST_SCALE", 2.0**24)
    running = loop(n_steps_per_checkpoint=1)
    start = tiny.Classifier().init(trellis.runtime.StepKeys(jax.random.key(0), 0)["init/params"], tiny.examples()[0])
    first = running.next_step()
    tiny.assert_equal(tiny.arrays(first.model_params), tiny.arrays(start["params"]))
    assert first.train_metrics["skipped_updates"] == 1
    assert first.train_metrics["loss_scale"] == 2**24
    assert 0.5 < first.loss < 5
    assert current_loss_scale(first.optimizer_state) == 2**23
    last = list(running)[-1]
    assert last.train_metrics["skipped_updates"] == 0
    assert np.isfinite(last.loss)


def test_parts_of_a_batch_are_scaled_as_the_whole() -> None:
    grads = [
        tiny.arrays(tiny.train_loop(tiny.train_task(**options), n_steps=1).next_step().grads)
        for options in (
            {},
            {"optimizer": scale_loss(optax.adam(1e-2))},
            {"optimizer": scale_loss(optax.adam(1e-2)), "n_microbatches": 2},
        )
    ]
    for one, whole, parts in zip(*grads, strict=True):
        np.testing.assert_array_equal(one, whole)
        np.testing.assert_allclose(whole, parts, rtol=1e-5, atol=1e-7)


def test_the_scale_is_resumed_from_a_checkpoint_file_and_parameters_are_float32_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "_FIRST_SCALE", 2.0**24)
    first = loop()
    trellis.CheckpointFileWriter(tmp_path)(first.next_checkpoint())
    whole = first.next_checkpoint()
    reader = trellis.CheckpointFileReader(tmp_path, target=tiny.Classifier().init)
    checkpoint = reader.read()
    assert checkpoint is not None
    assert checkpoint.optimizer_state.scale < 2**24
    assert {leaf.dtype.name for leaf in jax.tree.leaves(checkpoint.model_params)} == {"float32"}
    monkeypatch.undo()
    resumed = loop(init=reader).next_checkpoint()
    tiny.assert_equal(tiny.arrays(resumed.optimizer_state), tiny.arrays(whole.optimizer_state))
    tiny.assert_equal(tiny.arrays(resumed.model_params), tiny.arrays(whole.model_params))
