"""A Flax NNX module in the loops: the same numbers as by hand, and nothing but the loop's keys at random."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import trellis
from tests import tiny
from trellis.bridges import NNXModel
from trellis.errors import ArgumentError, ModelError
from trellis.runtime import StepKeys

ROOT = jax.random.key(7)


class Classifier(nnx.Module):
    """Layers in a list, batch statistics, two dropouts built from one stream, and a counter of calls."""

    def __init__(self, dropout_rate: float = 0.0, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(8, 16, use_bias=False, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.dropouts = nnx.List([nnx.Dropout(dropout_rate, rngs=rngs) for _ in range(2)])
        self.n_calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: Any) -> Any:
        """Logits of four classes."""
        self.n_calls[...] += 1
        x = self.dropouts[0](nnx.relu(self.norm(self.layers[0](x))))
        return self.layers[1](self.dropouts[1](x))


def train_loop(dropout_rate: float = 0.0, **options: Any) -> trellis.TrainLoop:
    """A loop on an NNX model, with the key that is used by hand below."""
    model = NNXModel(partial(Classifier, dropout_rate))
    settings = {"init": model.init, "rnkey": ROOT, "collections": {"apply": ["dropout"]}, "n_steps": 6} | options
    return tiny.train_loop(tiny.train_task(model), **settings)


def losses_by_hand(dropout_rate: float, n_steps: int) -> list[float]:
    """The losses of a training that is written with NNX alone."""
    init_key = StepKeys(ROOT, 0)["init/params"]
    module = Classifier(dropout_rate, rngs=nnx.Rngs(params=init_key, dropout=0))
    module.train()
    structure, params, others = nnx.split(module, nnx.Param, ...)
    optimizer = optax.adam(1e-2)
    optimizer_state = optimizer.init(params)

    @jax.jit
    def step(params: Any, others: Any, optimizer_state: Any, batch: Any, key: Any) -> Any:
        def measure(params: Any) -> Any:
            module = nnx.merge(structure, params, jax.tree.map(lambda leaf: leaf, others))
            nnx.reseed(module, dropout=key)
            loss = tiny.cross_entropy(module(batch[0]), batch[1])
            return loss, nnx.split(module, nnx.Param, ...)[2]

        (loss, others), grads = jax.value_and_grad(measure, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return optax.apply_updates(params, updates), others, optimizer_state, loss

    losses = []
    for index in range(n_steps):
        key = StepKeys(ROOT, index).rngs(["dropout"])["dropout"]
        batch = tiny.stream().batch(index)
        params, others, optimizer_state, loss = step(params, others, optimizer_state, batch, key)
        losses.append(float(loss))
    return losses


def test_the_losses_are_those_of_a_loop_written_by_hand() -> None:
    losses = [checkpoint.loss for checkpoint in train_loop(0.5)]
    np.testing.assert_allclose(losses, losses_by_hand(0.5, n_steps=6), rtol=1e-5)


def test_fused_steps_on_eight_devices_change_nothing_but_rounding() -> None:
    options = {"n_steps_per_checkpoint": 6, "n_fused_steps": 1}
    one_by_one = next(train_loop(0.5, **options)).copy()
    fused = next(train_loop(0.5, **options | {"n_fused_steps": 3, "devices": jax.devices()})).copy()
    assert fused.loss == pytest.approx(one_by_one.loss, rel=1e-5)
    trees = ((checkpoint.model_params, checkpoint.model_state) for checkpoint in (fused, one_by_one))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *map(jax.device_get, trees))


def test_collections_hold_parameters_statistics_and_the_rest() -> None:
    loop = train_loop(n_steps=3)
    first, second = (next(loop).copy() for _ in range(2))
    shapes = jax.tree.map(jnp.shape, first.model_params)
    assert shapes == {
        "layers": {"0": {"kernel": (8, 16)}, "1": {"bias": (4,), "kernel": (16, 4)}},
        "norm": {"bias": (16,), "scale": (16,)},
    }
    assert set(first.model_state) == {"batch_stats", "state"}
    means = [checkpoint.model_state["batch_stats"]["norm"]["mean"] for checkpoint in (first, second)]
    assert np.any(means[0] != 0)
    assert np.all(means[0] != means[1])
    assert [int(checkpoint.model_state["state"]["n_calls"]) for checkpoint in (first, second)] == [1, 2]


def test_the_reported_number_of_weights_is_that_of_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    train_loop(stdout=True).start()
    assert "Total number of trainable weights: 228 = 912 B." in capsys.readouterr().out


def test_dropout_differs_from_step_to_step_and_from_layer_to_layer() -> None:
    model = NNXModel(lambda rngs: Masks(rngs=rngs))
    variables = model.init({"params": ROOT})
    keys = [StepKeys(ROOT, step).rngs(["dropout"]) for step in (0, 0, 1)]
    (first, second), again, (later, _) = (model.apply(variables, jnp.ones(64), rngs=rngs) for rngs in keys)
    np.testing.assert_array_equal(first, again[0])
    assert np.any(first != second)
    assert np.any(first != later)


class Masks(nnx.Module):
    """Shows what two dropouts let pass."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.one, self.other = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """The inputs, through each."""
        return self.one(x), self.other(x)


def test_a_run_that_is_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    for checkpoint in train_loop(0.5, n_steps_per_checkpoint=2):
        whole = checkpoint.copy()
    init = trellis.CheckpointFileReader(dir=tmp_path, target=NNXModel(partial(Classifier, 0.5)).init)
    write = trellis.CheckpointFileWriter(output_dir=tmp_path)
    for n_steps in (2, 6):
        for checkpoint in train_loop(0.5, init=init, n_steps_per_checkpoint=2, n_steps=n_steps):
            write(checkpoint)
            resumed = checkpoint.copy()
    assert resumed.step == 6
    for name in ("model_params", "model_state", "optimizer_state"):
        tiny.assert_equal(getattr(resumed, name), getattr(whole, name))


def test_evaluation_is_the_same_each_time_and_changes_nothing() -> None:
    model = NNXModel(partial(Classifier, 0.5))
    checkpoint = next(train_loop(0.5))
    before = tiny.arrays((checkpoint.model_params, checkpoint.model_state))
    task = trellis.EvalTask(apply=model.eval_apply, metrics={"loss": tiny.cross_entropy}, data=tiny.stream())
    evaluate = trellis.EvalLoop(task=task, n_steps=2, devices=jax.devices()[:1])
    once, again = (evaluate(checkpoint) for _ in range(2))
    assert once.metrics["eval"] == again.metrics["eval"]
    tiny.assert_equal(tiny.arrays((once.model_params, once.model_state)), before)


def test_a_trained_module_is_had_back() -> None:
    model = NNXModel(Classifier)
    checkpoint = next(train_loop())
    variables = {"params": checkpoint.model_params, **checkpoint.model_state}
    module = model.bind(variables)
    x, _ = tiny.examples(n=4)
    assert isinstance(module, Classifier)
    np.testing.assert_allclose(module(x), model.eval_apply(variables, x), rtol=1e-6)
    np.testing.assert_array_equal(module.layers[0].kernel[...], checkpoint.model_params["layers"]["0"]["kernel"])


def test_a_stream_without_a_key_is_named() -> None:
    with pytest.raises(ModelError, match=r"asks for the rng collection 'dropout'.*'apply': \['dropout'\]"):
        train_loop(0.5, collections=None).outline()


def test_dropout_that_is_off_needs_no_key() -> None:
    assert next(train_loop(0.0, collections=None)).step == 1


class Noisy(nnx.Module):
    """Keeps its random streams and asks for one of them when it is called."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(8, 4, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:
        """Logits that shake."""
        return self.linear(x) + jax.random.normal(self.rngs.noise(), (*x.shape[:-1], 4))


def test_a_module_that_keeps_its_streams_draws_from_the_keys_of_the_step() -> None:
    model = NNXModel(Noisy)
    apply = jax.jit(model.apply)
    for root in (jax.random.key(0), jax.random.PRNGKey(0)):
        variables = model.init({"params": root})
        keys = [jax.random.fold_in(root, step) for step in (0, 0, 1)]
        one, again, later = (apply(variables, jnp.ones((2, 8)), rngs={"noise": key}) for key in keys)
        np.testing.assert_array_equal(one, again)
        assert np.all(one != later)
    task = tiny.train_task(model)
    assert tiny.train_loop(task, init=model.init, collections={"apply": ["noise"]}).next_step().step == 1
    with pytest.raises(ModelError, match="asks for the rng collection 'noise'"):
        tiny.train_loop(task, init=model.init, collections={"apply": ["dropout"]}).outline()


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"returned 3, but an NNXModel is made of an nnx\.Module"):
        NNXModel(lambda rngs: 3)
