"""Noise on gradients, the same whenever a step is run again."""

from typing import Any

import jax
import optax

from trellis.aliases import Array, Key, PyTree
from trellis.errors import ModelError
from trellis.runtime import StepKeys


def add_gradient_noise(stddev: float, *, key: Key) -> optax.GradientTransformationExtraArgs:
    """Adds Gaussian noise to each gradient, by a key that is a function of `key`, the step and the gradient's name.

    The caller gives the step. A count of its own would start again with each stage of a progressive training, and
    repeat the noise of the stage before.

    Example:
        optimizer.update(grads, state.optimizer_state, state.params, step=state.step)
    """

    def update(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None, *, step: Array | None = None, **extra: Any
    ) -> tuple[PyTree, optax.EmptyState]:
        if step is None:
            raise ModelError(
                "differential_privacy_config blurs gradients by the step, which the train_step does not tell. "
                "Call optimizer.update(grads, state.optimizer_state, state.params, step=state.step)."
            )
        keys = StepKeys(key, step)

        def blur(path: Any, gradient: Array) -> Array:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return gradient + stddev * jax.random.normal(keys[f"noise/{name}"], gradient.shape, gradient.dtype)

        return jax.tree_util.tree_map_with_path(blur, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
