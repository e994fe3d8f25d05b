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


class ForwardPass(Protocol):
    """A model run on a batch and measured."""

    def __call__(
        self, params: PyTree, model_state: PyTree, batch: Batch, index: Array | None, /
    ) -> tuple[PyTree, dict[str, Metric]]:
        """The new model state, and metrics among which `loss` is; `index` is that of the part, None for the whole."""


def compute_gradients(
    forward: ForwardPass, *, params: PyTree, model_state: PyTree, batch: Batch, n_parts: int = 1
) -> tuple[PyTree, PyTree, dict[str, Metric]]:
    """The gradients of the mean loss, the new model state, and the metrics.

    In parts the gradients of the totals are added up and divided by the whole weight: what one big batch would give.
    """
    if n_parts > 1:
        return _in_parts(forward, params, model_state, batch, n_parts)

    def mean_loss(params: PyTree) -> tuple[Array, Any]:
        new_state, seen = forward(params, model_state, batch, None)
        loss = seen["loss"]
        mean = loss.total / _divisor(loss.weight) if isinstance(loss, Mean) else loss.compute()
        return mean, (new_state, seen)

    grads, (model_state, seen) = jax.grad(mean_loss, has_aux=True)(params)
    return grads, model_state, seen


def update_state(
    state: TrainState,
    *,
    forward: ForwardPass,
    optimizer: optax.GradientTransformation,
    batch: Batch,
    n_parts: int = 1,
) -> tuple[TrainState, StepOutput]:
    """The state after one update, and its loss, metrics and gradients."""
    grads, model_state, seen = compute_gradients(
        forward, params=state.params, model_state=state.model_state, batch=batch, n_parts=n_parts
    )
    updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
    params = optax.apply_updates(state.params, updates)
    state = TrainState(state.step, params, model_state, optimizer_state)
    return state, StepOutput(seen.pop("loss"), seen, grads)


def _in_parts(
    forward: ForwardPass, params: PyTree, model_state: PyTree, batch: Batch, n_parts: int
) -> tuple[PyTree, PyTree, dict[str, Metric]]:
    size = batch_size(batch)
    if size % n_parts:
        raise ArgumentError(f"A batch of {size} examples cannot be cut into n_microbatches={n_parts} equal parts.")

    def total_loss(params: PyTree, model_state: PyTree, part: Batch, index: Array) -> tuple[Array, Any]:
        model_state, seen = forward(params, model_state, part, index)
        if not isinstance(seen["loss"], Mean):
            raise ModelError("With n_microbatches the loss is a scalar or a trellis.Mean, so that its parts add up.")
        return seen["loss"].total, (model_state, seen)

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
    divisor = _divisor(totals["loss"].weight)
    return jax.tree.map(lambda grad: grad / divisor.astype(grad.dtype), grads), model_state, totals


def _divisor(weight: Array) -> Array:
    # A batch in which everything is masked teaches nothing, instead of NaN.
    return jnp.where(weight == 0, 1, weight)
