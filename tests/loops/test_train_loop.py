"""The training loop: which steps it yields, what a checkpoint holds, and what it refuses."""

import dataclasses
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError, DataError, ModelError, StaleCheckpointError, StreamEndedError
from trellis.loops import traceable
from trellis.loops.fused_steps import FusedSteps


@pytest.mark.parametrize(
    ("periods", "n_steps", "expected"),
    [
        (3, 8, [(3, 3), (6, 3), (8, 2)]),
        (25, 100, [(25, 25), (50, 25), (75, 25), (100, 25)]),
        (1, 3, [(1, 1), (2, 1), (3, 1)]),
        (5, 1, [(1, 1)]),
        ((4, 6), 13, [(4, 4), (6, 2), (8, 2), (12, 4), (13, 1)]),
    ],
)
def test_a_checkpoint_is_yielded_at_every_multiple_and_at_the_last_step(
    periods: Any, n_steps: int, expected: list[tuple[int, int]]
) -> None:
    loop = tiny.train_loop(n_steps=n_steps, n_steps_per_checkpoint=periods)
    assert [(checkpoint.step, checkpoint.n_completed_steps) for checkpoint in loop] == expected
    assert loop.step == n_steps
    assert list(loop) == []


def test_only_the_last_checkpoint_is_the_last() -> None:
    loop = tiny.train_loop(n_steps=5, n_steps_per_checkpoint=2)
    assert [checkpoint.is_last for checkpoint in loop] == [False, False, True]


def test_the_number_of_steps_is_an_absolute_target() -> None:
    loop = tiny.train_loop(n_steps=4, n_steps_per_checkpoint=2)
    assert [checkpoint.step for checkpoint in loop(n_steps=6)] == [2, 4, 6]
    assert list(loop.run(n_steps=6)) == []
    assert [checkpoint.step for checkpoint in loop.run(7)] == [7]


def test_single_steps_change_no_setting_and_never_repeat_a_step() -> None:
    loop = tiny.train_loop(n_steps=10, n_steps_per_checkpoint=3)
    iterator = iter(loop)
    assert [loop.next_step().step, loop.next_step().step] == [1, 2]
    assert (loop.n_steps, loop.n_steps_per_checkpoint) == (10, 3)
    assert next(iterator).step == 3
    assert loop.next_step().step == 4
    assert loop.next_checkpoint().step == 6
    assert (loop.n_steps, loop.n_steps_per_checkpoint) == (10, 3)
    assert [checkpoint.step for checkpoint in iterator] == [9, 10]
    assert loop.next_checkpoint().step == 12


def test_next_goes_from_checkpoint_to_checkpoint() -> None:
    loop = tiny.train_loop(n_steps=5, n_steps_per_checkpoint=3)
    assert [next(loop).step, next(loop).step] == [3, 5]
    with pytest.raises(StopIteration):
        next(loop)


def test_a_broken_off_iteration_is_continued_by_the_next() -> None:
    loop = tiny.train_loop(n_steps=6, n_steps_per_checkpoint=2)
    for _checkpoint in loop:
        break
    assert [checkpoint.step for checkpoint in loop] == [4, 6]


def test_training_learns() -> None:
    loop = tiny.train_loop(n_steps=300, n_steps_per_checkpoint=100)
    losses = [checkpoint.loss for checkpoint in loop]
    assert losses[-1] < 0.5 * losses[0]


def test_the_loss_is_the_mean_over_the_steps_since_the_last_checkpoint() -> None:
    each = [checkpoint.loss for checkpoint in tiny.train_loop(n_steps=6, n_steps_per_checkpoint=1)]
    threes = [checkpoint.loss for checkpoint in tiny.train_loop(n_steps=6, n_steps_per_checkpoint=3)]
    np.testing.assert_allclose(threes, [np.mean(each[:3]), np.mean(each[3:])], rtol=1e-5)


def test_a_negative_loss_keeps_its_sign() -> None:
    task = tiny.train_task(loss=lambda logits, labels: tiny.cross_entropy(logits, labels) - 10)
    checkpoint = tiny.train_loop(task, n_steps=1).next_step()
    assert checkpoint.loss < -5
    assert trellis.Summary.from_checkpoint(checkpoint).metrics["train"]["loss"] == checkpoint.loss


def test_fused_and_single_steps_agree_to_rounding() -> None:
    model = tiny.Classifier(train=True, dropout_rate=0.2, has_statistics=True)
    options: dict[str, Any] = {
        "init": tiny.Classifier(has_statistics=True).init,
        "collections": {"apply": ["dropout"]},
        "n_steps": 40,
        "n_steps_per_checkpoint": 20,
    }
    fused = list_of_params(tiny.train_loop(tiny.train_task(model), **options))
    single = list_of_params(tiny.train_loop(tiny.train_task(model), n_fused_steps=1, **options))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), fused, single)


def list_of_params(loop: trellis.TrainLoop) -> list[Any]:
    """The parameters and statistics at each checkpoint."""
    return [tiny.arrays((checkpoint.model_params, checkpoint.model_state)) for checkpoint in loop]


def test_a_loop_equals_one_written_by_hand() -> None:
    model, stream, optimizer = tiny.Classifier(), tiny.stream(), optax.adam(1e-2)
    loop = tiny.train_loop(n_steps=4, n_steps_per_checkpoint=4, n_fused_steps=1)
    start = loop.next_step().copy()
    params, state = start.model_params, start.optimizer_state
    for step in range(1, 4):
        x, y = stream.batch(step)
        grads = jax.grad(lambda params, x=x, y=y: tiny.cross_entropy(model.apply({"params": params}, x), y))(params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    end = loop.next_checkpoint()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), params, end.model_params)


@pytest.mark.parametrize("n_fused_steps", [1, None])
def test_eight_devices_give_the_losses_of_one(n_fused_steps: int | None) -> None:
    options: dict[str, Any] = {"n_steps": 20, "n_steps_per_checkpoint": 5, "n_fused_steps": n_fused_steps}
    one = tiny.train_loop(devices=jax.devices()[:1], **options)
    eight = tiny.train_loop(devices=jax.devices(), **options)
    for alone, together in zip(one, eight, strict=True):
        np.testing.assert_allclose(alone.loss, together.loss, rtol=1e-5)
        ones, eights = (trellis.Summary.from_checkpoint(each).metrics["train"] for each in (alone, together))
        for name in ("gradients_l2norm", "weights_l2norm"):
            np.testing.assert_allclose(ones[name], eights[name], rtol=1e-4)
        assert [leaf.shape for leaf in tiny.arrays(alone)] == [leaf.shape for leaf in tiny.arrays(together)]


def test_the_number_of_weights_does_not_depend_on_the_number_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    for n_devices in (1, 8):
        tiny.train_loop(devices=jax.devices()[:n_devices], n_steps=1, stdout=True).start()
        assert "Total number of trainable weights: 212 = 848 B." in capsys.readouterr().out


def test_norms_are_those_of_all_weights_together() -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    train = trellis.Summary.from_checkpoint(checkpoint).metrics["train"]
    for name, tree in (("gradients_l2norm", checkpoint.grads), ("weights_l2norm", checkpoint.model_params)):
        together = np.concatenate([leaf.ravel() for leaf in tiny.arrays(tree)])
        np.testing.assert_allclose(train[name], np.linalg.norm(together), rtol=1e-5)


def test_gradients_are_left_out_on_demand() -> None:
    checkpoint = tiny.train_loop(n_steps=1, grads=False).next_step()
    assert checkpoint.grads is None
    assert "gradients_l2norm" not in trellis.Summary.from_checkpoint(checkpoint).metrics["train"]


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    runs = [
        tiny.arrays(tiny.train_loop(rnkey=jax.random.key(seed), n_steps=3).next_checkpoint().model_params)
        for seed in (1, 1, 2)
    ]
    tiny.assert_equal(runs[0], runs[1])
    assert any((one != other).any() for one, other in zip(runs[0], runs[2], strict=True))


def test_old_keys_are_taken_as_new_ones_are() -> None:
    assert np.isfinite(tiny.train_loop(rnkey=jax.random.PRNGKey(0), n_steps=1).next_step().loss)


def test_the_batch_that_shapes_the_model_is_trained_on_too() -> None:
    drawn = []

    def counted() -> Iterator[Any]:
        for batch in tiny.batches():
            drawn.append(batch)
            yield batch

    from_iterator = tiny.train_loop(tiny.train_task(data=counted()), n_steps=2, n_steps_per_checkpoint=2)
    from_stream = tiny.train_loop(n_steps=2, n_steps_per_checkpoint=2)
    assert next(iter(from_iterator)).loss == next(iter(from_stream)).loss
    assert len(drawn) == 2


def test_an_input_sample_leaves_the_data_alone() -> None:
    data = tiny.batches()
    loop = tiny.train_loop(tiny.train_task(data=data), input_sample=np.zeros((2, 8), np.float32), n_steps=1)
    assert np.isfinite(loop.next_step().loss)


def test_several_inputs_outputs_and_no_targets() -> None:
    class Two(nn.Module):
        @nn.compact
        def __call__(self, a: Any, b: Any) -> Any:
            return nn.Dense(1)(a), nn.Dense(1)(b)

    def data() -> Iterator[Any]:
        while True:
            yield (np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)), ()

    def loss(one: Any, two: Any) -> Any:
        return jnp.mean((one - two) ** 2) + jnp.mean((one + two - 1) ** 2)

    task = trellis.TrainTask(apply=Two().apply, optimizer=optax.sgd(0.1), loss=loss, data=data())
    losses = [checkpoint.loss for checkpoint in tiny.train_loop(task, init=Two().init, n_steps=30)]
    assert losses[-1] < 1e-3 < losses[0]


def test_a_mapping_goes_whole_to_the_model_and_to_the_loss() -> None:
    class Regression(nn.Module):
        @nn.compact
        def __call__(self, batch: Any) -> Any:
            return nn.Dense(1)(batch["x"])

    data = trellis.ExampleStream({"x": np.ones((32, 3), np.float32), "y": np.ones((32, 1), np.float32)}, batch_size=8)
    task = trellis.TrainTask(
        apply=Regression().apply,
        optimizer=optax.sgd(0.1),
        loss=lambda outputs, batch: jnp.mean((outputs - batch["y"]) ** 2),
        data=data,
    )
    losses = [checkpoint.loss for checkpoint in tiny.train_loop(task, init=Regression().init, n_steps=30)]
    assert losses[-1] < 1e-3 < losses[0]


@pytest.mark.parametrize("optimizer", [optax.adamw(1e-2), optax.lamb(1e-2), optax.sgd(0.1, momentum=0.9)])
def test_optimizers_that_need_the_parameters_get_them(optimizer: Any) -> None:
    loop = tiny.train_loop(tiny.train_task(optimizer=optimizer), n_steps=40, n_steps_per_checkpoint=20)
    first, last = loop
    assert last.loss < first.loss


def test_a_checkpoint_is_stale_when_the_loop_has_moved_on() -> None:
    loop = tiny.train_loop(n_steps=2)
    first = loop.next_step()
    kept = first.copy()
    values = tiny.arrays(first.model_params)
    loop.next_step()
    with pytest.raises(StaleCheckpointError, match=r"step 1 is gone.*Take `checkpoint.copy\(\)`"):
        _ = first.model_params
    assert first.step == 1
    tiny.assert_equal(tiny.arrays(kept.model_params), values)


def test_metrics_of_the_training_batches_are_reported() -> None:
    task = tiny.train_task(metrics={"accuracy": tiny.accuracy})
    checkpoints = list(tiny.train_loop(task, n_steps=200, n_steps_per_checkpoint=100))
    assert checkpoints[0].train_metrics["accuracy"] < checkpoints[1].train_metrics["accuracy"] <= 1


@pytest.mark.parametrize("loss", [tiny.cross_entropy, "masked"])
def test_accumulated_gradients_equal_those_of_the_big_batch(loss: Any) -> None:
    def masked(logits: Any, labels: Any) -> trellis.Mean:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return trellis.Mean(total=jnp.sum(losses * (labels > 0)), weight=jnp.sum(labels > 0))

    function = masked if loss == "masked" else loss
    whole, parts = (
        tiny.train_loop(tiny.train_task(loss=function, n_microbatches=n), n_steps=1, devices=devices).next_step()
        for n, devices in ((1, jax.devices()[:1]), (2, jax.devices()))
    )
    np.testing.assert_allclose(whole.loss, parts.loss, rtol=1e-6)
    for one, other in zip(tiny.arrays(whole.grads), tiny.arrays(parts.grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


class _Convolution(nn.Module):
    """Inputs as a small image."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Conv(4, (2, 2))(x.reshape(len(x), 2, 4, 1)))
        return nn.Dense(4)(x.reshape(len(x), -1))


def _scanned_primitives(jaxpr: Any, *, inside: bool = False) -> set[str]:
    """The names of what runs in a scan, at any depth; one that is unrolled is none."""
    names: set[str] = set()
    for equation in jaxpr.eqns:
        names |= {equation.primitive.name} if inside else set()
        params = equation.params
        is_scan = equation.primitive.name == "scan" and params["unroll"] < params["length"]
        for leaf in jax.tree.leaves(params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(leaf, "eqns"):
                names |= _scanned_primitives(leaf, inside=inside or is_scan)
    return names


@pytest.mark.parametrize("n_parts", [1, 4])
def test_convolutions_are_not_put_into_a_scan_on_cpus_where_they_are_slow(
    n_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: set[str] = set()
    lower = FusedSteps._compile

    def compiled(self: Any, n: int, *arguments: Any) -> Any:
        step = self._scan if n > 1 else self._one
        scanned.update(_scanned_primitives(jax.make_jaxpr(step)(arguments[0], None, *arguments[1:])))
        return lower(self, n, *arguments)

    monkeypatch.setattr(FusedSteps, "_compile", compiled)
    task = tiny.train_task(_Convolution(), n_microbatches=n_parts)
    options = {"n_steps": 6, "n_steps_per_checkpoint": 3, "grads": False}
    losses = [
        [checkpoint.loss for checkpoint in tiny.train_loop(task, init=_Convolution().init, n_fused_steps=n, **options)]
        for n in (None, 1)
    ]
    assert "conv_general_dilated" not in scanned
    np.testing.assert_allclose(*losses, rtol=1e-5)
    scanned.clear()
    list(tiny.train_loop(task, init=_Convolution().init, n_fused_steps=3, **options))
    assert "conv_general_dilated" in scanned  # where somebody asks for it
    scanned.clear()
    list(tiny.train_loop(n_fused_steps=None, **options))
    assert "dot_general" in scanned


class _Logarithm(nn.Module):
    """A model whose logits are NaN for inputs of the second batch."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return jnp.log(jnp.float32(1) - x[:, :4]) + nn.Dense(4)(x) * 0


def test_jax_names_the_operation_that_makes_a_nan_where_it_is_asked_to() -> None:
    x = np.zeros((32, 8), np.float32)
    x[16:] = 2
    data = trellis.ExampleStream((x, np.zeros(32, np.int32)), batch_size=16, shuffle=False)
    loop = tiny.train_loop(tiny.train_task(_Logarithm(), data=data), init=_Logarithm().init, n_steps=4)
    with jax.debug_nans(True):
        assert loop.next_step().step == 1
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in log") as error:
            loop.next_step()
    assert any(frame.name == "__call__" and frame.path == Path(__file__) for frame in error.traceback)
    assert error.value.__notes__ == ["That was in step 2."]


def test_a_batch_in_which_all_is_masked_changes_nothing() -> None:
    def nothing(logits: Any, labels: Any) -> trellis.Mean:
        return trellis.Mean(total=jnp.sum(logits) * 0, weight=jnp.sum(labels) * 0)

    checkpoint = tiny.train_loop(tiny.train_task(loss=nothing, optimizer=optax.sgd(1.0)), n_steps=1).next_step()
    assert all((leaf == 0).all() for leaf in tiny.arrays(checkpoint.grads))


def test_a_whole_train_step_can_be_given() -> None:
    model, optimizer = tiny.Classifier(), optax.sgd(0.1)

    def step(state: Any, batch: Any, keys: Any) -> Any:
        def loss(params: Any) -> Any:
            noise = jax.random.normal(keys["noise"], (8,)) * 0.01
            return tiny.cross_entropy(model.apply({"params": params}, batch[0] + noise[None]), batch[1])

        value, grads = jax.value_and_grad(loss)(state.params)
        updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new = trellis.TrainState(state.step, params, state.model_state, optimizer_state)
        return new, trellis.StepOutput(loss=value, metrics={"double": trellis.Mean(2 * value, jnp.float32(1))})

    task = trellis.TrainTask(train_step=step, optimizer=optimizer, data=tiny.stream())
    checkpoints = list(tiny.train_loop(task, n_steps=60, n_steps_per_checkpoint=30))
    assert checkpoints[1].loss < checkpoints[0].loss
    np.testing.assert_allclose(checkpoints[0].train_metrics["double"], 2 * checkpoints[0].loss, rtol=1e-5)


def test_the_variables_of_a_checkpoint_are_what_the_model_takes() -> None:
    model = tiny.Classifier(train=True, has_statistics=True)
    checkpoint = tiny.train_loop(tiny.train_task(model), init=model.init, n_steps=1).next_step()
    assert checkpoint.variables.keys() == {"params", "batch_stats"}
    answers = tiny.Classifier(has_statistics=True).apply(checkpoint.variables, tiny.examples(4)[0])
    assert answers.shape == (4, 4)


def test_batch_statistics_are_updated_and_dropout_differs_by_step() -> None:
    model = tiny.Classifier(train=True, dropout_rate=0.5, has_statistics=True)
    loop = tiny.train_loop(
        tiny.train_task(model, optimizer=optax.sgd(0.0), data=tiny.stream(seed=3)),
        init=tiny.Classifier(has_statistics=True).init,
        collections={"init": ["params"], "apply": ["dropout"]},
        n_steps=3,
    )
    first = loop.next_step().copy()
    second = loop.next_step()
    assert set(second.model_state) == {"batch_stats"}
    assert any((a != b).any() for a, b in zip(*map(tiny.arrays, (first.model_state, second.model_state)), strict=True))
    assert first.loss != second.loss


def test_statistics_stay_as_they_are_unless_they_may_change() -> None:
    model = tiny.Classifier(has_statistics=True)
    loop = tiny.train_loop(tiny.train_task(model), init=model.init, mutable_collections=False, n_steps=2)
    first, second = (tiny.arrays(loop.next_step().model_state) for _ in range(2))
    tiny.assert_equal(first, second)


def test_integer_state_survives_eight_devices() -> None:
    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            counter = self.variable("counters", "calls", lambda: jnp.int32(0))
            if not self.is_initializing():
                counter.value += 1
            return nn.Dense(4)(x)

    loop = tiny.train_loop(tiny.train_task(Counting()), init=Counting().init, devices=jax.devices(), n_steps=5)
    assert [int(checkpoint.model_state["counters"]["calls"]) for checkpoint in loop] == [1, 2, 3, 4, 5]


def test_a_loss_that_is_not_a_number_is_told_at_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    def data() -> Iterator[Any]:
        for step, (x, y) in enumerate(tiny.batches()):
            yield (x * np.float32(np.nan) if step == 6 else x), y

    loop = tiny.train_loop(tiny.train_task(data=data()), n_steps=10, n_steps_per_checkpoint=5, stdout=True)
    first, second = loop
    assert np.isfinite(first.loss)
    assert np.isnan(second.loss)
    assert "Step      7: the loss is not finite." in capsys.readouterr().out.splitlines()


def test_a_loss_that_stays_not_a_number_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    def data() -> Iterator[Any]:
        for step, (x, y) in enumerate(tiny.batches()):
            yield (x * np.float32(np.nan) if step == 6 else x), y

    loop = tiny.train_loop(tiny.train_task(data=data()), n_steps=30, n_steps_per_checkpoint=5, stdout=True)
    assert [bool(np.isnan(checkpoint.loss)) for checkpoint in loop] == [False, *5 * [True]]
    assert capsys.readouterr().out.count("the loss is not finite") == 1


def test_the_first_checkpoint_tells_the_time_of_compiling() -> None:
    loop = tiny.train_loop(n_steps=4, n_steps_per_checkpoint=2)
    first = loop.next_checkpoint()
    assert 0 < first.compile_time <= first.elapsed_time
    assert "compile_seconds" in trellis.Summary.from_checkpoint(first).metrics["train"]
    assert loop.next_checkpoint().compile_time == 0


def test_a_finite_stream_says_how_long_to_train() -> None:
    task = tiny.train_task(data=tiny.stream(n_epochs=1, drop_remainder=True))
    assert [checkpoint.step for checkpoint in tiny.train_loop(task, n_steps_per_checkpoint=10)] == [10, 16]


def test_data_that_ends_early_yields_the_work_so_far_and_says_what_is_missing() -> None:
    loop = tiny.train_loop(tiny.train_task(data=tiny.batches(n=7)), n_steps=20, n_steps_per_checkpoint=5)
    seen = []
    with pytest.raises(StreamEndedError, match=r"ended after 7 steps: 13 of 20 are missing.*n_steps=7"):
        seen.extend((checkpoint.step, checkpoint.n_completed_steps, checkpoint.is_last) for checkpoint in loop)
    assert seen == [(5, 5, False), (7, 2, True)]


def bad_shapes() -> Iterator[Any]:
    """Batches of which the third is short."""
    for step, (x, y) in enumerate(tiny.batches()):
        yield (x[:5], y[:5]) if step == 2 else (x, y)


def bare_loss(state: Any, batch: Any, keys: Any) -> Any:
    """A step of another library's shape."""
    return jnp.sum(batch[0])


def step_with_optimizer(state: Any, batch: Any, keys: Any) -> Any:
    """A step that updates by an optimizer which the loop was not told of."""
    return optax.adam(1e-3).update(state.params, state.optimizer_state, state.params)


def words() -> trellis.ExampleStream:
    """Batches with a column of text."""
    return trellis.ExampleStream({"word": np.array(["a", "b"] * 8)}, batch_size=4)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: tiny.train_task(optimizer=0.001),
            ArgumentError,
            r"TrainTask.optimizer is 0.001. Give an optimizer with that rate: optax.adam\(0.001\)",
        ),
        (
            lambda: tiny.train_task(optimizer=optax.adam),
            ArgumentError,
            r"TrainTask.optimizer is the function adam. Give what it returns: optax.adam\(1e-3\)",
        ),
        (lambda: tiny.train_task(optimizer="adam"), ArgumentError, "TrainTask.optimizer is a str, which has no `init`"),
        (lambda: tiny.train_task(loss="mse"), ArgumentError, "TrainTask.loss is 'mse', which cannot be called"),
        (
            lambda: tiny.train_task(metrics=[tiny.accuracy]),
            ArgumentError,
            "TrainTask.metrics is a list. Give each metric a name",
        ),
        (
            lambda: tiny.train_task(metrics={"f1": trellis.F1}),
            ArgumentError,
            r"TrainTask.metrics\['f1'\] is the class F1. Give one of it: F1\(\)",
        ),
        (
            lambda: tiny.train_task(metrics={"a": 1}),
            ArgumentError,
            r"TrainTask.metrics\['a'\] is 1, which cannot be called",
        ),
        (
            lambda: trellis.TrainTask(train_step=lambda state, batch: None, data=tiny.stream()),
            ArgumentError,
            r"TrainTask.train_step takes \(state, batch\), but it is called with a state, a batch and keys",
        ),
        (
            lambda: tiny.train_loop(trellis.TrainTask(train_step=bare_loss, data=tiny.stream())),
            ModelError,
            r"train_step returned an array, .*: return state, trellis.StepOutput\(loss, metrics, grads\)",
        ),
        (
            lambda: tiny.train_loop(trellis.TrainTask(train_step=step_with_optimizer, data=tiny.stream())),
            Exception,
            "TrainTask has a train_step and no optimizer, so that state.optimizer_state is empty",
        ),
        (lambda: tiny.train_loop(rnkey=3), ArgumentError, r"rnkey is 3, which is no .*: jax.random.key\(3\)"),
        (
            lambda: tiny.train_loop(init=tiny.Classifier()),
            ArgumentError,
            r"init is the module Classifier. Give its method: init=Classifier\(…\).init",
        ),
        (lambda: tiny.train_loop(init=None), ArgumentError, "TrainLoop.init is None, which cannot be called"),
        (
            lambda: trellis.TrainLoop(init=tiny.Classifier().init, task=cast(Any, None)),
            ArgumentError,
            r"TrainLoop.task is None. Give a trellis.TrainTask\(…\)",
        ),
        (
            lambda: trellis.EvalLoop(task=cast(Any, tiny.train_task())),
            ArgumentError,
            r"EvalLoop.task is TrainTask\(.*Give a trellis.EvalTask\(…\)",
        ),
        (
            lambda: tiny.train_loop(collections=["dropout"]),
            ArgumentError,
            r"collections is \['dropout'\]. Say for",
        ),
        (lambda: tiny.train_loop(devices=1), ArgumentError, r"devices is 1. Give a list of devices"),
        (lambda: tiny.train_loop(n_steps="10"), ArgumentError, "n_steps is '10', which is no whole number"),
        (lambda: tiny.train_loop(n_steps=2.5), ArgumentError, "n_steps is 2.5, which is no whole number"),
        (lambda: tiny.train_loop(n_steps_per_checkpoint="5"), ArgumentError, "n_steps_per_checkpoint is '5', which is"),
        (
            lambda: tiny.train_loop(tiny.train_task(data=words())),
            DataError,
            r"batch\['word'\] holds text \(<U1\), but a batch has numbers. Turn classes into numbers",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(loss=lambda logits, labels: None)),
            ModelError,
            "'loss' returned None, but a scalar is needed. Does the function end without `return`?",
        ),
        (lambda: tiny.train_loop(n_steps=0), ArgumentError, "n_steps is 0, but training takes at least one step"),
        (lambda: tiny.train_loop(n_steps=-3), ArgumentError, "n_steps is -3"),
        (lambda: tiny.train_loop(n_steps=4, n_steps_per_checkpoint=0), ArgumentError, "n_steps_per_checkpoint is 0"),
        (lambda: list(tiny.train_loop()), ArgumentError, r"not said how long to train.*loop\(n_steps=…\)"),
        (
            lambda: tiny.train_loop(tiny.train_task(data=[tiny.stream().batch(0)])),
            ArgumentError,
            r"TrainTask.data is a list: neither a stream .* nor an iterator.*iter\(…\)",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(data=tiny.stream(batch_size=12)), devices=jax.devices()),
            DataError,
            "A batch of 12 examples cannot be split over 8 devices. Use a batch size of 8 or 16",
        ),
        (
            lambda: list(tiny.train_loop(tiny.train_task(data=bad_shapes()), n_steps=5)),
            DataError,
            r"batch of step 3 is \(float32\[5, 8\], int32\[5\]\), but those before were \(float32\[16, 8\]",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(loss=lambda logits, labels: logits)),
            ModelError,
            r"'loss' returned an array of shape \(16, 4\), but a scalar is needed",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(tiny.Classifier(train=True, dropout_rate=0.5))),
            ModelError,
            r"asks for the rng collection 'dropout'.*'apply': \['dropout'\]",
        ),
        (lambda: tiny.train_loop(n_fused_steps=0), ArgumentError, "n_fused_steps is 0"),
        (
            lambda: tiny.train_loop(tiny.train_task(data=tiny.stream(n_epochs=1)), n_steps=17),
            ArgumentError,
            "n_steps is 17, but TrainTask.data holds 16 batches",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(data=iter([]))),
            DataError,
            "TrainTask.data ended before its first batch",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(data=iter([np.ones((8, 3))]))),
            ModelError,
            r"A batch is a ndarray.*Without targets yield \(inputs, \(\)\)",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(data=iter([(np.ones((8, 3)), np.ones(7))]))),
            DataError,
            r"differ in their leading axis \(batch\[0\]: 8, batch\[1\]: 7\)",
        ),
        (
            lambda: tiny.train_loop(tiny.train_task(n_microbatches=3)),
            ArgumentError,
            "A batch of 16 examples cannot be cut into n_microbatches=3 equal parts",
        ),
        (lambda: tiny.train_task(n_microbatches=0), ArgumentError, "n_microbatches is 0"),
        (lambda: trellis.TrainTask(data=tiny.stream()), ArgumentError, "needs apply, optimizer and loss, or in their"),
        (lambda: tiny.train_task(train_step=lambda *_: None), ArgumentError, "or in their place a whole train_step"),
    ],
)
def test_bad_input_is_a_clear_error(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build().start()


def test_a_loop_that_has_reached_its_target_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    loop = tiny.train_loop(n_steps=2, stdout=True)
    assert len(list(loop)) == 2
    assert list(loop) == []
    assert "Stop training, already reached the total training steps 2." in capsys.readouterr().out


def test_progress_tells_of_a_checkpoint_when_its_steps_are_done_and_not_when_they_are_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    loop = tiny.train_loop(n_steps=4, n_steps_per_checkpoint=2, n_fused_steps=1)
    wait = FusedSteps.wait
    monkeypatch.setattr(
        FusedSteps, "wait", lambda self, n_left=0: wait(self, n_left=n_left) or n_left or seen.append("done")
    )
    loop.session.subscribe_to_progress(lambda step, _: seen.append(step))
    assert [checkpoint.step for checkpoint in loop] == [2, 4]
    assert seen == [0, 1, "done", 2, 2, 3, "done", 4]


class Recording:
    """A stream that tells which batches were made."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._stream = tiny.stream()

    def batch(self, step: int) -> Any:
        self.steps.append(step)
        return self._stream.batch(step)


@pytest.mark.parametrize("n_devices", [1, 8])
def test_a_loop_is_lazy_until_its_first_step(n_devices: int) -> None:
    data, calls = Recording(), []

    def init(*arguments: Any) -> Any:
        calls.append("init")
        return tiny.Classifier().init(*arguments)

    def loss(*arguments: Any) -> Any:
        calls.append("loss")
        return tiny.cross_entropy(*arguments)

    loop = tiny.train_loop(
        tiny.train_task(data=data, loss=loss), init=init, n_steps=2, devices=jax.devices()[:n_devices]
    )
    assert (loop.step, data.steps, calls) == (0, [], [])
    outline = loop.outline()
    assert (data.steps, calls) == ([0], ["init", "loss"])
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(outline.checkpoint.model_params))
    assert outline.metrics == ("loss",) and outline.flops > 0
    assert [checkpoint.step for checkpoint in loop] == [1, 2]
    # No batch was made twice, and nothing traced twice.
    assert (data.steps, calls) == ([0, 1], ["init", "loss"])


def test_a_breakpoint_in_a_loss_shows_the_loop_and_the_step_alone() -> None:
    frames: list[str] = []

    def loss(*arguments: Any) -> Any:
        ours = [frame for frame in traceback.extract_stack() if "/src/trellis/" in frame.filename]
        frames.extend(f"{Path(frame.filename).stem}.{frame.name}" for frame in ours)
        return tiny.cross_entropy(*arguments)

    next(tiny.train_loop(tiny.train_task(loss=loss), n_steps=1))
    assert {frame.partition(".")[0] for frame in frames} == {"train_loop", "step"}


def test_checkpoints_are_compared_by_identity_and_not_array_by_array() -> None:
    first, second = (tiny.train_loop(n_steps=1).next_step() for _ in range(2))
    assert first == first and first != second and first != "a checkpoint"
    assert {first: 1}[first] == 1


def test_a_task_may_change_the_variables_to_start_from() -> None:
    def zeros(variables: Any) -> Any:
        return {"params": {"Dense_0": jax.tree.map(np.zeros_like, variables["params"]["Dense_0"])}}

    own = tiny.train_loop(n_steps=1).start()
    all_zeros = traceable(lambda variables: jax.tree.map(jnp.zeros_like, dict(variables)))
    for initialize in (zeros, all_zeros):
        started = tiny.train_loop(tiny.train_task(initialize=initialize), n_steps=1).start()
        np.testing.assert_array_equal(started.model_params["Dense_0"]["kernel"], 0)
    started = tiny.train_loop(tiny.train_task(initialize=zeros), n_steps=1).start()
    np.testing.assert_array_equal(started.model_params["Dense_1"]["kernel"], own.model_params["Dense_1"]["kernel"])
    with pytest.raises(ModelError, match="TrainTask.initialize returned variables that its model does not have"):
        tiny.train_loop(tiny.train_task(initialize=lambda variables: {"params": {"no": 1.0}}), n_steps=1).start()


def test_an_error_in_a_users_loss_has_no_note_on_what_jax_has_left_out() -> None:
    with pytest.raises(TypeError) as error:
        tiny.train_loop(tiny.train_task(loss=lambda logits, labels: logits @ labels)).outline()
    told = "".join(traceback.format_exception(error.value))
    assert "internal frames" not in told
    assert "That was while tracing a training step with a batch of (float32[16,8], int32[16])." in told


def test_a_plain_number_among_the_metrics_of_a_step_is_a_mean() -> None:
    def step(state: Any, batch: Any, keys: Any) -> Any:
        return state, trellis.StepOutput(jnp.float32(2), {"step": state.step.astype(jnp.float32)}, None)

    loop = tiny.train_loop(trellis.TrainTask(train_step=step, data=tiny.stream()), n_steps=4, n_steps_per_checkpoint=4)
    (checkpoint,) = loop
    assert checkpoint.loss == 2.0
    assert checkpoint.train_metrics["step"] == 1.5


@pytest.mark.parametrize("n_fused_steps", [1, 4])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_state": {"ema": np.zeros(3, np.float32)}}, r"model_state/ema: — before, float32\[3\] after"),
        ({"params": {}}, r"params/Dense_0/bias: float32\[16\] before, — after"),
        ({"optimizer_state": np.zeros((2, 3), np.float32)}, r"optimizer_state: — before, float32\[2, 3\] after"),
    ],
)
def test_a_step_that_returns_other_arrays_is_refused_before_it_runs(
    changes: dict[str, Any], named: str, n_fused_steps: int
) -> None:
    def step(state: Any, batch: Any, keys: Any) -> Any:
        return dataclasses.replace(state, **changes), trellis.StepOutput(jnp.float32(2))

    task = trellis.TrainTask(train_step=step, data=tiny.stream())
    loop = tiny.train_loop(task, n_steps=4, n_steps_per_checkpoint=4, n_fused_steps=n_fused_steps)
    with pytest.raises(ModelError, match=rf"(?s)train_step returned a state with other arrays .*{named}.*made by init"):
        loop.outline()


def test_a_step_that_counts_itself_is_counted_once() -> None:
    def step(state: Any, batch: Any, keys: Any) -> Any:
        metrics = {"step": state.step.astype(jnp.float32)}
        return dataclasses.replace(state, step=state.step + 1), trellis.StepOutput(jnp.float32(2), metrics)

    loop = tiny.train_loop(trellis.TrainTask(train_step=step, data=tiny.stream()), n_steps=4, n_steps_per_checkpoint=4)
    (checkpoint,) = loop
    assert checkpoint.train_metrics["step"] == 1.5


def test_an_optimizer_may_search_along_a_line() -> None:
    loop = tiny.train_loop(tiny.train_task(optimizer=optax.lbfgs(), data=tiny.stream(256)), n_steps=12)
    losses = [checkpoint.loss for checkpoint in loop(n_steps=12)]
    assert losses[-1] < 0.2 < losses[0]


def test_a_number_of_steps_may_be_written_with_an_exponent() -> None:
    assert tiny.train_loop(n_steps=1e3, n_steps_per_checkpoint=np.int64(100)).n_steps == 1000
