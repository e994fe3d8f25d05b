"""An exponential moving average of the parameters, as a part of the optimizer's state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trellis.aliases import Array, PyTree
from trellis.optimizers.configs import EMAConfig
from trellis.optimizers.parts import trained_part


class AverageState(NamedTuple):
    """The state of an optimizer that averages, and so part of every checkpoint file."""

    count: Array  # type: ignore[assignment]  # the name of a tuple's method
    """How many updates there were."""
    average: PyTree
    optimizer: PyTree
    """The state of the optimizer whose updates are averaged."""


def average_parameters(optimizer: optax.GradientTransformation, *, config: EMAConfig) -> optax.GradientTransformation:
    """Returns an optimizer with the same updates that keeps an average of the parameters which they lead to.

    Example:
        optimizer = average_parameters(optax.adamw(1e-3), config=EMAConfig(average_decay=0.999))
        task = TrainTask(apply=model.apply, optimizer=optimizer, loss=cross_entropy, data=stream)
        for checkpoint in TrainLoop(init=model.init, task=task, n_steps=4):
            averages = average_weights(checkpoint.model_params, optimizer_state=checkpoint.optimizer_state)
            evaluate(dataclasses.replace(checkpoint, model_params=averages))
    """
    config = config.replace()

    def init(params: PyTree) -> AverageState:
        # As published an average starts at zero, not at the parameters; the dynamic decay soon makes up for it.
        # It is at least single precision: in half precision a step of 1 - 0.999 is lost.
        inner = optimizer.init(params)
        trained = trained_part(params, optimizer_state=inner)
        average = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.promote_types(p.dtype, jnp.float32)), trained)
        return AverageState(jnp.zeros([], jnp.int32), average, inner)

    def update(
        updates: PyTree, state: AverageState, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, AverageState]:
        updates, inner = optax.with_extra_args_support(optimizer).update(updates, state.optimizer, params, **extra)
        count = optax.safe_increment(state.count)
        decay = average_decay(count, config=config)
        average = jax.tree.map(
            lambda a, p: a - (1 - decay).astype(a.dtype) * (a - p.astype(a.dtype)),
            state.average,
            trained_part(optax.apply_updates(params, updates), optimizer_state=inner),
        )
        return updates, AverageState(count, average, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def average_decay(count: Array, *, config: EMAConfig) -> Array:
    """Returns the share of an average that an update leaves in it.

    Args:
        count: How many updates there were, this one included.
    """
    x = jnp.asarray(count - config.start_step, jnp.float32)
    decay = jnp.full(x.shape, config.average_decay, jnp.float32)
    if config.dynamic_decay:
        decay = jnp.minimum(decay, (1 + x) / (10 + x))
    return jnp.where(x < 0, 0, decay)


def average_weights(params: PyTree, *, optimizer_state: PyTree) -> PyTree:
    """Returns the parameters to evaluate: their averages, or themselves where there are none (yet).

    Of frozen parameters there are none.
    """
    nodes = jax.tree.leaves(optimizer_state, is_leaf=lambda node: isinstance(node, AverageState))
    state = next((node for node in nodes if isinstance(node, AverageState)), None)
    return params if state is None else _averages(params, state.count, state.average)


@jax.jit
def _averages(params: PyTree, count: Array, average: PyTree) -> PyTree:
    return jax.tree.map(lambda p, a: p if a is None else jnp.where(count > 0, a.astype(p.dtype), p), params, average)
