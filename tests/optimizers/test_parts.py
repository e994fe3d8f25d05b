"""Parts of the parameters: frozen ones are left alone, groups have rates of their own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError
from trellis.optimizers import (
    EMAConfig,
    OptimizationConfig,
    average_parameters,
    average_weights,
    build_optimizer,
    freeze_parameters,
    matches,
    scale_loss,
    trained_part,
)

PARAMS = {
    "encoder": {
        "embeddings": {"table": jnp.full((5, 2), 1.0)},
        **{f"layer_{n}": {"kernel": jnp.full((2, 2), 1.0), "bias": jnp.full(2, 1.0)} for n in (0, 1, 2, 10)},
    },
    "head": {"kernel": jnp.full((2, 3), 1.0), "bias": jnp.full(3, 1.0)},
}


def ones() -> Any:
    return jax.tree.map(jnp.ones_like, PARAMS)


def config(optimizer: str = "sgd", *, rate: float = 1.0, settings: Any = None, **parts: Any) -> OptimizationConfig:
    rates = {"type": "constant", "constant": {"learning_rate": rate}}
    return OptimizationConfig(
        {"optimizer": {"type": optimizer, optimizer: settings or {}}, "learning_rate": rates} | parts
    )


def steps(optimizer: optax.GradientTransformation) -> Any:
    """How far each parameter goes with a gradient of 1."""
    updates = jax.jit(lambda params: optimizer.update(ones(), optimizer.init(params), params)[0])(PARAMS)
    return jax.tree.map(lambda leaf: -float(np.ravel(leaf)[0]), updates)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("encoder", "encoder/layer_1/bias", True),
        ("encoder/layer_1", "encoder/layer_1/bias", True),
        ("encoder/layer_1", "encoder/layer_10/bias", False),
        ("encoder/layer_[0-5]", "encoder/layer_5/bias", True),
        ("encoder/layer_[0-5]", "encoder/layer_6/bias", False),
        ("encoder/layer_*", "encoder/layer_10/bias", True),
        ("encoder/*/bias", "encoder/layer_10/bias", True),
        ("*/bias", "encoder/layer_10/bias", False),
        ("**/bias", "encoder/layer_10/bias", True),
        ("**/bias", "bias", True),
        ("encoder/**", "encoder/layer_10/bias", True),
        ("layer_1", "encoder/layer_1/bias", False),
        ("encoder/layer_1/bias/x", "encoder/layer_1/bias", False),
    ],
)
def test_a_pattern_is_the_path_of_a_part(pattern: str, path: str, expected: bool) -> None:
    assert matches(path, [pattern]) is expected


def test_frozen_parameters_have_no_update_and_no_state() -> None:
    plain = optax.adamw(0.1, weight_decay=0.5)
    optimizer = freeze_parameters(plain, frozen=["encoder/embeddings", "encoder/layer_[01]"])
    params = jax.tree.map(jnp.copy, PARAMS)
    params["encoder"]["embeddings"]["table"] = jnp.full((5, 2), -0.0)
    state = optimizer.init(params)
    updates, state = optimizer.update(ones(), state, params)
    after = optax.apply_updates(params, updates)
    assert np.signbit(after["encoder"]["embeddings"]["table"]).all()
    tiny.assert_equal(after["encoder"]["layer_0"], params["encoder"]["layer_0"])
    assert not np.array_equal(after["encoder"]["layer_10"]["bias"], params["encoder"]["layer_10"]["bias"])
    n_bytes = [sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (state, plain.init(params))]
    assert n_bytes == [2 * 21 * 4 + 4, 2 * 43 * 4 + 4]
    trained = trained_part(params, optimizer_state=state)
    assert sum(leaf.size for leaf in jax.tree.leaves(trained)) == 21
    assert trained["encoder"]["embeddings"]["table"] is None


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (["encoder/embedings"], r"'encoder/embedings' matches no parameter. Did you mean 'encoder/embeddings'\?"),
        (
            ["encoder/x"],
            "There is encoder/embeddings, encoder/layer_0, encoder/layer_1, encoder/layer_2, encoder",
        ),
        (["nothing"], "'nothing' matches no parameter. There is encoder, head. A pattern is the path of a part"),
        (["encoder", "head"], "encoder, head is all that the model has, so that nothing would be trained"),
        ("encoder", r"is 'encoder'. Give a list of paths, such as \['encoder/embeddings'\]"),
    ],
)
def test_what_cannot_be_frozen_is_told(frozen: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        freeze_parameters(optax.sgd(0.1), frozen=frozen).init(PARAMS)


def loop_of(optimizer: optax.GradientTransformation, *, model: Any = None, **options: Any) -> trellis.TrainLoop:
    task = {name: options.pop(name) for name in ("n_microbatches", "train_step") if name in options}
    if "train_step" in task:
        return tiny.train_loop(trellis.TrainTask(data=tiny.stream(), optimizer=optimizer, **task), **options)
    return tiny.train_loop(tiny.train_task(model, optimizer=optimizer, **task), **options)


def trained(optimizer: optax.GradientTransformation, **options: Any) -> tuple[Any, Any]:
    """The parameters before and after a few steps, and the last checkpoint."""
    loop = loop_of(optimizer, n_steps=4, n_steps_per_checkpoint=4, **options)
    before = jax.tree.map(np.array, loop.start().model_params)
    return before, next(iter(loop)).copy()


WRAPPED: dict[str, Any] = {
    "alone": lambda inner: freeze_parameters(inner, frozen=["Dense_0"]),
    "scaled": lambda inner: scale_loss(freeze_parameters(inner, frozen=["Dense_0"])),
    "scaled within": lambda inner: freeze_parameters(scale_loss(inner), frozen=["Dense_0"]),
    "averaged": lambda inner: average_parameters(freeze_parameters(inner, frozen=["Dense_0"]), config=EMAConfig()),
    "averaged within": lambda inner: freeze_parameters(
        average_parameters(inner, config=EMAConfig()), frozen=["Dense_0"]
    ),
    "twice": lambda inner: freeze_parameters(
        freeze_parameters(inner, frozen=["Dense_0/kernel"]), frozen=["Dense_0/bias"]
    ),
    "clipped": lambda inner: optax.chain(
        optax.clip_by_global_norm(1.0), freeze_parameters(inner, frozen=["Dense_0"]), optax.add_decayed_weights(1e-2)
    ),
}


@pytest.mark.parametrize("n_microbatches", [1, 2])
@pytest.mark.parametrize("kind", WRAPPED)
def test_a_loop_leaves_frozen_parameters_as_they_were(kind: str, n_microbatches: int) -> None:
    before, after = trained(WRAPPED[kind](optax.adamw(0.1)), n_microbatches=n_microbatches)
    tiny.assert_equal(jax.tree.map(np.asarray, after.model_params["Dense_0"]), before["Dense_0"])
    assert not np.array_equal(after.model_params["Dense_1"]["kernel"], before["Dense_1"]["kernel"])
    assert jax.tree.leaves(after.grads["Dense_0"]) == []
    assert jax.tree.leaves(after.grads["Dense_1"])
    evaluated = average_weights(after.model_params, optimizer_state=after.optimizer_state)
    tiny.assert_equal(jax.tree.map(np.asarray, evaluated["Dense_0"]), before["Dense_0"])
    assert trellis.Summary.from_checkpoint(after).metrics["train"]["gradients_l2norm"] > 0


def test_what_is_trained_beside_frozen_parameters_goes_as_with_a_mask() -> None:
    mask = {"Dense_0": "frozen", "Dense_1": "trained"}
    masked = optax.multi_transform({"trained": optax.adam(1e-2), "frozen": optax.set_to_zero()}, mask)
    _, expected = trained(masked)
    _, actual = trained(freeze_parameters(optax.adam(1e-2), frozen=["Dense_0"]))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), expected.model_params, actual.model_params
    )


def test_no_gradient_is_computed_of_frozen_parameters() -> None:
    whole = loop_of(optax.sgd(0.1)).outline().flops
    part = loop_of(freeze_parameters(optax.sgd(0.1), frozen=["Dense_0"])).outline().flops
    # A batch of 16: the product that is the gradient of the first layer's kernel, and the one before it.
    assert whole - part >= 2 * 16 * 8 * 16


def test_a_step_of_ones_own_leaves_frozen_parameters_as_they_were() -> None:
    optimizer = freeze_parameters(optax.adam(0.1), frozen=["Dense_0"])

    def train_step(state: Any, batch: Any, keys: Any) -> Any:
        def loss(params: Any) -> Any:
            return tiny.cross_entropy(tiny.Classifier().apply({"params": params}, batch[0]), batch[1])

        value, grads = jax.value_and_grad(loss)(state.params)
        updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return state.replace(params=params, optimizer_state=optimizer_state), trellis.StepOutput(value, {}, grads)

    before, after = trained(optimizer, train_step=train_step)
    tiny.assert_equal(jax.tree.map(np.asarray, after.model_params["Dense_0"]), before["Dense_0"])
    assert not np.array_equal(after.model_params["Dense_1"]["kernel"], before["Dense_1"]["kernel"])


def test_a_line_search_moves_what_is_not_frozen() -> None:
    before, after = trained(freeze_parameters(optax.lbfgs(), frozen=["Dense_0"]))
    tiny.assert_equal(jax.tree.map(np.asarray, after.model_params["Dense_0"]), before["Dense_0"])
    assert not np.array_equal(after.model_params["Dense_1"]["kernel"], before["Dense_1"]["kernel"])


def test_a_loop_counts_frozen_parameters_apart(capsys: pytest.CaptureFixture[str]) -> None:
    loop_of(freeze_parameters(optax.sgd(0.1), frozen=["Dense_0"]), stdout=True).start()
    assert "Total number of trainable weights: 68 = 272 B; 144 more are frozen." in capsys.readouterr().out


def test_a_group_has_its_own_learning_rate() -> None:
    groups = [{"parameters": ["encoder/layer_0", "encoder/layer_1"], "learning_rate_factor": 0.5}]
    seen = steps(build_optimizer(config(groups=groups), n_steps=None))
    assert (seen["encoder"]["layer_0"]["bias"], seen["encoder"]["layer_2"]["bias"], seen["head"]["bias"]) == (0.5, 1, 1)


def test_the_first_group_that_fits_counts() -> None:
    groups = [
        {"parameters": ["**/bias"], "learning_rate_factor": 2.0},
        {"parameters": ["encoder"], "learning_rate_factor": 0.5},
    ]
    seen = steps(build_optimizer(config(groups=groups), n_steps=None))
    assert seen["encoder"]["layer_0"] == {"bias": 2.0, "kernel": 0.5}
    assert seen["head"] == {"bias": 2.0, "kernel": 1.0}


def test_layers_have_ever_smaller_rates_from_the_last_one_down() -> None:
    groups = [{"parameters": ["encoder/embeddings", "encoder/layer_*"], "layer_decay": 0.5}]
    seen = steps(build_optimizer(config(groups=groups), n_steps=None))
    rates = {name: next(iter(layer.values())) for name, layer in seen["encoder"].items()}
    assert rates == {"layer_10": 1.0, "layer_2": 0.5, "layer_1": 0.25, "layer_0": 0.125, "embeddings": 0.0625}
    assert seen["head"]["kernel"] == 1.0
    frozen = steps(build_optimizer(config(groups=groups, frozen=["encoder/layer_2"]), n_steps=None))
    assert (frozen["encoder"]["layer_2"]["bias"], frozen["encoder"]["layer_1"]["bias"]) == (0.0, 0.25)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_experimental", "adafactor"])
def test_a_group_has_its_own_weight_decay(optimizer: str) -> None:
    groups = [{"parameters": ["head"], "weight_decay": 0.5}]
    optimizers = [build_optimizer(config(optimizer, groups=part), n_steps=None) for part in (groups, [])]
    with_decay, without = map(steps, optimizers)
    assert with_decay["head"]["kernel"] != without["head"]["kernel"]
    assert with_decay["encoder"] == without["encoder"]


def test_what_is_excluded_from_weight_decay_is_so_in_a_group_too() -> None:
    groups = [{"parameters": ["head"], "weight_decay": 0.5}]
    settings = {"exclude_from_weight_decay": ["bias"], "gradient_clip_norm": 0.0}
    with_decay, without = (
        steps(build_optimizer(config("adamw", settings=settings, groups=part), n_steps=None)) for part in (groups, [])
    )
    assert with_decay["head"]["kernel"] == pytest.approx(without["head"]["kernel"] + 0.5)
    assert with_decay["head"]["bias"] == without["head"]["bias"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "adafactor"])
def test_groups_that_differ_in_nothing_change_nothing(optimizer: str) -> None:
    groups = [{"parameters": ["encoder"]}, {"parameters": ["head/bias"]}]
    seen, expected = (steps(build_optimizer(config(optimizer, groups=part), n_steps=None)) for part in (groups, []))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), seen, expected)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"groups": [{"parameters": ["encodr"]}]},
            r"optimizer_config.groups\[0\].parameters: 'encodr' matches no",
        ),
        (
            {"groups": [{"parameters": ["encoder"]}, {"parameters": ["encoder/layer_0"]}]},
            r"groups\[1\].parameters: all that encoder/layer_0 matches is frozen, or in a group before this one",
        ),
        ({"groups": [{"parameters": ["head"]}], "frozen": ["head"]}, "all that head matches is frozen"),
        ({"frozen": ["hed"]}, r"trainer.optimizer_config.frozen: 'hed' matches no parameter. Did you mean 'head'\?"),
    ],
)
def test_a_part_of_a_config_that_is_not_there_is_told(parts: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build_optimizer(config(**parts), n_steps=None).init(PARAMS)
