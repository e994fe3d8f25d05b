"""Optimizers: the published numbers, the published rules, and the laws that hold for all of them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optimizers import update_rules as rules
from trellis.config import Config
from trellis.errors import RegistryError
from trellis.optimizers import OptimizationConfig, OptimizerConfig, build_optimizer, register_optimizer_cls

HALVED = {"type": "exponential", "exponential": {"initial_learning_rate": 0.1, "decay_steps": 1, "decay_rate": 0.5}}
"""A rate that changes at every step, so that it matters where it enters a rule."""
UNSCALED = {"type": "constant", "constant": {"learning_rate": 1.0}}
BUILT = [field.name for field in fields(OptimizerConfig) if field.name not in {"type", "slide"}]


def config(
    name: str, rate: dict[str, Any] = HALVED, ema: dict[str, Any] | None = None, **settings: Any
) -> OptimizationConfig:
    return OptimizationConfig({"optimizer": {"type": name, name: settings}, "learning_rate": rate, "ema": ema})


def build(name: str, rate: dict[str, Any] = HALVED, **settings: Any) -> optax.GradientTransformation:
    return build_optimizer(config(name, rate, **settings), n_steps=None)


def arrays(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    draw = {"kernel": (3, 4), "bias": (4,)}, {"scale": (4,)}, {"kernel": (2, 3, 4)}
    dense, norm, attention = ({name: rng.normal(size=shape) for name, shape in one.items()} for one in draw)
    return {"dense": dense, "layer_norm": norm, "attention": attention}


def single(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def trained(optimizer: optax.GradientTransformation, params: Any, grads: list[Any]) -> list[Any]:
    """The parameters after each update of a compiled, donated run."""

    def step(carry: Any, grad: Any) -> Any:
        params, state = carry
        updates, state = optimizer.update(grad, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    @partial(jax.jit, donate_argnums=0)
    def run(carry: Any, grads: Any) -> Any:
        return jax.lax.scan(step, carry, grads)

    start = single(params), optimizer.init(single(params))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves).astype(np.float32), *grads)
    _, seen = run(start, stacked)
    return [jax.tree.map(lambda leaf, index=index: np.array(leaf[index]), seen) for index in range(len(grads))]


def assert_close(one: Any, other: Any, rtol: float = 2e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), one, other)


Changes = dict[str, Any]
RULES: list[tuple[str, Changes, Callable[..., Any], Changes]] = [
    ("sgd", {}, rules.sgd, {}),
    ("sgd", {"momentum": 0.9}, rules.sgd, {"momentum": 0.9}),
    ("sgd_experimental", {"momentum": 0.9, "nesterov": True}, rules.sgd, {"momentum": 0.9, "nesterov": True}),
    ("adam", {}, rules.adam, {}),
    ("adam", {"epsilon": 0.1, "beta_1": 0.8}, rules.adam, {"eps": 0.1, "b1": 0.8}),
    ("adam", {"beta_1": 0.0, "epsilon": 0.0}, rules.adam, {"b1": 0.0}),
    ("adam_experimental", {"amsgrad": True, "beta_2": 0.5}, rules.adam, {"amsgrad": True, "b2": 0.5}),
    ("adamw", {"weight_decay_rate": 0.1, "gradient_clip_norm": 0.0}, rules.adam, {"decay": 0.1}),
    ("adamw_experimental", {"weight_decay": 0.1, "global_clipnorm": None}, rules.adam, {"decay": 0.1}),
    ("lamb", {}, rules.lamb, {}),
    ("lamb", {"weight_decay_rate": 0.1, "epsilon": 0.1}, rules.lamb, {"decay": 0.1, "eps": 0.1}),
    ("lars", {}, rules.lars, {}),
    ("lars", {"weight_decay_rate": 0.1, "nesterov": True}, rules.lars, {"decay": 0.1, "nesterov": True}),
    ("lars", {"weight_decay_rate": 0.1, "classic_momentum": False}, rules.lars, {"decay": 0.1, "classic": False}),
    ("lars", {"classic_momentum": False, "nesterov": True}, rules.lars, {"classic": False, "nesterov": True}),
    ("rmsprop", {}, rules.rmsprop, {}),
    ("rmsprop", {"epsilon": 0.1}, rules.rmsprop, {"eps": 0.1}),
    ("rmsprop", {"epsilon": 0.1, "momentum": 0.9}, rules.rmsprop, {"eps": 0.1, "momentum": 0.9}),
    ("rmsprop", {"epsilon": 0.1, "centered": True}, rules.rmsprop, {"eps": 0.1, "centered": True}),
    (
        "rmsprop",
        {"epsilon": 0.1, "centered": True, "momentum": 0.9, "rho": 0.8},
        rules.rmsprop,
        {"eps": 0.1, "centered": True, "momentum": 0.9, "rho": 0.8},
    ),
    ("adagrad", {}, rules.adagrad, {}),
    ("adagrad", {"initial_accumulator_value": 0.0, "epsilon": 0.1}, rules.adagrad, {"start": 0.0, "eps": 0.1}),
    ("adafactor", {}, rules.adafactor, {}),
    ("adafactor", {"beta1": 0.9, "weight_decay": 0.1}, rules.adafactor, {"beta1": 0.9, "decay": 0.1}),
    ("adafactor", {"multiply_by_parameter_scale": False}, rules.adafactor, {"is_scaled": False}),
    ("adafactor_keras", {}, rules.adafactor_keras, {}),
    ("adafactor_keras", {"relative_step": False}, rules.adafactor_keras, {"is_relative": False}),
]


@pytest.mark.parametrize(
    ("name", "settings", "rule", "changes"),
    RULES,
    ids=lambda value: str(value) if isinstance(value, str | dict) else "",
)
def test_updates_follow_the_published_rule(
    name: str, settings: Changes, rule: Callable[..., Any], changes: Changes
) -> None:
    params, grads = arrays(0), [arrays(seed) for seed in (1, 2, 3)]
    memory: Any = jax.tree.map(lambda _: {}, params)
    # A rate above 1 / √step, to tell a relative step from another.
    rate = {"type": "constant", "constant": {"learning_rate": 0.8}} if "relative_step" in settings else HALVED
    for index, seen in enumerate(trained(build(name, rate, **settings), params, grads)):
        lr = 0.8 if "relative_step" in settings else 0.1 * 0.5**index
        params = jax.tree.map(
            lambda p, g, m, t=index + 1, lr=lr: rule(t, lr, p, g, m, **changes), params, grads[index], memory
        )
        assert_close(seen, params)


def test_adafactor_factors_matrices_that_are_large_enough() -> None:
    rng = np.random.default_rng(0)
    params, *grads = ({"w": rng.normal(size=(5, 5)), "v": rng.normal(size=(3, 5))} for _ in range(4))
    memory: dict[str, Any] = {"w": {}, "v": {}}
    for index, seen in enumerate(trained(build("adafactor", min_dim_size_to_factor=5), params, grads)):
        lr = 0.1 * 0.5**index
        params = {
            key: rules.adafactor(index + 1, lr, params[key], grads[index][key], memory[key], least_size=5)
            for key in params
        }
        assert_close(seen, params)
    assert "rows" in memory["w"]
    assert "rows" not in memory["v"]


TWO = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
TWO_GRADS = [np.array([0.1, 0.1]), np.array([2.0, 3.0])]
NORM = (0.1**2 + 0.1**2 + 2.0**2 + 3.0**2) ** 0.5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[0.9, 1.9], [1.0, 1.0]]),
        ({"clipnorm": 1.0}, [[0.9, 1.9], [2.4452999, 3.1679497]]),
        ({"clipvalue": 1.0}, [[0.9, 1.9], [2.0, 3.0]]),
        ({"global_clipnorm": 1.0}, [[1 - 0.1 / NORM, 2 - 0.1 / NORM], [3 - 2 / NORM, 4 - 3 / NORM]]),
        ({"clipvalue": 1.0, "clipnorm": 1.0}, [[0.9, 1.9], [3 - 0.5**0.5, 4 - 0.5**0.5]]),
        ({"clipnorm": 0.0, "clipvalue": 0.0, "global_clipnorm": 0.0}, [[0.9, 1.9], [1.0, 1.0]]),
    ],
    ids=str,
)
def test_gradients_are_clipped_as_published(settings: Changes, expected: Any) -> None:
    assert_close(trained(build("sgd", UNSCALED, **settings), TWO, [TWO_GRADS])[0], [np.array(one) for one in expected])


def test_clipping_leaves_zero_gradients_alone() -> None:
    zeros = [np.zeros(2), np.zeros(2)]
    assert_close(trained(build("sgd", clipnorm=1.0), TWO, [zeros])[0], TWO)
    assert_close(trained(build("sgd", global_clipnorm=1.0), TWO, [zeros])[0], TWO)


def test_adamw_gives_the_published_numbers() -> None:
    rate = {"type": "constant", "constant": {"learning_rate": 0.1}}
    seen = trained(build("adamw", rate, weight_decay_rate=0.01), TWO, [TWO_GRADS] * 3)
    first = [np.array([0.8990114092, 1.8980114092]), np.array([2.8970005705, 3.8960003803])]
    third = [np.array([0.6973289379, 1.6943319369]), np.array([2.6913101991, 3.6883127640])]
    assert_close(seen[0], first, rtol=1e-6)
    assert_close(seen[2], third, rtol=1e-6)


def decayed_names(name: str, params: Any, **settings: Any) -> set[str]:
    """The names of the parameters that change although their gradients are zero."""
    optimizer = build(name, UNSCALED, **settings)
    updates, _ = jax.jit(optimizer.update)(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    flat = jax.tree_util.tree_leaves_with_path(updates)
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, leaf in flat if np.any(leaf)}


BERT = ["LayerNorm", "layer_norm", "bias"]
NAMES = single(arrays(0))


def test_weights_decay_but_those_that_are_excluded_by_name() -> None:
    kernels = {"dense/kernel", "attention/kernel"}
    both = kernels | {"dense/bias", "layer_norm/scale"}
    assert decayed_names("adamw", NAMES, weight_decay_rate=0.1) == both
    assert decayed_names("adamw", NAMES, weight_decay_rate=0.1, exclude_from_weight_decay=BERT) == kernels
    assert decayed_names("adamw", NAMES, weight_decay_rate=0.0) == set()
    assert decayed_names("adamw_experimental", NAMES, weight_decay=0.1) == both
    assert decayed_names("lamb", NAMES, weight_decay_rate=0.1, exclude_from_weight_decay=BERT) == kernels
    assert decayed_names("lars", NAMES, weight_decay_rate=0.1, exclude_from_weight_decay=BERT) == kernels


def test_what_is_included_decays_even_if_it_is_excluded() -> None:
    chosen = {"weight_decay_rate": 0.1, "exclude_from_weight_decay": BERT, "include_in_weight_decay": ["^dense/b"]}
    assert decayed_names("adamw", NAMES, **chosen) == {"dense/kernel", "attention/kernel", "dense/bias"}
    assert decayed_names("adafactor", NAMES, weight_decay=0.1, include_in_weight_decay=["kernel"]) == {
        "dense/kernel",
        "attention/kernel",
    }


def test_patterns_are_searched_for_anywhere_in_a_name() -> None:
    params = {"var0": jnp.ones(2), "var1": jnp.ones(2), "var1_weight": jnp.ones(2)}
    assert decayed_names("lamb", params, weight_decay_rate=0.1, exclude_from_weight_decay=["var1"]) == {"var0"}


@pytest.mark.parametrize(
    ("lists", "adapted"),
    [
        ({"exclude_from_weight_decay": ["var1"]}, {"var0"}),
        ({"exclude_from_weight_decay": ["var1"], "exclude_from_layer_adaptation": []}, {"var0"}),
        ({"exclude_from_weight_decay": ["var1"], "exclude_from_layer_adaptation": ["var0"]}, {"var1", "var1_weight"}),
        ({}, {"var0", "var1", "var1_weight"}),
    ],
)
@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_layers_are_adapted_but_those_that_are_excluded_by_name(name: str, lists: Changes, adapted: set[str]) -> None:
    params = {key: np.array([3.0, 4.0]) for key in ("var0", "var1", "var1_weight")}
    grads = {key: np.array([0.5, 0.2]) for key in params}
    (seen,) = trained(build(name, UNSCALED, **lists), params, [grads])
    rule = rules.lamb if name == "lamb" else rules.lars
    for key in params:
        assert_close(seen[key], rule(1, 1.0, params[key], grads[key], {}, is_adapted=key in adapted))


@pytest.mark.parametrize("averaged", [None, {}], ids=["", "averaged"])
@pytest.mark.parametrize("name", BUILT)
def test_an_update_keeps_the_structure_of_the_state(name: str, averaged: dict[str, Any] | None) -> None:
    optimizer = build_optimizer(config(name, ema=averaged), n_steps=None)
    for dtype in (jnp.float32, jnp.bfloat16):
        params = {"w": jnp.ones((2, 3), dtype), "b": jnp.ones(3, dtype)}
        before = jax.eval_shape(optimizer.init, params)
        updates, after = jax.eval_shape(optimizer.update, params, before, params)
        assert jax.tree.map(described, before) == jax.tree.map(described, after)
        assert jax.tree.map(described, jax.eval_shape(optax.apply_updates, params, updates)) == jax.tree.map(
            described, params
        )


def described(leaf: Any) -> tuple[Any, Any]:
    return leaf.shape, leaf.dtype


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_fused_run_is_a_stepwise_one(name: str) -> None:
    optimizer = build(name)
    params, grads = arrays(0), [arrays(seed) for seed in (1, 2, 3)]
    fused = trained(optimizer, params, grads)
    params, state = single(params), optimizer.init(single(params))
    for index, grad in enumerate(grads):
        updates, state = optimizer.update(single(grad), state, params)
        params = optax.apply_updates(params, updates)
        assert_close(fused[index], params)


@pytest.mark.parametrize("name", BUILT)
def test_zero_and_constant_gradients_give_finite_parameters(name: str) -> None:
    settings: Changes = {"momentum": 0.9} if name == "rmsprop" else {}
    params = {"w": np.ones((2, 3)), "zero": np.zeros(3), "still": np.ones((2, 3))}
    grads = {"w": np.full((2, 3), 123.456), "zero": np.full(3, 123.456), "still": np.zeros((2, 3))}
    seen = trained(build(name, **settings), params, [grads] * 30)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(seen))


def test_a_gradient_without_variance_is_no_nan_to_centered_rmsprop() -> None:
    for momentum in (0.0, 0.9):
        optimizer = build("rmsprop", centered=True, momentum=momentum)
        assert np.all(np.isfinite(trained(optimizer, {"w": np.ones(3)}, [{"w": np.full(3, 123.456)}] * 200)[-1]["w"]))


@pytest.mark.parametrize("name", ["adamw", "lamb", "lars"])
def test_turning_decay_or_clipping_on_moves_no_state(name: str) -> None:
    params = single({"w": np.ones((2, 3))})
    plain, other = (
        build(name, **settings).init(params)
        for settings in ({}, {"weight_decay_rate": 0.1, "clipvalue": 1.0, "exclude_from_weight_decay": ["w"]})
    )
    paths = [[path for path, _ in jax.tree_util.tree_leaves_with_path(state)] for state in (plain, other)]
    assert paths[0] == paths[1]


def test_an_optimizer_does_not_change_with_its_config() -> None:
    settings = config("sgd", UNSCALED)
    optimizer = build_optimizer(settings, n_steps=None)
    settings.optimizer.sgd.momentum = 0.9
    assert_close(trained(optimizer, TWO, [TWO_GRADS] * 2)[1], [np.array([0.8, 1.8]), np.array([-1.0, -2.0])])


def test_an_optimizer_of_ones_own_is_registered_for_its_config() -> None:
    @dataclass
    class SignConfig(Config):
        size: float = 1.0

    @dataclass
    class OwnConfig(OptimizerConfig):
        sign: SignConfig = SignConfig()

    @dataclass
    class OwnOptimizationConfig(OptimizationConfig):
        optimizer: OwnConfig = OwnConfig()

    settings = OwnOptimizationConfig({"optimizer": {"type": "sign", "sign": {"size": 2.0}}, "learning_rate": UNSCALED})
    with pytest.raises(RegistryError, match="There is no optimizer for .*SignConfig.* register_optimizer_cls"):
        build_optimizer(settings, n_steps=None)

    @register_optimizer_cls(SignConfig)
    def sign(settings: SignConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_sign(), optax.scale(settings.size), optax.scale_by_learning_rate(schedule))

    seen = trained(build_optimizer(settings, n_steps=None), TWO, [TWO_GRADS])[0]
    assert_close(seen, [np.array([-1.0, 0.0]), np.array([1.0, 2.0])])
    with pytest.raises(RegistryError, match="registered already"):
        register_optimizer_cls(SignConfig)
