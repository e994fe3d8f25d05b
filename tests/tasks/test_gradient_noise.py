"""The noise of differential privacy: after clipping, of the right size, a function of seed and step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trellis
from tests.trainer import small
from trellis.errors import ModelError
from trellis.tasks import DifferentialPrivacyConfig

SGD = trellis.OptimizationConfig(
    optimizer={"type": "sgd"}, learning_rate={"type": "constant", "constant": {"learning_rate": 1.0}}
)


def noise(step: int, *, seed: int = 0, norm: float = 2.0, size: int = 20_000) -> dict[str, Any]:
    """What is added to gradients whose norm is above the bound, at a step."""
    private = DifferentialPrivacyConfig(clipping_norm=norm, noise_multiplier=0.5)
    runtime = trellis.RuntimeConfig(seed=seed)
    optimizer: Any = trellis.Task.create_optimizer(SGD, dp_config=private, runtime_config=runtime)
    params = {"a": jnp.zeros(size), "b": jnp.zeros(size)}
    grads = {"a": jnp.full(size, 7.0), "b": jnp.full(size, 7.0)}
    updates, _ = optimizer.update(grads, optimizer.init(params), params, step=step)
    clipped = norm / (2 * size) ** 0.5
    return {name: -np.asarray(update) - clipped for name, update in updates.items()}


def test_noise_has_the_deviation_of_the_norm_times_the_multiplier_after_clipping() -> None:
    found = noise(0)
    for values in found.values():
        np.testing.assert_allclose(values.std(), 1.0, rtol=0.02)
        np.testing.assert_allclose(values.mean(), 0.0, atol=0.03)
    assert abs(np.corrcoef(found["a"], found["b"])[0, 1]) < 0.03


def test_noise_is_that_of_its_step_and_seed_whenever_it_is_asked_for() -> None:
    np.testing.assert_array_equal(noise(3)["a"], noise(3)["a"])
    for other in (noise(4), noise(3, seed=1)):
        assert abs(np.corrcoef(noise(3)["a"], other["a"])[0, 1]) < 0.03


def test_a_step_that_does_not_tell_its_number_is_refused() -> None:
    private = DifferentialPrivacyConfig(clipping_norm=1.0, noise_multiplier=1.0)
    optimizer = trellis.Task.create_optimizer(SGD, dp_config=private)
    params = {"w": jnp.zeros(2)}
    with pytest.raises(ModelError, match="Call optimizer.update.*step=state.step"):
        optimizer.update(params, optimizer.init(params), params)


def test_a_resumed_private_run_ends_as_one_that_was_not_interrupted(tmp_path: Any) -> None:
    def train(n_steps: int, model_dir: Any) -> Any:
        params = small.params(n_steps)
        params.override({"task": {"differential_privacy_config": {"clipping_norm": 1.0, "noise_multiplier": 0.1}}})
        task = trellis.get_task(params.task)
        trainer = trellis.Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir)
        return trainer.train()

    train(5, tmp_path / "resumed")
    whole, resumed = train(10, tmp_path / "whole"), train(10, tmp_path / "resumed")
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.model_params, resumed.model_params))
