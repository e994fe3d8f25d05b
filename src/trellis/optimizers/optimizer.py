"""Optimizers after their configs: optax transformations with the published arithmetic."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from trellis.aliases import Array, PyTree
from trellis.config import Config, raise_if_any
from trellis.optimizers.averaging import average_parameters
from trellis.optimizers.configs import (
    AdafactorConfig,
    AdafactorKerasConfig,
    AdagradConfig,
    AdamConfig,
    AdamWeightDecayConfig,
    AdamWeightDecayExperimentalConfig,
    GradientClipConfig,
    LAMBConfig,
    LARSConfig,
    OptimizationConfig,
    RMSPropConfig,
    SGDConfig,
    SGDExperimentalConfig,
)
from trellis.optimizers.parameter_names import Mask, named_mask
from trellis.optimizers.requirements import OPTIMIZER_CONFIG, optimization_problems
from trellis.optimizers.scaling import (
    scale_by_keras_adam,
    scale_by_keras_factored_rms,
    scale_by_keras_rss,
    scale_by_keras_stddev,
)
from trellis.optimizers.schedule import build_schedule
from trellis.registry import Registry

_KERAS_EPSILON = 1e-7
"""What Keras takes for an epsilon of 0."""


class UpdateRule(Protocol):
    """Builds an optimizer, apart from clipping and averaging, after its config."""

    def __call__(self, config: Any, schedule: optax.Schedule, /) -> optax.GradientTransformation:
        """Returns a transformation from gradients to what is to be added to the parameters."""


_rules: Registry[UpdateRule] = Registry("optimizer", advice="Register one with register_optimizer_cls.")


def register_optimizer_cls(config_cls: type) -> Callable[[UpdateRule], UpdateRule]:
    """Returns a decorator that makes a function the builder for optimizer configs of a class and its subclasses.

    Example:
        @register_optimizer_cls(LionConfig)
        def lion(config, schedule):
            return optax.lion(schedule, b1=config.beta_1)
    """
    return _rules.register(config_cls)


def build_optimizer(
    config: OptimizationConfig, *, n_steps: int | None, path: str = OPTIMIZER_CONFIG
) -> optax.GradientTransformation:
    """Returns the optimizer: clipping, then its rule with the learning rate of each step, then averaging.

    Args:
        n_steps: The length of the run: how long a decay is whose own length is null.
        path: Where the config is, to be named in errors.

    Example:
        optimizer = build_optimizer(config.trainer.optimizer_config, n_steps=config.trainer.train_steps)
    """
    raise_if_any(optimization_problems(config, n_steps=n_steps, path=path))
    config = config.replace()
    rule = config.optimizer.get()
    schedule = build_schedule(config, n_steps=n_steps, path=path)
    optimizer = optax.chain(_clipping(rule), _rules.get(type(rule))(rule, schedule))
    return optimizer if config.ema is None else average_parameters(optimizer, config=config.ema)


def _clipping(config: Config) -> optax.GradientTransformation:
    if not isinstance(config, GradientClipConfig):
        return optax.identity()
    # The published adamw clips on each replica, before gradients are summed; here it is the gradient of the whole
    # batch, so that the number of devices does not matter.
    own = config.gradient_clip_norm if isinstance(config, AdamWeightDecayConfig) else None
    return optax.chain(
        optax.clip_by_global_norm(own) if own else optax.identity(),
        optax.clip(config.clipvalue) if config.clipvalue else optax.identity(),
        _clip_each_by_norm(config.clipnorm) if config.clipnorm else optax.identity(),
        optax.clip_by_global_norm(config.global_clipnorm) if config.global_clipnorm else optax.identity(),
    )


def _clip_each_by_norm(limit: float) -> optax.GradientTransformation:
    def clip(grads: PyTree, params: PyTree) -> PyTree:
        return jax.tree.map(
            lambda g: g * (limit / jnp.maximum(jnp.linalg.norm(g.ravel()), limit)).astype(g.dtype), grads
        )

    return optax.stateless(clip)


@register_optimizer_cls(SGDConfig)
@register_optimizer_cls(SGDExperimentalConfig)
def _sgd(config: SGDConfig | SGDExperimentalConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    # The learning rate is part of the momentum: a step keeps the size that it had when it was taken.
    return optax.chain(optax.scale_by_learning_rate(schedule), _momentum(config.momentum, nesterov=config.nesterov))


@register_optimizer_cls(AdamConfig)
def _adam(config: AdamConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(_adam_direction(config), optax.scale_by_learning_rate(schedule))


@register_optimizer_cls(AdamWeightDecayConfig)
def _adamw(config: AdamWeightDecayConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    decayed = named_mask(include=config.include_in_weight_decay, exclude=config.exclude_from_weight_decay)
    return optax.chain(
        _adam_direction(config),
        optax.add_decayed_weights(config.weight_decay_rate, mask=decayed),
        optax.scale_by_learning_rate(schedule),
    )


@register_optimizer_cls(AdamWeightDecayExperimentalConfig)
def _adamw_experimental(
    config: AdamWeightDecayExperimentalConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    return optax.chain(
        _adam_direction(config),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )


@register_optimizer_cls(LAMBConfig)
def _lamb(config: LAMBConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    # Unlike Keras's Adam, LAMB corrects both moments before the epsilon is added, as optax does.
    return optax.chain(
        optax.scale_by_adam(b1=config.beta_1, b2=config.beta_2, eps=config.epsilon or _KERAS_EPSILON),
        optax.add_decayed_weights(config.weight_decay_rate, mask=named_mask(exclude=config.exclude_from_weight_decay)),
        optax.masked(optax.scale_by_trust_ratio(), _adapted(config)),
        optax.scale_by_learning_rate(schedule),
    )


@register_optimizer_cls(LARSConfig)
def _lars(config: LARSConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    decay = optax.add_decayed_weights(
        config.weight_decay_rate, mask=named_mask(exclude=config.exclude_from_weight_decay)
    )
    adapt = optax.masked(optax.scale_by_trust_ratio(trust_coefficient=config.eeta), _adapted(config))
    momentum = _momentum(config.momentum, nesterov=config.nesterov)
    scale = optax.scale_by_learning_rate(schedule)
    return optax.chain(decay, *((adapt, scale, momentum) if config.classic_momentum else (momentum, adapt, scale)))


@register_optimizer_cls(RMSPropConfig)
def _rmsprop(config: RMSPropConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    # TensorFlow's kernel for RMSprop with momentum has the epsilon in the root, and Keras's own code for the rest not.
    eps, inside = config.epsilon or _KERAS_EPSILON, config.momentum > 0
    if config.centered:
        scale = scale_by_keras_stddev(decay=config.rho, eps=eps, eps_in_sqrt=inside)
    else:
        scale = optax.scale_by_rms(decay=config.rho, eps=eps, eps_in_sqrt=inside)
    return optax.chain(scale, optax.scale_by_learning_rate(schedule), _momentum(config.momentum))


@register_optimizer_cls(AdagradConfig)
def _adagrad(config: AdagradConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    start, eps = config.initial_accumulator_value, config.epsilon or _KERAS_EPSILON
    return optax.chain(
        scale_by_keras_rss(initial_accumulator_value=start, eps=eps), optax.scale_by_learning_rate(schedule)
    )


@register_optimizer_cls(AdafactorConfig)
def _adafactor(config: AdafactorConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    # Published without an implementation. The fields are those of Flax's Adafactor, which optax's parts make up: the
    # momentum has the learning rate in it, and the decay of weights does not.
    decayed = None if config.include_in_weight_decay is None else _only(config.include_in_weight_decay)
    return optax.chain(
        optax.scale_by_factored_rms(
            factored=config.factored,
            decay_rate=config.decay_rate,
            step_offset=config.step_offset,
            min_dim_size_to_factor=config.min_dim_size_to_factor,
            epsilon=config.epsilon1,
        ),
        optax.clip_by_block_rms(config.clipping_threshold) if config.clipping_threshold else optax.identity(),
        optax.scale_by_learning_rate(schedule, flip_sign=False),
        optax.scale_by_param_block_rms(config.epsilon2) if config.multiply_by_parameter_scale else optax.identity(),
        optax.ema(config.beta1, debias=False) if config.beta1 else optax.identity(),
        optax.add_decayed_weights(config.weight_decay or 0.0, mask=decayed),
        optax.scale(-1),
    )


@register_optimizer_cls(AdafactorKerasConfig)
def _adafactor_keras(config: AdafactorKerasConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    def relative(count: Array) -> Array:
        return jnp.minimum(schedule(count), jax.lax.rsqrt(jnp.asarray(count + 1, jnp.float32)))

    # Keras's own code bounds the rate by 1 / √step even where relative_step is false, against what it documents.
    return optax.chain(
        scale_by_keras_factored_rms(decay=config.beta_2_decay, eps=config.epsilon_1),
        optax.clip_by_block_rms(config.clip_threshold),
        optax.scale_by_param_block_rms(config.epsilon_2),
        optax.scale_by_learning_rate(relative if config.relative_step else schedule),
    )


class _Adam(Protocol):
    beta_1: float
    beta_2: float
    epsilon: float
    amsgrad: bool


def _adam_direction(config: _Adam) -> optax.GradientTransformation:
    return scale_by_keras_adam(
        b1=config.beta_1, b2=config.beta_2, eps=config.epsilon or _KERAS_EPSILON, amsgrad=config.amsgrad
    )


def _momentum(momentum: float, *, nesterov: bool = False) -> optax.GradientTransformation:
    return optax.trace(momentum, nesterov=nesterov) if momentum else optax.identity()


def _adapted(config: LAMBConfig | LARSConfig) -> Mask:
    # An empty list is none, as published.
    return named_mask(exclude=config.exclude_from_layer_adaptation or config.exclude_from_weight_decay)


def _only(patterns: list[str]) -> Mask:
    return named_mask(include=patterns, exclude=[""])
