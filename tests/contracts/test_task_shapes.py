"""The law of shapes: a task pasted from Model Garden runs as it is, or is refused with code that runs in its place."""

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from tests.trainer import small
from trellis.errors import ModelError
from trellis.tasks.shapes import SHAPES

tf: Any = ModuleType("tensorflow")


class PlainTask(small.SmallTask):
    """The small task without a step of its own."""

    validation_step = trellis.Task.validation_step
    aggregate_logs = trellis.Task.aggregate_logs
    reduce_aggregated_logs = trellis.Task.reduce_aggregated_logs


def run(kind: Any, model_dir: Path, **options: Any) -> Any:
    params = small.params(2, **options)
    trainer = trellis.Trainer(kind(params.task), config=params.trainer, runtime=params.runtime, model_dir=model_dir)
    return trainer.train()


class Listed(PlainTask):
    """Metrics in a list, updated by a step that returns the loss alone, as published steps do."""

    def build_metrics(self, training: bool = True) -> Any:
        return [trellis.Accuracy()]

    def process_metrics(self, metrics: Any, labels: Any, model_outputs: Any, **kwargs: Any) -> Any:
        for metric in metrics:
            metric.update_state(labels, model_outputs)

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
        features, labels = inputs
        outputs = self.inference_step(features, model)
        loss = self.build_losses(labels=labels, model_outputs=outputs, aux_losses=model.losses)
        logs = {self.loss: loss}
        if metrics:
            self.process_metrics(metrics, labels, outputs)
        if model.compiled_metrics:
            self.process_compiled_metrics(model.compiled_metrics, labels, outputs)  # type: ignore[attr-defined]
            logs.update({m.name: m.result() for m in model.metrics})
        return logs


class ListedByDefault(Listed):
    """The same, measured by the step of the base class's process_metrics."""

    process_metrics = trellis.Task.process_metrics


class Named(PlainTask):
    """Metrics that are found by their names, with weights, and results that are put among the logs."""

    def build_metrics(self, training: bool = True) -> Any:
        return [trellis.Accuracy(), trellis.loops.weighted_mean]

    def process_metrics(self, metrics: Any, labels: Any, model_outputs: Any, **kwargs: Any) -> Any:
        named = {metric.name: metric for metric in metrics}
        if "accuracy" in named:
            named["accuracy"].update_state(labels, model_outputs, jnp.ones(labels.shape))
        named["weighted_mean"].update_state(labels, sample_weight=jnp.ones(labels.shape))

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
        features, labels = inputs
        self.process_metrics(metrics, labels, self.inference_step(features, model))
        return {m.name: m.result() for m in metrics}


class Shared(PlainTask):
    """Data that asks for its share, and arguments without defaults or by position."""

    def __init__(self, params: Any, logging_dir: Any = None, name: Any = None) -> None:
        super().__init__(params, logging_dir, name=name)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        assert (input_context.num_input_pipelines, input_context.input_pipeline_id) == (1, 0)
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        return tiny.stream(size * input_context.num_replicas_in_sync, n_epochs=None if params.is_training else 1)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any) -> Any:  # type: ignore[override]
        return tiny.cross_entropy(model_outputs, labels) + sum(aux_losses or ())


class OwnOptimizer(PlainTask):
    """An optimizer of the published signature, built on that of the base class."""

    @classmethod
    def create_optimizer(  # type: ignore[override]
        cls, optimizer_config: Any, runtime_config: Any = None, dp_config: Any = None
    ) -> Any:
        return super().create_optimizer(optimizer_config, runtime_config, dp_config)


class StartingAsItIs(PlainTask):
    """A start that returns nothing if there is nothing to start from."""

    def initialize(self, model: Any) -> Any:
        if not self.task_config.init_checkpoint:
            return
        raise AssertionError


class StartingFromOnes(PlainTask):
    """A start that gives its model other parameters."""

    def initialize(self, model: Any) -> Any:
        model.params = jax.tree.map(jnp.ones_like, model.params)


class OnTheHost(PlainTask):
    """Metrics of the host in the published signature, whose arguments have defaults."""

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
        return {"said": self.inference_step(inputs[0], model), "labels": inputs[1]}

    def aggregate_logs(self, state: Any = None, step_outputs: Any = None) -> Any:
        if state is None:
            state = {"said": [], "labels": []}
        for name in state:
            state[name].append(np.concatenate([step_outputs[name]], axis=0))
        return state

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Any:
        said, labels = (np.concatenate(aggregated_logs[name]) for name in ("said", "labels"))
        return {"accuracy": (said.argmax(-1) == labels).mean()}


WORKING = {
    Listed: {"loss", "accuracy"},
    ListedByDefault: {"loss", "accuracy"},
    Named: {"accuracy", "weighted_mean"},
    Shared: {"loss", "accuracy"},
    OwnOptimizer: {"loss", "accuracy"},
    StartingAsItIs: {"loss", "accuracy"},
    StartingFromOnes: {"loss", "accuracy"},
    OnTheHost: {"accuracy"},
}


@pytest.fixture(scope="module")
def plain_metrics(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(PlainTask, tmp_path_factory.mktemp("plain")).metrics


@pytest.mark.parametrize("task", WORKING, ids=lambda task: task.__name__)
def test_a_published_shape_that_can_work_does(task: Any, tmp_path: Path, plain_metrics: Any) -> None:
    metrics = run(task, tmp_path).metrics
    assert metrics["eval"].keys() == WORKING[task]
    if task is not StartingFromOnes:
        assert metrics["eval"]["accuracy"] == pytest.approx(plain_metrics["eval"]["accuracy"], rel=1e-6)
        assert metrics["train"]["accuracy"] == pytest.approx(plain_metrics["train"]["accuracy"], rel=1e-6)


def test_metrics_of_a_list_are_updated_in_parts_of_a_batch_too(tmp_path: Path, plain_metrics: Any) -> None:
    metrics = run(Listed, tmp_path, n_microbatches=2).metrics
    assert metrics["train"]["accuracy"] == pytest.approx(plain_metrics["train"]["accuracy"], rel=1e-6)


class Keras:
    """What a metric of Keras has."""

    name = "cls_accuracy"

    def update_state(self, *_: Any) -> None: ...


class SparseCategoricalAccuracy(Keras): ...


class Hinge(Keras): ...


def pasted_train_step(self: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any: ...


def tolerant_train_step(self: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any = None, **_: Any) -> Any:
    optimizer.apply_gradients(zip([], model.trainable_variables, strict=True))


def train_step_of_logs(self: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any = None, **_: Any) -> Any:
    return {self.loss: 0.0}


def validation_step_of_two(self: Any, inputs: Any, model: Any) -> Any: ...


def losses_of_two(self: Any, labels: Any, model_outputs: Any) -> Any: ...


def losses_that_update(self: Any, labels: Any, model_outputs: Any, metrics: Any, aux_losses: Any = None) -> Any: ...


def losses_of_tensorflow(self: Any, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
    return [tf.reduce_mean(output) for output in model_outputs]


def process_compiled_metrics(self: Any, compiled_metrics: Any, labels: Any, model_outputs: Any) -> Any: ...


def metrics_of_nothing(self: Any, metrics: Any, labels: Any, model_outputs: Any, **kwargs: Any) -> Any: ...


def metrics_of_a_number(self: Any, metrics: Any, labels: Any, model_outputs: Any, **kwargs: Any) -> Any:
    return 0.5


def logs_of_replicas(self: Any, state: Any = None, step_outputs: Any = None) -> Any:
    return np.concatenate([value.numpy() for value in step_outputs["labels"]], axis=0)


def reduction_without_step(self: Any, aggregated_logs: Any) -> Any: ...


def restoring_initialize(self: Any, model: Any) -> Any:
    tf.train.Checkpoint(model=model).read("a").expect_partial().assert_existing_objects_matched()


@classmethod  # type: ignore[misc]
def keras_optimizer(cls: Any, optimizer_config: Any, runtime_config: Any = None, dp_config: Any = None) -> Any:
    return Keras()


@classmethod  # type: ignore[misc]
def optimizer_of_nothing(cls: Any) -> Any: ...


def returning(value: Any) -> Any:
    return lambda self, *_, **__: value


REFUSED: list[tuple[str, Any, str]] = [
    ("train_step", pasted_train_step, r"takes \(inputs.*, optimizer.* it is called as train_step\(inputs, state=…"),
    ("train_step", tolerant_train_step, r"calls `apply_gradients`, which is TensorFlow's: JAX's arrays do not change"),
    ("train_step", train_step_of_logs, "returned a dict: JAX's arrays do not change"),
    ("validation_step", validation_step_of_two, r"is called as validation_step\(inputs, model, metrics\)"),
    ("inference_step", lambda self, inputs: inputs, r"is called as inference_step\(inputs, model\)"),
    ("build_losses", losses_of_two, r"is called as build_losses\(labels, model_outputs, aux_losses=…\)"),
    ("build_losses", losses_that_update, r"is called as build_losses\(labels, model_outputs, aux_losses=…\)"),
    ("build_losses", losses_of_tensorflow, r"computes with TensorFlow \(`tf`\)"),
    ("process_compiled_metrics", process_compiled_metrics, "is not called: nothing is compiled into a model"),
    ("process_metrics", metrics_of_nothing, "neither returned nor updated 'accuracy'"),
    ("process_metrics", metrics_of_a_number, "returned a float"),
    ("build_metrics", lambda self: [], r"is called as build_metrics\(training=…\)"),
    ("aggregate_logs", logs_of_replicas, r"calls `numpy`, which is TensorFlow's: step_outputs are whole NumPy arrays"),
    ("reduce_aggregated_logs", reduction_without_step, r"is called as reduce_aggregated_logs\(aggregated_logs, global"),
    ("initialize", restoring_initialize, r"calls `assert_existing_objects_matched`"),
    ("initialize", returning(3), "returned a int"),
    ("initialize", lambda self: None, r"is called as initialize\(model\)"),
    ("create_optimizer", keras_optimizer, "returned a Keras: it returns an optimizer of optax"),
    ("create_optimizer", optimizer_of_nothing, r"is called as create_optimizer\(optimizer_config\)"),
    ("build_inputs", lambda self: None, r"is called as build_inputs\(params\)"),
    ("build_inputs", returning(None), "returned nothing: params is task_config.train_data"),
    ("build_model", returning(None), "returned nothing, which has no init and apply"),
]


@pytest.mark.parametrize(("name", "method", "said"), REFUSED)
def test_a_shape_that_cannot_work_is_refused_with_its_place_and_code(
    name: str, method: Any, said: str, tmp_path: Path
) -> None:
    task = type("Pasted", (PlainTask,), {name: method})
    line = inspect.unwrap(getattr(method, "__func__", method)).__code__.co_firstlineno
    with pytest.raises(ModelError, match=rf"(?s)Pasted\.{name} \({re.escape(__file__)}:{line}\) .*{said}") as raised:
        run(task, tmp_path)
    shown = SHAPES.get(name, SHAPES["process_metrics"]).code.strip("\n")
    assert str(raised.value).endswith(f" Write:\n{textwrap.indent(shown, '    ')}")
    assert not any(tmp_path.iterdir())


def test_all_that_is_refused_is_told_at_once(tmp_path: Path) -> None:
    methods = {"train_step": pasted_train_step, "build_losses": losses_of_two}
    with pytest.raises(ModelError, match=r"(?s)Pasted.build_losses .*\n\nPasted.train_step "):
        run(type("Pasted", (PlainTask,), methods), tmp_path)


@pytest.mark.parametrize(
    ("built", "said"),
    [
        (None, r"Built.build_metrics \(.*:\d+\) returned nothing. Return metrics by name: \{'accuracy'"),
        (trellis.Accuracy(), r"returned a Accuracy. Return metrics by name"),
        (
            [SparseCategoricalAccuracy()],
            r"Keras's SparseCategorical.*\{'cls_accuracy': trellis.Accuracy\(\)\}",
        ),
        ({"hinge": Hinge()}, r"Return in its place: \{'hinge': a function of \(outputs, labels\) that returns trellis"),
        ([trellis.Accuracy(), trellis.Accuracy(n_best=2)], "two metrics that are called 'accuracy'. Give each a name"),
        ([lambda outputs, labels: 0.0], "in a list, where nothing says what it is called. Return a mapping"),
        ([trellis.F1], r"returned the class F1 as 'F1'. Return one of it: F1\(\)"),
        ({"f1": trellis.F1}, r"returned the class F1 as 'f1'. Return one of it: F1\(\)"),
        ({"accuracy": 3}, "returned 3 as 'accuracy', which cannot be called"),
    ],
)
def test_metrics_that_cannot_be_used_are_refused(built: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said):
        run(type("Built", (PlainTask,), {"build_metrics": returning(built)}), tmp_path)


def test_a_start_that_reads_nothing_of_what_it_is_to_start_from_is_refused(tmp_path: Path) -> None:
    task = type("Pasted", (PlainTask,), {"initialize": returning(None)})
    with pytest.raises(ModelError, match=r"Pasted.initialize .* returned nothing, but the run is to start from `base`"):
        run(task, tmp_path, task={"init_checkpoint": "base"})


def test_a_setting_that_an_optimizer_of_ones_own_does_not_take_is_refused(tmp_path: Path) -> None:
    def create_optimizer(cls: Any, optimizer_config: Any) -> Any:
        return optax.sgd(0.1)

    task = type("Pasted", (PlainTask,), {"create_optimizer": classmethod(create_optimizer)})
    run(task, tmp_path)
    with pytest.raises(ModelError, match="takes no dp_config, but task.differential_privacy_config is set"):
        run(task, tmp_path, task={"differential_privacy_config": {"clipping_norm": 1.0}})


def test_the_code_that_is_shown_runs(tmp_path: Path) -> None:
    images, labels = tiny.examples()
    names = {"trellis": trellis, "optax": optax, "np": np, "images": images, "labels": labels}
    names["Classifier"] = lambda hidden_size: small.SmallModel()
    lines = [textwrap.indent(shape.code, "    ") for shape in SHAPES.values()]
    source = "class Shown(PlainTask):\n" + "".join(lines)
    exec(compile(source, "shown.py", "exec"), names | {"PlainTask": PlainTask}, scope := {})  # noqa: S102
    shown = scope["Shown"]

    def validation_step(self: Any, inputs: Any, model: Any, metrics: Any = None) -> Any:
        return {**shown.validation_step(self, inputs, model, metrics), "predictions": model(inputs[0]).argmax(-1)}

    both = type("Both", (shown,), {"validation_step": validation_step, "task_config": Sized(small.params().task)})
    metrics = run(both, tmp_path, validation_steps=2, n_microbatches=2).metrics
    assert metrics["eval"].keys() == {"loss", "accuracy", "mean_prediction"}
    assert metrics["train"].keys() >= {"loss", "accuracy"}


class Sized:
    """A config with a field more."""

    def __init__(self, config: Any) -> None:
        self._config = config

    hidden_size = 8

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def test_a_metric_that_a_step_does_not_return_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Losing(PlainTask):
        def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
            return {self.loss: self.build_losses(inputs[1], model(inputs[0]))}

    params = small.params(2)
    trellis.run_experiment(params, mode="train_and_eval", task=Losing(params.task), model_dir=tmp_path)
    said = "Not measured: accuracy. Losing.build_metrics builds it, but validation_step does not return it."
    assert capsys.readouterr().out.count(said) == 1


def test_a_method_that_is_not_needed_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = type("Pasted", (Listed,), {"process_compiled_metrics": process_compiled_metrics})
    params = small.params(2)
    trellis.run_experiment(params, mode="train", task=task(params.task), model_dir=tmp_path)
    assert "is not called: nothing is compiled into a model here. Metrics are those of" in capsys.readouterr().out
