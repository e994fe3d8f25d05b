"""The evaluation loop: exact metrics over all batches, the same ones for every checkpoint."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import trellis
from tests import tiny
from trellis.errors import ArgumentError, DataError, ModelError, StaleCheckpointError
from trellis.runtime import Placement


@pytest.mark.parametrize("batch_size", [256, 100, 7])
@pytest.mark.parametrize("n_devices", [1, 8])
def test_metrics_over_all_examples_are_exact_for_any_batch_size(batch_size: int, n_devices: int) -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    data = tiny.stream(batch_size=batch_size, shuffle=False, n_epochs=1)
    summary = tiny.eval_loop(data=data, devices=jax.devices()[:n_devices])(checkpoint)
    x, y = tiny.examples()
    logits = tiny.Classifier().apply({"params": checkpoint.model_params}, x)
    np.testing.assert_allclose(summary.metrics["eval"]["accuracy"], tiny.accuracy(logits, y), rtol=1e-6)
    np.testing.assert_allclose(summary.metrics["eval"]["loss"], tiny.cross_entropy(logits, y), rtol=1e-5)


def test_a_summary_is_the_checkpoint_with_groups_in_order() -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    summary = tiny.eval_loop()(checkpoint)
    assert isinstance(summary, trellis.Summary)
    assert list(summary.metrics) == ["train", "eval"]
    assert list(summary.metrics["eval"]) == ["accuracy", "loss"]
    clocked = ["seconds_per_step", "compile_seconds", "input_wait", "examples_per_second"]
    train = [*clocked, "gradients_l2norm", "weights_l2norm", "loss"]
    assert list(summary.metrics["train"]) == train
    assert (summary.step, summary.loss, summary.is_last) == (checkpoint.step, checkpoint.loss, checkpoint.is_last)
    assert summary.model_params is checkpoint.model_params


def test_a_second_evaluation_adds_its_group() -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    summary = tiny.eval_loop(group="test")(tiny.eval_loop()(checkpoint))
    assert list(summary.metrics) == ["train", "eval", "test"]


@pytest.mark.parametrize("kind", ["stream", "iterator", "list", "stateful"])
def test_every_checkpoint_is_measured_on_the_same_batches(kind: str) -> None:
    data: Any = {
        "stream": tiny.stream(),
        "iterator": tiny.batches(),
        "list": [tiny.stream().batch(step) for step in range(3)],
        "stateful": Stateful(),
    }[kind]
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    loop = tiny.eval_loop(data=data, n_steps=3)
    assert loop(checkpoint).metrics["eval"] == loop(checkpoint).metrics["eval"]
    assert loop(checkpoint).metrics["eval"] == tiny.eval_loop(data=tiny.stream(), n_steps=3)(checkpoint).metrics["eval"]


class Stateful:
    """An iterator that knows where it stands."""

    def __init__(self) -> None:
        self.step = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.step += 1
        return tiny.stream().batch(self.step - 1)

    def get_state(self) -> dict[str, int]:
        """The number of batches given."""
        return {"step": self.step}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes back, or forth."""
        self.step = state["step"]


def test_a_list_of_batches_is_measured_whole() -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    data = [tiny.stream().batch(step) for step in range(4)]
    whole, limited = tiny.eval_loop(data=data)(checkpoint), tiny.eval_loop(data=data, n_steps=4)(checkpoint)
    assert whole.metrics["eval"] == limited.metrics["eval"]


def test_evaluation_changes_no_state_and_needs_no_randomness_of_its_own() -> None:
    model = tiny.Classifier(has_statistics=True)
    task = tiny.train_task(tiny.Classifier(train=True, has_statistics=True))
    loop = tiny.train_loop(task, init=model.init, n_steps=1)
    checkpoint = loop.next_step()
    before = tiny.arrays(checkpoint.model_state)
    summary = tiny.eval_loop(model)(checkpoint)
    tiny.assert_equal(tiny.arrays(summary.model_state), before)


def test_a_model_that_needs_randomness_gets_the_same_each_time() -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    noisy = tiny.Classifier(train=True, dropout_rate=0.5)
    loop = tiny.eval_loop(noisy, collections={"apply": ["dropout"]}, rnkey=jax.random.key(3))
    assert loop(checkpoint).metrics["eval"] == loop(checkpoint).metrics["eval"]


def test_a_metric_may_be_a_state_of_its_own() -> None:
    def masked(logits: Any, labels: Any) -> trellis.Mean:
        mask = labels == 1
        return trellis.Mean(total=jnp.sum((logits.argmax(-1) == labels) * mask), weight=jnp.sum(mask))

    checkpoint = tiny.train_loop(n_steps=1).next_step()
    data = tiny.stream(batch_size=50, shuffle=False, n_epochs=1)
    task = trellis.EvalTask(apply=tiny.Classifier().apply, metrics={"recall": masked}, data=data)
    found = trellis.EvalLoop(task=task)(checkpoint).metrics["eval"]["recall"]
    x, y = tiny.examples()
    logits = tiny.Classifier().apply({"params": checkpoint.model_params}, x)
    np.testing.assert_allclose(found, np.mean(np.asarray(logits)[y == 1].argmax(-1) == 1), rtol=1e-6)


def test_a_stale_checkpoint_cannot_be_measured() -> None:
    loop = tiny.train_loop(n_steps=2)
    checkpoint = loop.next_step()
    loop.next_step()
    with pytest.raises(StaleCheckpointError, match=r"checkpoint\.copy\(\)"):
        tiny.eval_loop()(checkpoint)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_steps": 0}, ArgumentError, "n_steps is 0, but an evaluation takes at least one batch"),
        ({"data": 3}, ArgumentError, "EvalTask.data is a int: neither a stream"),
        ({"n_steps": 4}, DataError, "holds 3 batches, but 4 are to be evaluated"),
        ({"data": tiny.batches(n=2), "n_steps": 4}, DataError, "holds 2 batches, but 4 are to be evaluated"),
        ({"data": []}, DataError, "holds 0 batches"),
    ],
)
def test_bad_input_is_a_clear_error(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tiny.eval_loop(**options)(tiny.checkpoint())


@pytest.mark.parametrize("n_devices", [1, 8])
@pytest.mark.parametrize("asks_first", [True, False])
def test_a_model_is_traced_once_for_all_evaluations(n_devices: int, asks_first: bool) -> None:
    calls: list[str] = []

    def apply(*arguments: Any, **options: Any) -> Any:
        calls.append("apply")
        return tiny.Classifier().apply(*arguments, **options)

    task = trellis.EvalTask(apply=apply, metrics={"accuracy": tiny.accuracy}, data=tiny.stream(batch_size=16))
    devices = jax.devices()[:n_devices]
    evaluate = trellis.EvalLoop(task=task, n_steps=3, devices=devices)
    loop = tiny.train_loop(n_steps=2, devices=devices)
    if asks_first:
        assert evaluate.outline(loop.outline().checkpoint).metrics == ("accuracy",)
    for checkpoint in loop:
        evaluate(checkpoint)
    assert calls == ["apply"]


def test_an_evaluation_follows_the_checkpoint_to_wherever_its_parameters_are(monkeypatch: pytest.MonkeyPatch) -> None:
    traced_for: list[Any] = []
    gather = Placement.gather

    def spy(placement: Placement, variables: Any, *, shardings: Any) -> Any:
        traced_for.extend(sharding.spec for sharding in jax.tree.leaves(shardings))
        return gather(placement, variables, shardings=shardings)

    monkeypatch.setattr(Placement, "gather", spy)
    x, y = np.ones((16, 64), np.float32), np.zeros(16, np.int32)
    task = trellis.EvalTask(
        apply=lambda variables, x, **_: x @ variables["params"]["kernel"],
        metrics={"mean": lambda outputs, y: outputs.mean()},
        data=trellis.ExampleStream((x, y), batch_size=16, n_epochs=1),
    )
    placement = Placement(jax.devices(), fsdp=8)
    evaluate = trellis.EvalLoop(task=task, devices=placement)
    kernel = np.ones((64, 64), np.float32)
    values = []
    for spec in (PartitionSpec("fsdp"), PartitionSpec(None, "fsdp"), PartitionSpec("fsdp")):
        placed = jax.device_put(kernel, NamedSharding(placement.mesh, spec))
        checkpoint = trellis.Checkpoint.of(trellis.TrainState(jnp.int32(1), {"kernel": placed}, {}, ()), step=1)
        values.append(evaluate(checkpoint).metrics["eval"]["mean"])
    assert values == [64.0, 64.0, 64.0]
    # One program for each way in which parameters are shared out, and each gathers them from where they are.
    assert traced_for == [PartitionSpec("fsdp"), PartitionSpec(None, "fsdp")]


class Running(nn.Module):
    """Predicts the sum of all that it has seen before."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        self.param("unused", nn.initializers.zeros, ())
        total = self.variable("memory", "total", jnp.zeros, (x.shape[0],))
        before = total.value
        if self.is_mutable_collection("memory"):
            total.value = before + x
        return before


def carrying_task(**options: Any) -> trellis.EvalTask:
    """A long sequence of two rows, cut into batches of one place: the targets are its sums so far."""
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    data = [(x[i], x[:i].sum(0)) for i in range(10)]
    given = {"apply": Running().apply, "metrics": {"error": trellis.MeanAbsoluteError()}, "data": data}
    return trellis.EvalTask(**given | options)


def running_checkpoint(total: float = 0.0) -> trellis.Summary:
    return dataclasses.replace(
        tiny.checkpoint(), model_params={"unused": jnp.zeros(())}, model_state={"memory": {"total": jnp.full(2, total)}}
    )


@pytest.mark.parametrize("start", [{"total": jnp.zeros(2)}, None])
def test_a_state_is_carried_from_batch_to_batch_and_starts_anew_for_each_checkpoint(start: Any) -> None:
    loop = trellis.EvalLoop(task=carrying_task(carry={"memory": start}), devices=jax.devices()[:1])
    for _ in range(2):
        assert loop(running_checkpoint()).metrics["eval"]["error"] == 0.0
    assert loop(running_checkpoint(total=1.0)).metrics["eval"]["error"] == (1.0 if start is None else 0.0)
    assert loop.outline(running_checkpoint()).metrics == ("error",)
    without = trellis.EvalLoop(task=carrying_task(), devices=jax.devices()[:1])
    assert without(running_checkpoint()).metrics["eval"]["error"] > 10


def test_a_whole_validation_step_returns_its_carry_third() -> None:
    def step(params: Any, model_state: Any, batch: Any, keys: Any) -> Any:
        x, target = batch
        metrics = {"error": trellis.MeanAbsoluteError()(model_state["memory"], target)}
        return metrics, (), {"memory": model_state["memory"] + x}

    task = carrying_task(apply=None, metrics={}, validation_step=step, carry={"memory": jnp.zeros(2)})
    assert trellis.EvalLoop(task=task)(running_checkpoint()).metrics["eval"]["error"] == 0.0
    forgetful = dataclasses.replace(task, validation_step=lambda *arguments: step(*arguments)[:2])
    with pytest.raises(ModelError, match=r"returned 2 things. Write: return metrics, \(\), {'memory': …}"):
        trellis.EvalLoop(task=forgetful)(running_checkpoint())


@pytest.mark.parametrize(
    ("carry", "error", "message"),
    [
        ({"memory": {"total": jnp.zeros(2, jnp.int32)}}, ModelError, r"int32\[2\].* before a batch and .*float32\[2\]"),
        ({"cache": None}, ArgumentError, r"carry\['cache'\] is None.*no such collection: memory. Give the arrays"),
        (["memory"], ArgumentError, r"carry is a list. Give collections by name"),
    ],
)
def test_a_carry_that_does_not_fit_is_told(carry: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        trellis.EvalLoop(task=carrying_task(carry=carry))(running_checkpoint())
