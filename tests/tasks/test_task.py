"""Tasks: default steps, what they measure, and how a config finds its task."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.config import bind
from trellis.errors import ArgumentError, ModelError, RegistryError
from trellis.loops import StepOutput
from trellis.runtime import StepKeys
from trellis.tasks import DifferentialPrivacyConfig


@dataclass
class TinyConfig(trellis.TaskConfig):
    hidden_size: int = 16


@dataclass
class TinierConfig(TinyConfig):
    hidden_size: int = 4


class Model(nn.Module):
    """Tells whether it is training, sows a loss, keeps statistics."""

    dropout_rate: float = 0.0
    sown: float | None = None
    has_statistics: bool = False

    @nn.compact
    def __call__(self, x: Any, training: bool = False) -> Any:
        if isinstance(x, Mapping):
            x = x["x"]
        if self.has_statistics:
            x = nn.BatchNorm(use_running_average=not training, momentum=0.9)(x)
        x = nn.Dropout(self.dropout_rate, deterministic=not training)(x)
        if self.sown is not None:
            self.sow("losses", "penalty", jnp.float32(self.sown))
        return nn.Dense(4)(x)


@trellis.register_task_cls(TinyConfig)
class TinyTask(trellis.Task):
    model = Model()

    def build_model(self) -> Model:
        return self.model

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return tiny.stream()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return tiny.cross_entropy(model_outputs, labels) + sum(aux_losses or ())

    def build_metrics(self, training: bool = True) -> Any:
        return {"accuracy": trellis.Accuracy()}


def first_state(task: trellis.Task, optimizer: optax.GradientTransformation) -> trellis.TrainState:
    x, _ = tiny.examples(16)
    variables = dict(task.build_model().init(jax.random.key(0), x))
    variables.pop("losses", None)
    params = variables.pop("params")
    return trellis.TrainState(jnp.int32(0), params, variables, optimizer.init(params))


def one_step(task: trellis.Task, batch: Any, **options: Any) -> tuple[trellis.TrainState, StepOutput]:
    optimizer = optax.sgd(0.1)
    return task.train_step(
        batch,
        state=first_state(task, optimizer),
        model=task.build_model(),
        optimizer=optimizer,
        metrics=task.build_metrics(training=True),
        keys=StepKeys(jax.random.key(1), 0),
        **options,
    )


def validate(task: trellis.Task, batch: Any) -> Mapping[str, Any]:
    state = first_state(task, optax.sgd(0.1))
    model = trellis.BoundModel(task.build_model(), params=state.params, model_state=state.model_state)
    return task.validation_step(batch, model, task.build_metrics(training=False))


def task_with(model: Model, cls: type[TinyTask] = TinyTask) -> TinyTask:
    task = cls(TinyConfig())
    task.model = model  # type: ignore[misc]
    return task


def test_a_training_step_updates_the_parameters_and_tells_loss_metrics_and_gradients() -> None:
    x, y = tiny.examples(16)
    task = TinyTask(TinyConfig())
    before = first_state(task, optax.sgd(0.1))
    state, output = one_step(task, (x, y))
    logits = Model().apply({"params": before.params}, x)
    np.testing.assert_allclose(output.loss.compute(), tiny.cross_entropy(logits, y), rtol=1e-6)
    np.testing.assert_allclose(output.metrics["accuracy"].compute(), tiny.accuracy(logits, y), rtol=1e-6)
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, before.params, output.grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state.params, expected)


def test_parts_of_a_batch_give_the_update_of_the_whole() -> None:
    batch = tiny.examples(16)
    whole, said = one_step(TinyTask(TinyConfig()), batch)
    parts, said_in_parts = one_step(TinyTask(TinyConfig()), batch, n_microbatches=4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), whole.params, parts.params)
    np.testing.assert_allclose(said.loss.compute(), said_in_parts.loss.compute(), rtol=1e-6)


def test_a_mapping_plays_both_roles() -> None:
    class MappingTask(TinyTask):
        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
            return tiny.cross_entropy(model_outputs, labels["y"])

        def process_metrics(self, metrics: Any, labels: Any, model_outputs: Any, **kwargs: Any) -> Any:
            return super().process_metrics(metrics, labels["y"], model_outputs)

    x, y = tiny.examples(16)
    task = task_with(Model(), MappingTask)
    _, of_mapping = one_step(task, {"x": x, "y": y})
    _, of_pair = one_step(TinyTask(TinyConfig()), (x, y))
    tiny.assert_equal((of_mapping.loss, dict(of_mapping.metrics)), (of_pair.loss, dict(of_pair.metrics)))


def test_a_model_is_told_that_it_trains_and_gets_a_key_for_dropout() -> None:
    x, y = tiny.examples(16)
    dropping, plain = task_with(Model(dropout_rate=0.9)), task_with(Model())
    assert one_step(dropping, (x, y))[1].loss != one_step(plain, (x, y))[1].loss
    tiny.assert_equal(validate(dropping, (x, y)), validate(plain, (x, y)))


def test_batch_statistics_change_in_training_only() -> None:
    x, y = tiny.examples(16)
    task = task_with(Model(has_statistics=True))
    state, _ = one_step(task, (x, y))
    assert not np.allclose(state.model_state["batch_stats"]["BatchNorm_0"]["mean"], 0)
    before = first_state(task, optax.sgd(0.1))
    model = trellis.BoundModel(task.model, params=before.params, model_state=before.model_state)
    model(x)
    tiny.assert_equal(model.model_state, before.model_state)


def test_losses_that_layers_sow_are_added_in_training_and_validation() -> None:
    batch = tiny.examples(16)
    with_penalty, without = task_with(Model(sown=2.5)), task_with(Model())
    more = one_step(with_penalty, batch)[1].loss.compute() - one_step(without, batch)[1].loss.compute()
    np.testing.assert_allclose(more, 2.5, rtol=1e-5)
    more = validate(with_penalty, batch)["loss"].compute() - validate(without, batch)["loss"].compute()
    np.testing.assert_allclose(more, 2.5, rtol=1e-5)


def test_without_losses_of_its_own_a_task_has_those_of_its_layers() -> None:
    class Bare(TinyTask):
        build_losses = trellis.Task.build_losses

    assert float(validate(task_with(Model(sown=2.5), Bare), tiny.examples(16))["loss"].compute()) == 2.5
    assert float(validate(task_with(Model(), Bare), tiny.examples(16))["loss"].compute()) == 0.0


def test_a_task_without_a_model_says_what_to_override() -> None:
    class NoModel(trellis.Task):
        def build_inputs(self, params: Any, input_context: Any = None) -> Any: ...

    with pytest.raises(ModelError, match=r"NoModel builds no model. Override build_model\(\)."):
        NoModel(TinyConfig()).build_model()


def test_a_config_finds_its_task_and_a_subclass_that_of_its_parent() -> None:
    task = trellis.get_task(TinierConfig(name="tiny"), logging_dir="runs/a")
    assert isinstance(task, TinyTask)
    assert (task.task_config.hidden_size, task.name, task.logging_dir) == (4, "tiny", "runs/a")
    assert trellis.get_task(TinyConfig()).name == "TinyTask"


def test_an_unknown_config_is_told_the_nearest_one() -> None:
    @dataclass
    class TinyConfigs(trellis.TaskConfig):
        pass

    with pytest.raises(RegistryError, match="There is no task for .*TinyConfigs. Did you mean TinyConfig?"):
        trellis.get_task(TinyConfigs())
    with pytest.raises(ArgumentError, match="it takes a TaskConfig, such as params.task"):
        trellis.get_task(trellis.ExperimentConfig())  # type: ignore[arg-type]


def test_a_task_that_is_bound_to_its_config_is_found_and_the_nearest_of_both_ways_wins() -> None:
    @dataclass
    class BoundConfig(TinyConfig):
        pass

    @dataclass
    class RegisteredConfig(BoundConfig):
        pass

    @bind(BoundConfig)
    def build(config: BoundConfig, **options: Any) -> trellis.Task:
        return TinyTask(config, **{**options, "name": "bound"})

    class Registered(TinyTask):
        pass

    assert trellis.get_task(BoundConfig(), logging_dir="runs/b").name == "bound"
    assert trellis.get_task(RegisteredConfig()).name == "bound"
    trellis.register_task_cls(RegisteredConfig)(Registered)
    assert type(trellis.get_task(RegisteredConfig())) is Registered


def test_what_is_bound_to_a_config_of_a_task_returns_a_task() -> None:
    @dataclass
    class OddConfig(TinyConfig):
        pass

    bind(OddConfig)(lambda config, **options: "a task")
    with pytest.raises(ArgumentError, match="The builder of OddConfig has returned 'a task', not a Task."):
        trellis.get_task(OddConfig())


def test_a_second_task_for_a_config_is_refused() -> None:
    with pytest.raises(RegistryError, match="is registered already"):
        trellis.register_task_cls(TinyConfig)


def test_private_gradients_are_clipped_first() -> None:
    config = trellis.OptimizationConfig(
        optimizer={"type": "sgd"}, learning_rate={"type": "constant", "constant": {"learning_rate": 1.0}}
    )
    private = DifferentialPrivacyConfig(clipping_norm=1.0)
    optimizer = trellis.Task.create_optimizer(config, dp_config=private)
    params = {"w": jnp.zeros(2)}
    updates, _ = optimizer.update({"w": jnp.array([3.0, 4.0])}, optimizer.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.6, -0.8], rtol=1e-6)
