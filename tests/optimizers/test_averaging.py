"""Moving averages of parameters."""

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests.tiny import Classifier, assert_equal, cross_entropy, eval_loop, stream, train_loop, train_task
from trellis.optimizers import (
    AverageState,
    EMAConfig,
    OptimizationConfig,
    average_parameters,
    average_weights,
    build_optimizer,
)

SGD = {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}}}


def averages(n_updates: int, **ema: Any) -> list[float]:
    """The averages of a parameter that stays 1."""
    optimizer = average_parameters(optax.sgd(0.0), config=EMAConfig(**ema))
    params = {"w": jnp.ones(2)}
    state, seen = optimizer.init(params), []
    for _ in range(n_updates):
        updates, state = optimizer.update({"w": jnp.ones(2)}, state, params)
        params = optax.apply_updates(params, updates)
        seen.append(float(average_weights(params, optimizer_state=state)["w"][0]))
    return seen


@pytest.mark.parametrize(
    ("ema", "expected"),
    [
        ({"average_decay": 0.99}, [0.8181818, 0.9545455, 0.9860140, 0.9950050, 0.9980020]),
        ({"average_decay": 0.99, "dynamic_decay": False}, [0.01, 0.0199, 0.029701]),
        ({"average_decay": 0.99, "start_step": 3}, [1.0, 1.0, 1.0, 1.0]),
        ({"average_decay": 0.1}, [0.9, 0.99, 0.999]),
    ],
    ids=str,
)
def test_averages_are_the_published_ones(ema: dict[str, Any], expected: list[float]) -> None:
    np.testing.assert_allclose(averages(len(expected), **ema), expected, rtol=1e-6)


def test_the_average_is_that_of_the_parameters_after_each_update() -> None:
    optimizer = build_optimizer(
        OptimizationConfig(SGD | {"ema": {"average_decay": 0.5, "start_step": 2}}), n_steps=None
    )
    params, state = {"w": jnp.array([1.0])}, None
    state = optimizer.init(params)
    weight, average, rng = 1.0, 0.0, np.random.default_rng(0)
    for n in range(1, 6):
        grad = rng.normal()
        updates, state = optimizer.update({"w": jnp.array([grad], jnp.float32)}, state, params)
        params = optax.apply_updates(params, updates)
        weight -= 0.1 * grad
        decay = 0.0 if n < 2 else min(0.5, (1 + n - 2) / (10 + n - 2))
        average -= (1 - decay) * (average - weight)
        np.testing.assert_allclose(average_weights(params, optimizer_state=state)["w"], [average], rtol=1e-5)
        np.testing.assert_allclose(params["w"], [weight], rtol=1e-5)


def test_without_averages_the_parameters_are_evaluated() -> None:
    params = {"w": jnp.ones(2)}
    assert average_weights(params, optimizer_state=optax.adam(1e-3).init(params)) is params


def test_before_the_first_update_the_parameters_are_evaluated() -> None:
    params = {"w": jnp.full(2, 3.0)}
    state = average_parameters(optax.adam(1e-3), config=EMAConfig()).init(params)
    np.testing.assert_array_equal(average_weights(params, optimizer_state=state)["w"], params["w"])


def test_averages_are_found_inside_other_state() -> None:
    params = {"w": jnp.ones(2)}
    optimizer = average_parameters(optax.sgd(0.5), config=EMAConfig(start_step=9))
    _, state = optimizer.update({"w": jnp.ones(2)}, optimizer.init(params), params)
    weights = average_weights(params, optimizer_state={"scale": jnp.float32(1), "inner": (optax.EmptyState(), state)})
    np.testing.assert_array_equal(weights["w"], [0.5, 0.5])


def test_averages_of_half_precision_are_kept_in_single() -> None:
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    optimizer = average_parameters(optax.sgd(0.0), config=EMAConfig(average_decay=0.9999, start_step=1))
    state = optimizer.init(params)
    assert state.average["w"].dtype == jnp.float32
    _, state = optimizer.update(jax.tree.map(jnp.zeros_like, params), state, params)
    assert average_weights(params, optimizer_state=state)["w"].dtype == jnp.bfloat16


def test_extra_arguments_reach_the_optimizer() -> None:
    inner = optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda grads, state, params=None, *, value: (optax.tree.scale(value, grads), state),
    )
    optimizer = average_parameters(inner, config=EMAConfig())
    params = {"w": jnp.ones(2)}
    updates, _ = optimizer.update(params, optimizer.init(params), params, value=2.0)
    np.testing.assert_array_equal(updates["w"], [2.0, 2.0])


def test_averages_are_part_of_a_donated_state() -> None:
    optimizer = build_optimizer(OptimizationConfig(SGD | {"ema": {}}), n_steps=None)

    def step(carry: Any, _: Any) -> Any:
        params, state = carry
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        return (optax.apply_updates(params, updates), state), None

    params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    plain = params, optimizer.init(params)
    for _ in range(4):
        plain, _ = step(plain, None)
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=4)[0], donate_argnums=0)
    fused = run((jax.tree.map(jnp.copy, params), optimizer.init(params)))
    assert isinstance(fused[1], AverageState)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), plain, fused)


def test_the_example_of_averages_is_evaluated_by_a_loop() -> None:
    text = str(average_parameters.__doc__)
    example = text.partition("Example:\n")[2]
    seen: list[trellis.Summary] = []
    names: dict[str, Any] = {
        "average_parameters": average_parameters,
        "average_weights": average_weights,
        "EMAConfig": EMAConfig,
        "TrainTask": trellis.TrainTask,
        "TrainLoop": trellis.TrainLoop,
        "optax": optax,
        "dataclasses": dataclasses,
        "model": Classifier(),
        "cross_entropy": cross_entropy,
        "stream": stream(),
        "evaluate": lambda checkpoint: seen.append(eval_loop()(checkpoint)),
    }
    exec(textwrap.dedent(example), names)  # noqa: S102
    assert [summary.step for summary in seen] == [1, 2, 3, 4]
    assert all(summary.metrics["eval"]["loss"] > 0 for summary in seen)


def test_averages_are_saved_and_restored_with_a_loop(tmp_path: Path) -> None:
    adamw = {"optimizer": {"type": "adamw"}, "learning_rate": {"type": "constant"}, "ema": {"average_decay": 0.9}}
    task = train_task(optimizer=build_optimizer(OptimizationConfig(adamw), n_steps=6))

    def averages_after(n_steps: int, **options: Any) -> Any:
        writer, steps = trellis.CheckpointFileWriter(output_dir=tmp_path), []
        for checkpoint in train_loop(task, n_steps=n_steps, n_steps_per_checkpoint=3, **options):
            writer(checkpoint)
            steps.append(checkpoint.step)
            weights = average_weights(checkpoint.model_params, optimizer_state=checkpoint.optimizer_state)
        return steps, jax.tree.map(np.array, weights)

    averages_after(3)
    steps, resumed = averages_after(6, init=trellis.CheckpointFileReader(dir=tmp_path, target=Classifier().init))
    assert steps == [6]
    assert_equal(resumed, averages_after(6)[1])
