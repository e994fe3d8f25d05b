"""A loss scale, which keeps the small gradients of float16 from vanishing, as a part of the optimizer's state."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trellis.aliases import Array, PyTree
from trellis.errors import ArgumentError

_FIRST_SCALE = 2.0**15
_N_STEPS_TO_DOUBLE = 2000


class LossScaleState(NamedTuple):
    """The state of an optimizer whose loss is scaled, and so part of every checkpoint file."""

    scale: Array
    n_good_steps: Array
    """How many updates in a row were finite since the scale last changed; stays 0 if the scale is fixed."""
    optimizer: PyTree
    """The state of the optimizer that updates."""


def scale_loss(
    optimizer: optax.GradientTransformation, *, loss_scale: Literal["dynamic"] | float | None = None
) -> optax.GradientTransformation:
    """Returns an optimizer that has the loss scaled while gradients are computed, and leaves out bad updates.

    Its gradients are those that a training loop has scaled back. If one is not finite, nothing is updated: neither
    parameters nor averages, nor the count that a schedule goes by.

    Example:
        TrainTask(apply=Precision("float16").applied_to(model.apply), optimizer=scale_loss(optax.adamw(1e-3)), …)

    Args:
        loss_scale: A number, or the default `dynamic`: 2**15 at first, half of it after a bad update, twice as much
            after 2000 good ones in a row.
    """
    is_dynamic = loss_scale is None or loss_scale == "dynamic"
    first = _FIRST_SCALE if loss_scale is None or loss_scale == "dynamic" else float(loss_scale)
    if not 0 < first < float("inf"):
        raise ArgumentError(f"loss_scale is {loss_scale}. Give a number above 0, such as 128, or 'dynamic'.")

    def init(params: PyTree) -> LossScaleState:
        return LossScaleState(jnp.float32(first), jnp.int32(0), optimizer.init(params))

    def update(
        updates: PyTree, state: LossScaleState, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, LossScaleState]:
        is_good = all_finite(updates)
        updates, inner = optax.with_extra_args_support(optimizer).update(updates, state.optimizer, params, **extra)
        updates = optax.tree.where(is_good, updates, optax.tree.zeros_like(updates))
        inner = optax.tree.where(is_good, inner, state.optimizer)
        scale, n_good_steps = _adapted(state, is_good) if is_dynamic else (state.scale, state.n_good_steps)
        return updates, LossScaleState(scale, n_good_steps, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def current_loss_scale(optimizer_state: PyTree) -> Array | None:
    """Returns the scale of the next step's loss; None if the optimizer has none."""
    nodes = jax.tree.leaves(optimizer_state, is_leaf=lambda node: isinstance(node, LossScaleState))
    return next((node.scale for node in nodes if isinstance(node, LossScaleState)), None)


def all_finite(tree: PyTree) -> Array:
    """Returns whether a tree holds neither infinities nor what is not a number."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)] or [jnp.bool(True)]).all()


def _adapted(state: LossScaleState, is_good: Array) -> tuple[Array, Array]:
    n_good_steps = jnp.where(is_good, state.n_good_steps + 1, 0)
    is_doubled = n_good_steps >= _N_STEPS_TO_DOUBLE
    doubled = jnp.where(jnp.isfinite(2 * state.scale), 2 * state.scale, state.scale)
    halved = jnp.maximum(state.scale / 2, 1)
    scale = jnp.where(is_good, jnp.where(is_doubled, doubled, state.scale), halved)
    return scale, jnp.where(is_doubled, 0, n_good_steps)
