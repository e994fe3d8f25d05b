"""A Keras model in the loops: the same numbers as by hand, and nothing but the loop's keys at random."""

import os
import traceback
from functools import partial
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.bridges import KerasModel
from trellis.errors import ArgumentError, ModelError
from trellis.runtime import StepKeys
from trellis.tasks import BoundModel

ROOT = jax.random.key(7)
# Keras's own way of making NumPy arrays of its variables, when it trains or saves by itself.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def classifier(dropout_rate: float = 0.0, *, l2: float = 0.0) -> keras.Model:
    """Statistics, dropout and named layers, with the same weights each time."""
    seeds = [keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2)]
    regularizer = keras.regularizers.L2(l2) if l2 else None
    return keras.Sequential(
        [
            keras.Input([8]),
            keras.layers.Dense(
                16, use_bias=False, name="hidden", kernel_initializer=seeds[0], kernel_regularizer=regularizer
            ),
            keras.layers.BatchNormalization(momentum=0.9, name="norm"),
            keras.layers.Activation("relu"),
            *([keras.layers.Dropout(dropout_rate, name="dropout")] if dropout_rate else []),
            keras.layers.Dense(4, name="logits", kernel_initializer=seeds[1]),
        ]
    )


def train_loop(dropout_rate: float = 0.0, **options: Any) -> trellis.TrainLoop:
    """A loop on a Keras model."""
    model = KerasModel(classifier(dropout_rate))
    settings = {"init": model.init, "rnkey": ROOT, "collections": {"apply": ["dropout"]}, "n_steps": 6} | options
    return tiny.train_loop(tiny.train_task(model), **settings)


def test_the_losses_are_those_of_keras_own_fit() -> None:
    model = classifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    batches = [tiny.stream().batch(step) for step in range(4)]
    with jax.numpy_rank_promotion("allow"):
        theirs = [float(model.train_on_batch(*batch)) for batch in batches]
    ours = KerasModel(classifier())
    loop = tiny.train_loop(tiny.train_task(ours, optimizer=optax.sgd(0.1)), init=ours.init, n_steps=4)
    np.testing.assert_allclose([checkpoint.loss for checkpoint in loop], theirs, rtol=1e-4)


def test_collections_hold_what_is_trained_and_the_rest_under_the_names_of_layers() -> None:
    first, second = (checkpoint.copy() for checkpoint in train_loop(0.5, n_steps=2))
    assert jax.tree.map(np.shape, first.model_params) == {
        "hidden": {"kernel": (8, 16)},
        "norm": {"beta": (16,), "gamma": (16,)},
        "logits": {"bias": (4,), "kernel": (16, 4)},
    }
    assert jax.tree.map(np.shape, first.model_state) == {
        "state": {"norm": {"moving_mean": (16,), "moving_variance": (16,)}}
    }
    assert np.any(
        first.model_state["state"]["norm"]["moving_mean"] != second.model_state["state"]["norm"]["moving_mean"]
    )


def test_dropout_differs_from_step_to_step_and_is_the_same_for_a_key() -> None:
    inputs = np.ones((4, 64), np.float32)
    model = KerasModel(keras.Sequential([keras.Input([64]), keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)]))
    one, again, later = (
        model.apply(model.init({}), inputs, rngs=StepKeys(ROOT, step).rngs(["dropout"])) for step in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert np.any(one != later)
    # Two layers with one seed would let half of the values pass, not a quarter.
    assert np.mean(one != 0) < 0.4
    np.testing.assert_array_equal(model.eval_apply(model.init({}), inputs), inputs)


def test_a_run_that_is_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    for checkpoint in train_loop(0.5, n_steps_per_checkpoint=2, n_steps=4):
        whole = checkpoint.copy()
    write = trellis.CheckpointFileWriter(output_dir=tmp_path)
    for n_steps in (2, 4):
        init = trellis.CheckpointFileReader(dir=tmp_path, target=KerasModel(classifier(0.5)).init)
        for checkpoint in train_loop(0.5, init=init, n_steps_per_checkpoint=2, n_steps=n_steps):
            write(checkpoint)
            resumed = checkpoint.copy()
    for name in ("model_params", "model_state", "optimizer_state"):
        tiny.assert_equal(getattr(resumed, name), getattr(whole, name))


def test_a_trained_model_is_had_back_and_saved(tmp_path: Path) -> None:
    model = KerasModel(classifier())
    for checkpoint in tiny.train_loop(tiny.train_task(model), init=model.init, n_steps=3):
        last = checkpoint.copy()
    variables = {"params": last.model_params, **last.model_state}
    inputs, _ = tiny.examples(n=4)
    expected = model.eval_apply(variables, inputs)
    model.bind(variables).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with jax.numpy_rank_promotion("allow"):
        answers = loaded(inputs)
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-6)


def test_neither_the_loop_nor_keras_takes_the_weights_of_a_model_that_was_had_back() -> None:
    model = KerasModel(classifier())
    inputs, labels = tiny.examples(n=32)
    with jax.numpy_rank_promotion("allow"):
        for checkpoint in tiny.train_loop(tiny.train_task(model), init=model.init, n_steps=2):
            trained = model.bind(checkpoint.variables)
            trained.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            trained.evaluate(inputs, labels, verbose=0)
            assert np.isfinite(tiny.arrays(checkpoint.model_state)).all()
        answers = trained(inputs)
    np.testing.assert_allclose(answers, model.eval_apply(checkpoint.variables, inputs), rtol=1e-5, atol=1e-6)


def test_variables_that_are_not_all_of_a_model_are_named() -> None:
    model = KerasModel(classifier())
    with pytest.raises(ArgumentError, match=r"lack norm/moving_mean, norm/moving_variance .*: checkpoint.variables"):
        model.bind({"params": model.init({})["params"]})
    with pytest.raises(ArgumentError, match="bind was given a Checkpoint. Give the collections .*checkpoint.variables"):
        model.bind(train_loop().start())


def test_a_model_of_keras_in_the_place_of_its_init_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"init is a Sequential of keras. .*trellis.bridges.KerasModel\(model\)"):
        tiny.train_loop(init=classifier())


def test_an_evaluation_in_training_mode_is_told_without_the_inside_of_jax() -> None:
    checkpoint = train_loop(0.5).start()
    with pytest.raises(ModelError, match="asks for the rng collection 'dropout'") as caught:
        tiny.eval_loop(KerasModel(classifier(0.5)))(checkpoint)
    told = "".join(traceback.format_exception_only(caught.value))
    assert "while tracing a validation step" in told
    assert "internal frames" not in told


def test_a_frozen_layer_is_not_trained_and_is_frozen_before() -> None:
    frozen = classifier()
    late = KerasModel(frozen)
    frozen.get_layer("hidden").trainable = False
    assert KerasModel(frozen).init({})["params"].keys() == {"norm", "logits"}
    with pytest.raises(ArgumentError, match=r"other trainable weights .*Set `trainable` first, and make KerasModel"):
        late.init({})


def test_losses_that_layers_add_reach_a_task() -> None:
    model = KerasModel(classifier(l2=0.5))
    variables = model.init({})
    inputs, _ = tiny.examples(n=4)
    bound = BoundModel(model, params=variables["params"], model_state={"state": variables["state"]})
    bound(inputs, training=True)
    kernel = variables["params"]["hidden"]["kernel"]
    np.testing.assert_allclose(bound.losses, [0.5 * np.sum(np.square(kernel))], rtol=1e-5)


def test_a_model_of_two_inputs_takes_two() -> None:
    one, two = keras.Input([3]), keras.Input([3])
    model = KerasModel(keras.Model([one, two], keras.layers.Subtract()([one, two])))
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(model.eval_apply(model.init({}), 3 * ones, ones), 2 * ones)


def test_dropout_without_a_key_is_named() -> None:
    with pytest.raises(ModelError, match=r"asks for the rng collection 'dropout'.*'apply': \['dropout'\]"):
        train_loop(0.5, collections=None).outline()


def test_what_is_no_model_or_has_no_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"3 is no keras\.Model"):
        KerasModel(3)
    with pytest.raises(ArgumentError, match="has no weights yet. Begin it with keras.Input"):
        KerasModel(keras.Sequential([keras.layers.Dense(3)]))
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(
        ArgumentError, match="Keras runs on torch, but a loop needs JAX. Set the variable KERAS_BACKEND"
    ):
        KerasModel(classifier())


def test_fused_steps_on_eight_devices_change_nothing_but_rounding() -> None:
    options = {"n_steps_per_checkpoint": 6, "n_fused_steps": 1}
    one_by_one = next(train_loop(**options)).copy()
    fused = next(train_loop(**options | {"n_fused_steps": 3, "devices": jax.devices()})).copy()
    trees = ((checkpoint.model_params, checkpoint.model_state) for checkpoint in (fused, one_by_one))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *map(jax.device_get, trees))
