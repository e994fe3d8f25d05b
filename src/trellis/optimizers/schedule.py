"""Learning rates as functions of the step, after their configs."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
import optax

from trellis.aliases import Array
from trellis.config import raise_if_any
from trellis.optimizers.configs import (
    ConstantLrConfig,
    CosineLrConfig,
    CosineRestartsLrConfig,
    DirectPowerLrConfig,
    ExponentialLrConfig,
    LinearWarmupConfig,
    OptimizationConfig,
    PolynomialLrConfig,
    PolynomialWarmupConfig,
    PowerAndLinearDecayLrConfig,
    PowerDecayWithOffsetLrConfig,
    SGDConfig,
    StepCosineLrConfig,
    StepwiseLrConfig,
)
from trellis.optimizers.requirements import OPTIMIZER_CONFIG, schedule_problems
from trellis.registry import Registry

Rate = Callable[[Array], Array]
Value = TypeVar("Value")

_rates: Registry[Callable[[Any, int | None], Rate]] = Registry("learning rate")
_warmups: Registry[Callable[[Any, Rate], Rate]] = Registry("warm-up")


def build_schedule(config: OptimizationConfig, *, n_steps: int | None, path: str = OPTIMIZER_CONFIG) -> optax.Schedule:
    """Returns the learning rate as a function of the number of completed steps.

    It is the rate that the next update uses, warm-up included, and can be traced.

    Args:
        n_steps: The length of the run, which a decay takes if its own length is null.
        path: Where the config is, to be named in errors.

    Example:
        >>> rate = {"type": "polynomial", "polynomial": {"initial_learning_rate": 0.1, "end_learning_rate": 0.0}}
        >>> schedule = build_schedule(OptimizationConfig(learning_rate=rate), n_steps=10_000)
        >>> round(float(schedule(5_000)), 6)
        0.05
    """
    raise_if_any(schedule_problems(config, n_steps=n_steps, path=path))
    config = config.replace()  # A copy: what is built does not change when the config does.
    chosen = config.learning_rate.get()
    rate = _rates.get(type(chosen))(chosen, n_steps)
    warmup = config.warmup.get()
    if warmup is not None and warmup.warmup_steps > 0:
        rate = _warmups.get(type(warmup))(warmup, rate)
    rule = config.optimizer.get()
    return _decayed(rate, rule.decay) if isinstance(rule, SGDConfig) and rule.decay else rate


@_rates.register(ConstantLrConfig)
def _constant(config: ConstantLrConfig, n_steps: int | None) -> Rate:
    return lambda step: jnp.full(jnp.shape(step), config.learning_rate, jnp.float32)


@_rates.register(StepwiseLrConfig)
def _stepwise(config: StepwiseLrConfig, n_steps: int | None) -> Rate:
    boundaries = np.array(config.boundaries, np.int32)
    values = np.array(config.values, np.float32)
    return lambda step: jnp.asarray(values)[jnp.searchsorted(boundaries, step - config.offset, side="left")]


@_rates.register(ExponentialLrConfig)
def _exponential(config: ExponentialLrConfig, n_steps: int | None) -> Rate:
    start = _set(config.initial_learning_rate)
    factor = _set(config.decay_rate)
    length = _set(config.decay_steps)

    def rate(step: Array) -> Array:
        n_periods = _since(config.offset, step) / length
        return start * factor ** (jnp.floor(n_periods) if config.staircase else n_periods)

    return rate


@_rates.register(PolynomialLrConfig)
def _polynomial(config: PolynomialLrConfig, n_steps: int | None) -> Rate:
    start = _set(config.initial_learning_rate)
    end = config.end_learning_rate
    period = config.decay_steps or _set(n_steps)

    def rate(step: Array) -> Array:
        # Not clamped from below, as published: before its offset a decay is above its start.
        x = _since(config.offset, step)
        length = period * jnp.maximum(jnp.ceil(x / period), 1) if config.cycle else period
        # Not 1 - x / length, which compiled need not be zero at the end.
        return (start - end) * ((length - jnp.minimum(x, length)) / length) ** config.power + end

    return rate


@_rates.register(CosineLrConfig)
def _cosine(config: CosineLrConfig, n_steps: int | None) -> Rate:
    start = _set(config.initial_learning_rate)
    length = config.decay_steps or _set(n_steps)

    def rate(step: Array) -> Array:
        done = jnp.minimum(_since(config.offset, step), length) / length
        return start * ((1 - config.alpha) * _half_cosine(done) + config.alpha)

    return rate


@_rates.register(CosineRestartsLrConfig)
def _cosine_restarts(config: CosineRestartsLrConfig, n_steps: int | None) -> Rate:
    start = _set(config.initial_learning_rate)
    length = _set(config.first_decay_steps)
    growth = config.t_mul

    def begin(period: Array) -> Array:
        return period if growth == 1 else (growth**period - 1) / (growth - 1)

    def rate(step: Array) -> Array:
        # Before its offset the first period has not begun; the published formula has no value there.
        x = jnp.maximum(_since(config.offset, step), 0) / length
        period = jnp.floor(x if growth == 1 else jnp.log1p(x * (growth - 1)) / math.log(growth))
        # The logarithm is rounded, so that a period could begin a step too late or too soon.
        period = period + (x >= begin(period + 1)) - (x < begin(period))
        done = (x - begin(period)) / growth**period
        return start * ((1 - config.alpha) * config.m_mul**period * _half_cosine(done) + config.alpha)

    return rate


@_rates.register(DirectPowerLrConfig)
def _power(config: DirectPowerLrConfig, n_steps: int | None) -> Rate:
    start = _set(config.initial_learning_rate)
    return lambda step: start * jnp.maximum(_since(0, step), 1) ** config.power


@_rates.register(PowerAndLinearDecayLrConfig)
def _power_linear(config: PowerAndLinearDecayLrConfig, n_steps: int | None) -> Rate:
    start = _set(config.initial_learning_rate)
    total = _set(n_steps) if config.total_decay_steps is None else config.total_decay_steps
    linear_steps = total * config.linear_decay_fraction

    def rate(step: Array) -> Array:
        x = _since(config.offset, step)
        power = start * jnp.maximum(x, 1) ** config.power
        return power if linear_steps <= 0 else jnp.maximum(power * jnp.minimum(1, (total - x) / linear_steps), 0)

    return rate


@_rates.register(PowerDecayWithOffsetLrConfig)
def _power_with_offset(config: PowerDecayWithOffsetLrConfig, n_steps: int | None) -> Rate:
    start = _set(config.initial_learning_rate)
    before = config.pre_offset_learning_rate

    def rate(step: Array) -> Array:
        x = _since(config.offset, step)
        return jnp.where(x > 0, jnp.minimum(start * jnp.maximum(x, 1) ** config.power, before), before)

    return rate


@_rates.register(StepCosineLrConfig)
def _step_cosine(config: StepCosineLrConfig, n_steps: int | None) -> Rate:
    boundaries = _set(config.boundaries)
    values = _set(config.values)

    def rate(step: Array) -> Array:
        # The first value before the first boundary and the last after the last, where the published formula divides
        # by zero: so the rate has a value everywhere, and no jump.
        x = _since(config.offset, step)
        level = jnp.full(jnp.shape(step), values[0], jnp.float32)
        for index in range(len(values) - 1):
            begin, end = boundaries[index : index + 2]
            low, high = values[index + 1], values[index]
            done = (jnp.minimum(x, end) - begin) / (end - begin)
            level = jnp.where(x >= begin, (high - low) * _half_cosine(done) + low, level)
        return level

    return rate


@_warmups.register(LinearWarmupConfig)
def _linear_warmup(config: LinearWarmupConfig, rate: Rate) -> Rate:
    length = _set(config.warmup_steps)
    start = config.warmup_learning_rate

    def warm(step: Array) -> Array:
        # A warm-up takes the place of the decay's first steps and ends at what the decay has come to by then.
        line = start + _since(0, step) / length * (rate(jnp.int32(length)) - start)
        return jnp.where(step < length, line, rate(step))

    return warm


@_warmups.register(PolynomialWarmupConfig)
def _polynomial_warmup(config: PolynomialWarmupConfig, rate: Rate) -> Rate:
    length = _set(config.warmup_steps)

    def warm(step: Array) -> Array:
        curve = rate(jnp.int32(length)) * (jnp.maximum(_since(0, step), 1) / length) ** config.power
        return jnp.where(step < length, curve, rate(step))

    return warm


def _decayed(rate: Rate, decay: float) -> Rate:
    return lambda step: rate(step) / (1 + decay * _since(0, step))


def _since(offset: int, step: Array) -> Array:
    # Subtracted as integers: a float32 would round long runs.
    return jnp.asarray(step - offset, jnp.float32)


def _half_cosine(done: Array) -> Array:
    return 0.5 * (1 + jnp.cos(math.pi * done))


def _set(value: Value | None) -> Value:
    assert value is not None, "schedule_problems lets no null pass"
    return value
