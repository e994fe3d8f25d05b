"""Rescaled gradients as Keras computes them, where optax puts the epsilon or the bias correction elsewhere.

The states are optax's own, so that its tools find `mu` and `nu` in them.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trellis.aliases import Array, PyTree


def scale_by_keras_adam(*, b1: float, b2: float, eps: float, amsgrad: bool = False) -> optax.GradientTransformation:
    """Returns Adam with its bias corrections in the learning rate: m · √(1 - b2ᵗ) / (1 - b1ᵗ) / (√v + eps).

    In optax the epsilon is added to the corrected √v, which in the first steps makes it up to 30 times smaller. And
    the greatest v of AMSGrad is that of the uncorrected ones.
    """

    def init(params: PyTree) -> Any:
        # Zeros of its own for each: an array that is in a state twice cannot be donated.
        zeros = optax.tree.zeros_like
        count = jnp.zeros([], jnp.int32)
        if amsgrad:
            return optax.ScaleByAmsgradState(count, mu=zeros(params), nu=zeros(params), nu_max=zeros(params))
        return optax.ScaleByAdamState(count, mu=zeros(params), nu=zeros(params))

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        count = optax.safe_increment(state.count)
        mu = _moment(updates, state.mu, b1, 1)
        nu = _moment(updates, state.nu, b2, 2)
        greatest = jax.tree.map(jnp.maximum, state.nu_max, nu) if amsgrad else nu
        factor = jnp.sqrt(_one_minus_power(b2, count)) / _one_minus_power(b1, count)
        scaled = jax.tree.map(lambda m, v: factor.astype(m.dtype) * m / (jnp.sqrt(v) + eps), mu, greatest)
        if amsgrad:
            return scaled, optax.ScaleByAmsgradState(count, mu=mu, nu=nu, nu_max=greatest)
        return scaled, optax.ScaleByAdamState(count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def scale_by_keras_rss(*, initial_accumulator_value: float, eps: float) -> optax.GradientTransformation:
    """Returns Adagrad with the epsilon outside the root: g / (√Σg² + eps)."""

    def init(params: PyTree) -> Any:
        return optax.ScaleByRssState(optax.tree.full_like(params, initial_accumulator_value))

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        total = jax.tree.map(lambda g, t: t + jnp.square(g).astype(t.dtype), updates, state.sum_of_squares)
        scaled = jax.tree.map(lambda g, t: g / (jnp.sqrt(t) + eps), updates, total)
        return scaled, optax.ScaleByRssState(total)

    return optax.GradientTransformation(init, update)


def scale_by_keras_stddev(*, decay: float, eps: float, eps_in_sqrt: bool) -> optax.GradientTransformation:
    """Returns centred RMSprop: g / √(v - m²), the variance never below zero.

    A gradient that stays the same has no variance; rounded, that is a negative number, whose root is NaN in optax and
    in Keras.
    """

    def init(params: PyTree) -> Any:
        return optax.ScaleByRStdDevState(mu=optax.tree.zeros_like(params), nu=optax.tree.zeros_like(params))

    def scale(g: Array, m: Array, v: Array) -> Array:
        variance = jnp.maximum(v - jnp.square(m), 0)
        return g / (jnp.sqrt(variance + eps) if eps_in_sqrt else jnp.sqrt(variance) + eps)

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        mu, nu = _moment(updates, state.mu, decay, 1), _moment(updates, state.nu, decay, 2)
        return jax.tree.map(scale, updates, mu, nu), optax.ScaleByRStdDevState(mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


class FactoredSquares(NamedTuple):
    """Means of squared gradients: of matrices those of rows and columns, of all else those of elements."""

    count: Array  # type: ignore[assignment]  # the name of a tuple's method
    rows: PyTree
    columns: PyTree
    elements: PyTree


def scale_by_keras_factored_rms(*, decay: float, eps: float) -> optax.GradientTransformation:
    """Returns Adafactor's scaling, with the last two axes factored whatever their size.

    In optax it is the two longest axes, and only long ones.

    Args:
        decay: A negative power of the step, by which what is new counts less and less.
    """

    def init(params: PyTree) -> FactoredSquares:
        def zeros(param: Array, shape: tuple[int, ...], *, used: bool) -> Array:
            return jnp.zeros(shape if used else (), param.dtype)

        return FactoredSquares(
            count=jnp.zeros([], jnp.int32),
            rows=jax.tree.map(lambda p: zeros(p, p.shape[:-1], used=p.ndim > 1), params),
            columns=jax.tree.map(lambda p: zeros(p, (*p.shape[:-2], *p.shape[-1:]), used=p.ndim > 1), params),
            elements=jax.tree.map(lambda p: zeros(p, p.shape, used=p.ndim < 2), params),
        )

    def update(updates: PyTree, state: FactoredSquares, params: PyTree = None) -> tuple[PyTree, FactoredSquares]:
        count = optax.safe_increment(state.count)
        share = jnp.asarray(count, jnp.float32) ** decay

        def mean(old: Array, grad: Array, *, axis: int | None, used: bool) -> Array:
            if not used:
                return old
            square = jnp.square(grad) + eps
            new = square if axis is None else jnp.mean(square, axis=axis)
            return ((1 - share) * old + share * new).astype(old.dtype)

        rows = jax.tree.map(lambda o, g: mean(o, g, axis=-1, used=g.ndim > 1), state.rows, updates)
        columns = jax.tree.map(lambda o, g: mean(o, g, axis=-2, used=g.ndim > 1), state.columns, updates)
        elements = jax.tree.map(lambda o, g: mean(o, g, axis=None, used=g.ndim < 2), state.elements, updates)
        scaled = jax.tree.map(_by_factors, updates, rows, columns, elements)
        return scaled, FactoredSquares(count, rows, columns, elements)

    return optax.GradientTransformation(init, update)


def _by_factors(grad: Array, row: Array, column: Array, element: Array) -> Array:
    if grad.ndim < 2:
        return grad * jax.lax.rsqrt(element)
    # Two roots, not the root of a product: squares of 1e-30 and less would vanish in it.
    share = row / jnp.mean(row, axis=-1, keepdims=True)
    return grad * jax.lax.rsqrt(share)[..., None] * jax.lax.rsqrt(column)[..., None, :]


def _moment(updates: PyTree, moment: PyTree, decay: float, order: int) -> PyTree:
    return jax.tree.map(lambda g, m: (decay * m + (1 - decay) * g**order).astype(m.dtype), updates, moment)


def _one_minus_power(share: float, count: Array) -> Array:
    # In float32, 1 - 0.999 is wrong in the fifth digit; expm1 is not.
    return -jnp.expm1(jnp.asarray(count, jnp.float32) * (math.log(share) if share else -math.inf))
