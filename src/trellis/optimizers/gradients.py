"""Gradients of a loss that is a total and a weight: of a whole batch at once, or summed over its parts."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from trellis.aliases import Array, Batch, PyTree
from trellis.batch import batch_size
from trellis.errors import ArgumentError, ModelError
from trellis.metrics import Mean, Metric, merge, zeros
from trellis.model import StepOutput, TrainState
from trellis.optimizers.loss_scale import all_finite, current_loss_scale, keep_unless


class ForwardPass(Protocol):
    """A model run on a batch and measured."""

    def __call__(
        self, params: PyTree, model_state: PyTree, batch: Batch, index: Array | None, /
    ) -> tuple[PyTree, dict[str, Metric]]:
        """The new model state, and metrics among which `loss` is; `index` is that of the part, None for the whole."""


def compute_gradients(
    forward: ForwardPass,
    *,
    params: PyTree,
    model_state: PyTree,
    batch: Batch,
    n_parts: int = 1,
    loss_scale: Array | None = None,
) -> tuple[PyTree, PyTree, dict[str, Metric]]:
    """The gradients of the mean loss, the new model state, and the metrics.

    In parts the gradients of the totals are added up and divided by the whole weight: what one big batch would give.

    Args:
        loss_scale: What the loss is multiplied by on the way back, and the gradients are divided by in the end.
    """
    if n_parts > 1:
        return _in_parts(forward, params, model_state, batch, n_parts, loss_scale)

    def mean_loss(params: PyTree) -> tuple[Array, Any]:
        new_state, seen = forward(params, model_state, batch, None)
        loss = seen["loss"]
        mean = loss.total / _divisor(loss.weight) if isinstance(loss, Mean) else loss.compute()
        return _scaled(mean, loss_scale), (new_state, seen)

    grads, (model_state, seen) = jax.grad(mean_loss, has_aux=True)(params)
    return grads if loss_scale is None else _divided(grads, loss_scale), model_state, seen


def update_state(
    state: TrainState,
    *,
    forward: ForwardPass,
    optimizer: optax.GradientTransformation,
    batch: Batch,
    n_parts: int = 1,
) -> tuple[TrainState, StepOutput]:
    """The state after one update, and its loss, metrics and gradients.

    With a loss scale (`scale_loss`) the metrics tell it, and the share of updates that were left out.
    """
    scale = current_loss_scale(state.optimizer_state)
    given = {"params": state.params, "model_state": state.model_state, "batch": batch}
    grads, model_state, seen = compute_gradients(forward, **given, n_parts=n_parts, loss_scale=scale)
    update = optax.with_extra_args_support(optimizer).update
    updates, optimizer_state = update(grads, state.optimizer_state, state.params, step=state.step)
    params = optax.apply_updates(state.params, updates)
    loss = seen.pop("loss")
    if scale is not None:
        is_good = all_finite(grads)
        model_state = keep_unless(is_good, model_state, state.model_state)
        one = jnp.float32(1)
        seen |= {"loss_scale": Mean(scale, one), "skipped_updates": Mean(jnp.float32(~is_good), one)}
    return TrainState(state.step, params, model_state, optimizer_state), StepOutput(loss, seen, grads)


def _in_parts(
    forward: ForwardPass,
    params: PyTree,
    model_state: PyTree,
    batch: Batch,
    n_parts: int,
    loss_scale: Array | None,
) -> tuple[PyTree, PyTree, dict[str, Metric]]:
    size = batch_size(batch)
    if size % n_parts:
        raise ArgumentError(f"A batch of {size} examples cannot be cut into n_microbatches={n_parts} equal parts.")

    def total_loss(params: PyTree, model_state: PyTree, part: Batch, index: Array) -> tuple[Array, Any]:
        model_state, seen = forward(params, model_state, part, index)
        if not isinstance(seen["loss"], Mean):
            raise ModelError("With n_microbatches the loss is a scalar or a trellis.Mean, so that its parts add up.")
        return _scaled(seen["loss"].total, loss_scale), (model_state, seen)

    def body(carry: tuple[Any, Any, Any], indexed: tuple[Array, Batch]) -> tuple[tuple[Any, Any, Any], None]:
        grads, model_state, totals = carry
        index, part = indexed
        more, (model_state, seen) = jax.grad(total_loss, has_aux=True)(params, model_state, part, index)
        return (jax.tree.map(jnp.add, grads, more), model_state, merge(totals, seen)), None

    # Every n-th example, not every n-th block: so each part is spread over all devices, as the whole is.
    parts = jax.tree.map(lambda leaf: leaf.reshape(size // n_parts, n_parts, *leaf.shape[1:]).swapaxes(0, 1), batch)
    first = jax.tree.map(lambda leaf: leaf[0], parts)
    seen = jax.eval_shape(total_loss, params, model_state, first, jnp.int32(0))[1][1]
    start = (jax.tree.map(jnp.zeros_like, params), model_state, zeros(seen))
    (grads, model_state, totals), _ = jax.lax.scan(body, start, (jnp.arange(n_parts), parts))
    return _divided(grads, _scaled(_divisor(totals["loss"].weight), loss_scale)), model_state, totals


def _divisor(weight: Array) -> Array:
    # A batch in which everything is masked teaches nothing, instead of NaN.
    return jnp.where(weight == 0, 1, weight)


def _scaled(loss: Array, loss_scale: Array | None) -> Array:
    return loss if loss_scale is None else loss * loss_scale


def _divided(grads: PyTree, divisor: Array) -> PyTree:
    return jax.tree.map(lambda grad: grad / divisor.astype(grad.dtype), grads)
