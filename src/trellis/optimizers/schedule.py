"""Learning rates as functions of the step, after their configs."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
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
from trellis.optimizers.requirements import WHOLE_RUN, schedule_problems
from trellis.registry import Registry

Rate = Callable[[Array], Array]
Value = TypeVar("Value")

_rates: Registry[Callable[[Any, Array], Array]] = Registry("learning rate")
_warmups: Registry[Callable[[Any, Array, Array], Array]] = Registry("warm-up")


def build_schedule(config: OptimizationConfig, *, n_steps: int | None) -> optax.Schedule:
    """Returns the learning rate as a function of the number of completed steps.

    It is the rate that the next update uses, warm-up included, and can be traced.

    Args:
        n_steps: The length of the run, which a decay takes if its own length is null.

    Example:
        >>> rate = {"type": "polynomial", "polynomial": {"initial_learning_rate": 0.1, "end_learning_rate": 0.0}}
        >>> schedule = build_schedule(OptimizationConfig(learning_rate=rate), n_steps=10_000)
        >>> round(float(schedule(5_000)), 6)
        0.05
    """
    raise_if_any(schedule_problems(config, n_steps=n_steps))
    config = config.replace()  # A copy: what is built does not change when the config does.
    decay = config.learning_rate.get()
    length = WHOLE_RUN.get(_set(config.learning_rate.type))
    if length and vars(decay)[length] is None:
        decay.override({length: n_steps})
    rate: Rate = partial(_rates.get(type(decay)), decay)
    warmup = config.warmup.get()
    if warmup is not None and warmup.warmup_steps > 0:
        rate = _warmed_up(rate, warmup)
    rule = config.optimizer.get()
    return _decayed(rate, rule.decay) if isinstance(rule, SGDConfig) and rule.decay else rate


@_rates.register(ConstantLrConfig)
def _constant(config: ConstantLrConfig, step: Array) -> Array:
    return jnp.full(jnp.shape(step), config.learning_rate, jnp.float32)


@_rates.register(StepwiseLrConfig)
def _stepwise(config: StepwiseLrConfig, step: Array) -> Array:
    boundaries = np.array(config.boundaries, np.int32)
    return jnp.array(config.values, jnp.float32)[jnp.searchsorted(boundaries, step - config.offset, side="left")]


@_rates.register(ExponentialLrConfig)
def _exponential(config: ExponentialLrConfig, step: Array) -> Array:
    n_periods = _since(config.offset, step) / _set(config.decay_steps)
    n_decays = jnp.floor(n_periods) if config.staircase else n_periods
    return _set(config.initial_learning_rate) * _set(config.decay_rate) ** n_decays


@_rates.register(PolynomialLrConfig)
def _polynomial(config: PolynomialLrConfig, step: Array) -> Array:
    start = _set(config.initial_learning_rate)
    end = config.end_learning_rate
    period = _set(config.decay_steps)
    # Not clamped from below, as published: before its offset a decay is above its start.
    x = _since(config.offset, step)
    length = period * jnp.maximum(jnp.ceil(x / period), 1) if config.cycle else period
    # Not 1 - x / length, which compiled need not be zero at the end.
    return (start - end) * ((length - jnp.minimum(x, length)) / length) ** config.power + end


@_rates.register(CosineLrConfig)
def _cosine(config: CosineLrConfig, step: Array) -> Array:
    length = _set(config.decay_steps)
    done = jnp.minimum(_since(config.offset, step), length) / length
    return _set(config.initial_learning_rate) * ((1 - config.alpha) * _half_cosine(done) + config.alpha)


@_rates.register(CosineRestartsLrConfig)
def _cosine_restarts(config: CosineRestartsLrConfig, step: Array) -> Array:
    growth = config.t_mul

    def begin(period: Array) -> Array:
        return period if growth == 1 else (growth**period - 1) / (growth - 1)

    # Before its offset the first period has not begun; the published formula has no value there.
    x = jnp.maximum(_since(config.offset, step), 0) / _set(config.first_decay_steps)
    # Periods that become shorter have an end, after which the published formula has no value either.
    has_ended = x * (1 - growth) >= 1
    x = jnp.where(has_ended, 0, x)
    period = jnp.floor(x if growth == 1 else jnp.log1p(x * (growth - 1)) / math.log(growth))
    # The logarithm is rounded, so that a period could begin a step too late or too soon.
    period = period + (x >= begin(period + 1)) - (x < begin(period))
    done = (x - begin(period)) / growth**period
    height = (1 - config.alpha) * config.m_mul**period
    share = jnp.where(has_ended, config.alpha, height * _half_cosine(done) + config.alpha)
    return _set(config.initial_learning_rate) * share


@_rates.register(DirectPowerLrConfig)
def _power(config: DirectPowerLrConfig, step: Array) -> Array:
    return _set(config.initial_learning_rate) * jnp.maximum(_since(0, step), 1) ** config.power


@_rates.register(PowerAndLinearDecayLrConfig)
def _power_linear(config: PowerAndLinearDecayLrConfig, step: Array) -> Array:
    total = _set(config.total_decay_steps)
    linear_steps = total * config.linear_decay_fraction
    x = _since(config.offset, step)
    power = _set(config.initial_learning_rate) * jnp.maximum(x, 1) ** config.power
    return power if linear_steps <= 0 else jnp.maximum(power * jnp.minimum(1, (total - x) / linear_steps), 0)


@_rates.register(PowerDecayWithOffsetLrConfig)
def _power_with_offset(config: PowerDecayWithOffsetLrConfig, step: Array) -> Array:
    before = config.pre_offset_learning_rate
    x = _since(config.offset, step)
    power = _set(config.initial_learning_rate) * jnp.maximum(x, 1) ** config.power
    return jnp.where(x > 0, jnp.minimum(power, before), before)


@_rates.register(StepCosineLrConfig)
def _step_cosine(config: StepCosineLrConfig, step: Array) -> Array:
    values = _set(config.values)
    # The first value before the first boundary and the last after the last, where the published formula divides
    # by zero: so the rate has a value everywhere, and no jump.
    x = _since(config.offset, step)
    level = jnp.full(jnp.shape(step), values[0], jnp.float32)
    for (begin, end), (high, low) in zip(pairwise(_set(config.boundaries)), pairwise(values), strict=True):
        done = (jnp.minimum(x, end) - begin) / (end - begin)
        level = jnp.where(x >= begin, (high - low) * _half_cosine(done) + low, level)
    return level


def _warmed_up(rate: Rate, config: LinearWarmupConfig | PolynomialWarmupConfig) -> Rate:
    """Returns a rate whose first steps are a warm-up, which ends at what the decay has come to by then."""
    length = _set(config.warmup_steps)
    warmup = _warmups.get(type(config))

    def warm(step: Array) -> Array:
        return jnp.where(step < length, warmup(config, rate(jnp.int32(length)), step), rate(step))

    return warm


@_warmups.register(LinearWarmupConfig)
def _linear_warmup(config: LinearWarmupConfig, end: Array, step: Array) -> Array:
    start = config.warmup_learning_rate
    return start + _since(0, step) / _set(config.warmup_steps) * (end - start)


@_warmups.register(PolynomialWarmupConfig)
def _polynomial_warmup(config: PolynomialWarmupConfig, end: Array, step: Array) -> Array:
    return end * (jnp.maximum(_since(0, step), 1) / _set(config.warmup_steps)) ** config.power


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
