"""Optimizers after their configs: optax transformations with the published arithmetic."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

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
from trellis.optimizers.groups import update_by_groups
from trellis.optimizers.parts import freeze_parameters
from trellis.optimizers.requirements import PLACE, optimization_problems, weight_decay_field
from trellis.optimizers.schedule import build_schedule
from trellis.registry import Registry

Patterns = Sequence[str] | None
Mask = Callable[[PyTree], PyTree]
"""From parameters to a tree of the same structure that says which are chosen."""

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
        >>> from dataclasses import dataclass
        >>> from trellis.optimizers import OptimizerConfig
        >>> @dataclass
        ... class LionConfig(GradientClipConfig):
        ...     beta_1: float = 0.9
        >>> @register_optimizer_cls(LionConfig)
        ... def lion(config: LionConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
        ...     return optax.lion(schedule, b1=config.beta_1)
        >>> @dataclass
        ... class MyOptimizerConfig(OptimizerConfig):
        ...     lion: LionConfig = LionConfig()
        >>> config = OptimizationConfig(optimizer=MyOptimizerConfig(type="lion"), learning_rate={"type": "constant"})
        >>> optimizer = build_optimizer(config, n_steps=100)
    """
    return _rules.register(config_cls)


def build_optimizer(config: OptimizationConfig, *, n_steps: int | None) -> optax.GradientTransformation:
    """Returns the optimizer: clipping, then its rule with the learning rate of each step, then averaging.

    Groups of parameters have rates of their own, and nothing of all that is done to frozen ones.

    Args:
        n_steps: The length of the run, which a decay takes if its own length is null.

    Example:
        >>> config = OptimizationConfig(optimizer={"type": "adamw"}, learning_rate={"type": "constant"})
        >>> state = build_optimizer(config, n_steps=100).init({"kernel": jnp.zeros(3)})
    """
    raise_if_any(optimization_problems(config, n_steps=n_steps))
    config = config.replace()
    rule = config.optimizer.get()
    schedule = build_schedule(config, n_steps=n_steps)
    build_rule = partial(_build_rule, rule, schedule)
    update = build_rule(1.0, None)
    if config.groups:
        update = update_by_groups(build_rule, groups=config.groups, place=f"{PLACE}.groups")
    optimizer = optax.chain(_clipping(rule), update)
    if config.ema is not None:
        optimizer = average_parameters(optimizer, config=config.ema)
    return freeze_parameters(optimizer, frozen=config.frozen, place=f"{PLACE}.frozen") if config.frozen else optimizer


def _build_rule(
    rule: Config, schedule: optax.Schedule, factor: float, weight_decay: float | None
) -> optax.GradientTransformation:
    """The rule of a group, from the factor of its learning rate and from its weight decay, None for the common one."""
    if weight_decay is not None:
        rule = rule.replace(**{str(weight_decay_field(rule)): weight_decay})
    scaled = schedule if factor == 1 else lambda count: factor * schedule(count)
    return _rules.get(type(rule))(rule, scaled)


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
    # The learning rate is part of the momentum: an earlier step keeps its size when the rate changes.
    return optax.chain(optax.scale_by_learning_rate(schedule), _momentum(config.momentum, nesterov=config.nesterov))


@register_optimizer_cls(AdamConfig)
def _adam(config: AdamConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(_scale_by_adam(config), optax.scale_by_learning_rate(schedule))


@register_optimizer_cls(AdamWeightDecayConfig)
def _adamw(config: AdamWeightDecayConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    decayed = _named_mask(include=config.include_in_weight_decay, exclude=config.exclude_from_weight_decay)
    return optax.chain(
        _scale_by_adam(config),
        optax.add_decayed_weights(config.weight_decay_rate, mask=decayed),
        optax.scale_by_learning_rate(schedule),
    )


@register_optimizer_cls(AdamWeightDecayExperimentalConfig)
def _adamw_experimental(
    config: AdamWeightDecayExperimentalConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    return optax.chain(
        _scale_by_adam(config),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )


@register_optimizer_cls(LAMBConfig)
def _lamb(config: LAMBConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    # Unlike Keras's Adam, LAMB corrects both moments before the epsilon is added, as optax does.
    return optax.chain(
        optax.scale_by_adam(b1=config.beta_1, b2=config.beta_2, eps=_epsilon(config)),
        optax.add_decayed_weights(config.weight_decay_rate, mask=_named_mask(exclude=config.exclude_from_weight_decay)),
        optax.masked(optax.scale_by_trust_ratio(), _adapted(config)),
        optax.scale_by_learning_rate(schedule),
    )


@register_optimizer_cls(LARSConfig)
def _lars(config: LARSConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    decay = optax.add_decayed_weights(
        config.weight_decay_rate, mask=_named_mask(exclude=config.exclude_from_weight_decay)
    )
    adapt = optax.masked(optax.scale_by_trust_ratio(trust_coefficient=config.eeta), _adapted(config))
    momentum = _momentum(config.momentum, nesterov=config.nesterov)
    scale = optax.scale_by_learning_rate(schedule)
    return optax.chain(decay, *((adapt, scale, momentum) if config.classic_momentum else (momentum, adapt, scale)))


@register_optimizer_cls(RMSPropConfig)
def _rmsprop(config: RMSPropConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    # TensorFlow's kernel for RMSprop with momentum has the epsilon in the root, and Keras's own code for the rest not.
    scale_by = _scale_by_stddev if config.centered else optax.scale_by_rms
    scale = scale_by(decay=config.rho, eps=_epsilon(config), eps_in_sqrt=config.momentum > 0)
    return optax.chain(scale, optax.scale_by_learning_rate(schedule), _momentum(config.momentum))


@register_optimizer_cls(AdagradConfig)
def _adagrad(config: AdagradConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(_scale_by_rss(config), optax.scale_by_learning_rate(schedule))


@register_optimizer_cls(AdafactorConfig)
def _adafactor(config: AdafactorConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    # Published without an implementation. The fields are those of Flax's Adafactor, which optax's parts make up: the
    # momentum has the learning rate in it, and the decay of weights does not.
    included = config.include_in_weight_decay
    decayed = None if included is None else _named_mask(include=included, exclude=[""])
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
        _scale_by_factored_rms(decay=config.beta_2_decay, eps=config.epsilon_1),
        optax.clip_by_block_rms(config.clip_threshold),
        optax.scale_by_param_block_rms(config.epsilon_2),
        optax.scale_by_learning_rate(relative if config.relative_step else schedule),
    )


def _momentum(momentum: float, *, nesterov: bool = False) -> optax.GradientTransformation:
    return optax.trace(momentum, nesterov=nesterov) if momentum else optax.identity()


def _adapted(config: LAMBConfig | LARSConfig) -> Mask:
    # An empty list is none, as published.
    return _named_mask(exclude=config.exclude_from_layer_adaptation or config.exclude_from_weight_decay)


def _named_mask(*, include: Patterns = None, exclude: Patterns = None) -> Mask:
    """Returns a mask that chooses all parameters but those whose names match `exclude` and do not match `include`.

    A name is a path such as `encoder/layer_0/attention/bias`, and a pattern is searched for in it.

    Example:
        >>> _named_mask(exclude=["bias"])({"dense": {"bias": 0.0, "kernel": 1.0}})
        {'dense': {'bias': False, 'kernel': True}}
    """

    def is_chosen(path: tuple[Any, ...], _: Array) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return _matches(name, include) or not _matches(name, exclude)

    return partial(jax.tree_util.tree_map_with_path, is_chosen)


def _matches(name: str, patterns: Patterns) -> bool:
    return any(re.search(pattern, name) for pattern in patterns or ())


# Gradients rescaled as Keras does it, where optax puts the epsilon or the bias correction elsewhere. The states are
# optax's own, so that its tools find `mu` and `nu` in them.


def _scale_by_adam(config: AdamConfig) -> optax.GradientTransformation:
    """Returns Adam with its bias corrections in the learning rate: m · √(1 - b2ᵗ) / (1 - b1ᵗ) / (√v + eps).

    In optax the epsilon is added to the corrected √v, which in the first steps makes it up to 30 times smaller. And
    the greatest v of AMSGrad is that of the uncorrected ones.
    """
    eps = _epsilon(config)

    def init(params: PyTree) -> Any:
        # Zeros of its own for each: an array that is in a state twice cannot be donated.
        zeros = optax.tree.zeros_like
        state = optax.ScaleByAdamState(jnp.zeros([], jnp.int32), mu=zeros(params), nu=zeros(params))
        return optax.ScaleByAmsgradState(*state, nu_max=zeros(params)) if config.amsgrad else state

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        count = optax.safe_increment(state.count)
        mu = _moment(updates, state.mu, config.beta_1, 1)
        nu = _moment(updates, state.nu, config.beta_2, 2)
        greatest = jax.tree.map(jnp.maximum, state.nu_max, nu) if config.amsgrad else nu
        factor = jnp.sqrt(_one_minus_power(config.beta_2, count)) / _one_minus_power(config.beta_1, count)
        scaled = jax.tree.map(lambda m, v: factor.astype(m.dtype) * m / (jnp.sqrt(v) + eps), mu, greatest)
        new = optax.ScaleByAdamState(count, mu=mu, nu=nu)
        return scaled, optax.ScaleByAmsgradState(*new, nu_max=greatest) if config.amsgrad else new

    return optax.GradientTransformation(init, update)


def _scale_by_rss(config: AdagradConfig) -> optax.GradientTransformation:
    """Returns Adagrad with the epsilon outside the root: g / (√Σg² + eps)."""
    eps = _epsilon(config)

    def init(params: PyTree) -> Any:
        return optax.ScaleByRssState(optax.tree.full_like(params, config.initial_accumulator_value))

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        total = jax.tree.map(lambda g, t: t + jnp.square(g).astype(t.dtype), updates, state.sum_of_squares)
        scaled = jax.tree.map(lambda g, t: g / (jnp.sqrt(t) + eps), updates, total)
        return scaled, optax.ScaleByRssState(total)

    return optax.GradientTransformation(init, update)


def _scale_by_stddev(*, decay: float, eps: float, eps_in_sqrt: bool) -> optax.GradientTransformation:
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
        mu = _moment(updates, state.mu, decay, 1)
        nu = _moment(updates, state.nu, decay, 2)
        return jax.tree.map(scale, updates, mu, nu), optax.ScaleByRStdDevState(mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


class FactoredSquares(NamedTuple):
    """Means of squared gradients: of matrices those of rows and columns, of all else those of elements."""

    count: Array  # type: ignore[assignment]  # the name of a tuple's method
    rows: PyTree
    columns: PyTree
    elements: PyTree


def _scale_by_factored_rms(*, decay: float, eps: float) -> optax.GradientTransformation:
    """Returns Adafactor's scaling, with the last two axes factored whatever their size.

    In optax it is the two longest axes, and only long ones.

    Args:
        decay: A negative power of the step, by which what is new counts less and less.
    """

    def init(params: PyTree) -> FactoredSquares:
        def zeros(shape: Callable[[Array], tuple[int, ...]]) -> PyTree:
            return jax.tree.map(lambda p: jnp.zeros(shape(p), p.dtype), params)

        return FactoredSquares(
            count=jnp.zeros([], jnp.int32),
            rows=zeros(lambda p: p.shape[:-1]),
            columns=zeros(lambda p: (*p.shape[:-2], p.shape[-1]) if p.ndim > 1 else ()),
            elements=zeros(lambda p: () if p.ndim > 1 else p.shape),
        )

    def update(updates: PyTree, state: FactoredSquares, params: PyTree = None) -> tuple[PyTree, FactoredSquares]:
        count = optax.safe_increment(state.count)
        share = jnp.asarray(count, jnp.float32) ** decay

        def mean(old: Array, new: Array) -> Array:
            return ((1 - share) * old + share * new).astype(old.dtype)

        squares = jax.tree.map(lambda g: jnp.square(g) + eps, updates)
        rows = jax.tree.map(lambda o, s: mean(o, s.mean(-1)) if s.ndim > 1 else o, state.rows, squares)
        columns = jax.tree.map(lambda o, s: mean(o, s.mean(-2)) if s.ndim > 1 else o, state.columns, squares)
        elements = jax.tree.map(lambda o, s: o if s.ndim > 1 else mean(o, s), state.elements, squares)
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


def _one_minus_power(share: float | Array, count: Array) -> Array:
    # In float32, 1 - 0.999 is wrong in the fifth digit; expm1 is not.
    if isinstance(share, jax.Array):
        logarithm: float | Array = jnp.log(share)
    else:
        logarithm = math.log(share) if share else -math.inf
    return -jnp.expm1(jnp.asarray(count, jnp.float32) * logarithm)


def _epsilon(config: Any) -> Any:
    epsilon = config.epsilon
    # One that is traced, as a replica's is, is known when it is computed with.
    return (
        jnp.where(epsilon == 0, _KERAS_EPSILON, epsilon)
        if isinstance(epsilon, jax.Array)
        else epsilon or _KERAS_EPSILON
    )
