"""What is learned: a model, data, a loss and metrics, and the steps made of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import jax
import jax.numpy as jnp
import optax

from trellis.aliases import JSON, Array, Batch, PyTree, Variables
from trellis.doors import import_whole
from trellis.errors import ArgumentError, ModelError, shown
from trellis.loops import (
    Media,
    Metric,
    MetricFunction,
    StepOutput,
    TrainState,
    as_metric,
    batch_sides,
    batch_size,
    traceable,
    update_state,
)
from trellis.optimizers import OptimizationConfig, build_optimizer, scale_loss
from trellis.registry import Registry
from trellis.runtime import RuntimeConfig, StepKeys
from trellis.tasks.batch_view import BatchView, view_of_sides
from trellis.tasks.bound_model import BoundModel, InferenceStep, Model
from trellis.tasks.built_metrics import BuiltMetrics, all_metrics, measure, name_metrics, renewed, results
from trellis.tasks.configs import DifferentialPrivacyConfig, InputContext, TaskConfig, with_copies
from trellis.tasks.gradient_noise import add_gradient_noise
from trellis.tasks.shapes import place_of, refused
from trellis.tasks.warm_start import read_warm_start


class Task(ABC):
    """A problem: its model, its data, its loss and its metrics. Override what your problem has of its own.

    A batch is a pair (inputs, labels), or a mapping that plays both roles. Steps are traced and compiled: they return
    what changes, as sums and weights (`trellis.Mean`) where it is to be averaged.

    Example:
        @trellis.register_task_cls(DigitsConfig)
        class DigitsTask(trellis.Task):
            def build_model(self):
                return Classifier(self.task_config.hidden_size)

            def build_inputs(self, params, input_context=None):
                return trellis.ExampleStream(read_digits(params), batch_size=params.global_batch_size)

            def build_losses(self, labels, model_outputs, aux_losses=None):
                return cross_entropy(model_outputs, labels)

            def build_metrics(self, training=True):
                return {"accuracy": trellis.Accuracy()}

    Args:
        params: The task's config.
        logging_dir: Where a run writes, for tasks that write something of their own.
        name: The default is the config's, or else the name of the class.
    """

    loss: ClassVar[str] = "loss"
    """The name of the loss among what a validation step returns."""
    rng_collections: ClassVar[tuple[str, ...]] = ("dropout",)
    """Of the keys that the model is given in training."""

    def __init__(self, params: Any, logging_dir: str | None = None, name: str | None = None) -> None:
        self._task_config = params
        self.logging_dir = logging_dir or ""
        self.name = name or getattr(params, "name", None) or type(self).__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._task_config).__name__}(…))"

    @property
    def task_config(self) -> Any:
        """The config that the task was made from, with what it has filled in if that was left to it."""
        return self._task_config

    @property
    def starts_from(self) -> str:
        """Where `initialize` takes parameters from; empty if all are the model's own."""
        return getattr(self.task_config, "starts_from", "")

    @abstractmethod
    def build_inputs(self, params: Any, input_context: InputContext | None = None) -> Any:
        """The stream for a data config, which is `task_config.train_data` or `task_config.validation_data`.

        Its batches are global: the same on any number of processes and devices.
        """

    def build_model(self) -> Model:
        """The model: a linen module, or anything else with `init` and `apply`."""
        raise ModelError(f"{type(self).__name__} builds no model. Override build_model().")

    def count_tokens(self, inputs: Batch) -> Array | None:
        """How many tokens a batch has, padding apart, to tell tokens a second; None, the default, if it has none."""
        return None

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Array | Metric:
        """The loss of a batch: a mean over its examples, or a `trellis.Mean(total, weight)`.

        Args:
            aux_losses: What the model's layers have sown as losses; None if there is nothing.
        """
        total: Array = sum(aux_losses or (), jnp.float32(0))
        return total

    def build_metrics(self, training: bool = True) -> Mapping[str, MetricFunction] | Sequence[MetricFunction]:
        """Functions of (model outputs, labels) by name; in a list each has its own name, or that of its class."""
        return {}

    def process_metrics(
        self, metrics: Any, labels: Any, model_outputs: Any, **kwargs: Any
    ) -> Mapping[str, Array | Metric]:
        """The metrics of a batch. Override it where a metric does not take outputs and labels as they are.

        Return them by name; or return nothing, and update each of them: `metric.update_state(labels, model_outputs)`.

        Args:
            metrics: What `build_metrics` has returned, in its shape; each metric has its `name`.
        """
        return measure(metrics or {}, labels=labels, outputs=model_outputs, place=self._place("build_metrics"))

    def train_step(
        self,
        inputs: Batch,
        *,
        state: TrainState,
        model: Model,
        optimizer: optax.GradientTransformation,
        metrics: Any = None,
        keys: StepKeys,
        n_microbatches: int = 1,
    ) -> tuple[TrainState, StepOutput]:
        """The state after one update, and its loss, metrics and gradients.

        Args:
            inputs: The batch.
            keys: Of this step, by name.
            n_microbatches: Into how many parts to cut the batch, to the same effect.
        """

        def forward(params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys) -> Any:
            bound = BoundModel(model, params=params, model_state=model_state, rngs=keys.rngs(self.rng_collections))
            features, labels = batch_sides(batch)
            outputs = bound(features, training=True)
            return bound.model_state, self._measure(labels, outputs, bound, metrics, batch_size(batch))

        return update_state(
            state, forward=forward, optimizer=optimizer, batch=inputs, keys=keys, n_parts=n_microbatches
        )

    def validation_step(self, inputs: Batch, model: BoundModel, metrics: Any = None) -> Mapping[str, Any]:
        """What is measured on a batch, by name: the loss and metrics are summed up, arrays go to `aggregate_logs`.

        A plain scalar is a mean over the examples of the batch, and goes to `aggregate_logs` too. Metrics that were
        updated and are not returned count all the same.
        """
        features, labels = batch_sides(inputs)
        outputs = self.inference_step(features, model)
        return self._measure(labels, outputs, model, metrics, batch_size(inputs))

    def inference_step(self, inputs: Any, model: BoundModel) -> Any:
        """The model's outputs."""
        return model(inputs, training=False)

    def serving_functions(self) -> Mapping[str, InferenceStep]:
        """What a served model of this task answers with, by name; the first one if a caller names none."""
        return {"inference_step": self.inference_step}

    def serving_inputs(self, inputs: Any) -> Any:
        """What its serving functions take, after the inputs of a first batch; only shapes and dtypes count."""
        return inputs

    def serving_files(self) -> Mapping[str, str]:
        """Files that a served model of this task needs, such as a vocabulary: the name to give each, and its path."""
        return {}

    def serving_metadata(self) -> Mapping[str, JSON]:
        """What a served model of this task tells of itself, beside the names of the task and the model."""
        return {}

    def answering_config(self) -> TaskConfig:
        """The config with which the model can be built again elsewhere, to be given weights that are known."""
        config: TaskConfig = self.task_config
        return config.replace(init_checkpoint="") if getattr(config, "init_checkpoint", "") else config

    def view_batch(self, batch: Batch) -> BatchView:
        """How `trellis data show` shows a batch of it: what tells examples apart, their labels, one example."""
        return view_of_sides(*batch_sides(batch))

    def show_model(self, model: BoundModel, *, step: int) -> Mapping[str, Media]:
        """What to show of a model at every evaluation, beside its metrics: texts, images or histograms by name.

        It is called on the host, in all processes. Texts are told on the screen and in the events, too.
        """
        return {}

    def plan_notes(self) -> Iterable[str]:
        """Lines that `trellis plan` shows of the data of this task, beside its batches."""
        return ()

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """On the host: the state after one more batch of what `validation_step` returned beside metrics.

        Args:
            state: None before the first batch; returning None turns this off.
            step_outputs: Whole NumPy arrays, without padding.
        """
        return None

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> Mapping[str, Any]:
        """On the host: metrics, from the state after all batches.

        Numbers by name; a mapping among them is a group, whose metrics are called `group/name`, and an array of a few
        numbers is the metrics `name_0`, `name_1` and so on. A `trellis.Histogram`, `Image` or `Text` is for the pages
        of TensorBoard and of trackers.
        """
        return {}

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The variables to start from at step 0, by default those of `init_checkpoint`; others are the model's own."""
        config = self.task_config
        return read_warm_start(
            getattr(config, "init_checkpoint", ""), model=model, parts=getattr(config, "init_parts", ())
        )

    @classmethod
    def create_optimizer(
        cls,
        optimizer_config: OptimizationConfig,
        runtime_config: RuntimeConfig | None = None,
        dp_config: DifferentialPrivacyConfig | None = None,
        *,
        n_steps: int | None = None,
    ) -> optax.GradientTransformation:
        """The optimizer after its config.

        Args:
            runtime_config: Has the loss scaled, if it is in float16.
            dp_config: Has gradients clipped and blurred first.
            n_steps: The length of the run, for schedules whose own length is null.
        """
        runtime = runtime_config or RuntimeConfig()
        optimizer = build_optimizer(optimizer_config, n_steps=n_steps)
        if dp_config is not None:
            stddev = dp_config.clipping_norm * dp_config.noise_multiplier
            noise = add_gradient_noise(stddev, key=jax.random.key(runtime.seed)) if stddev else optax.identity()
            optimizer = optax.chain(optax.clip_by_global_norm(dp_config.clipping_norm), noise, optimizer)
        is_scaled = runtime.mixed_precision_dtype == "float16"
        return scale_loss(optimizer, loss_scale=runtime.loss_scale) if is_scaled else optimizer

    def _measure(
        self,
        labels: Any,
        outputs: Any,
        model: BoundModel,
        metrics: Any,
        n_examples: int,
    ) -> dict[str, Metric]:
        loss = self.build_losses(labels, outputs, aux_losses=model.losses or None)
        values = {self.loss: loss, **self._measured(metrics, labels, outputs)}
        return {name: as_metric(value, n_examples, f"{self.name}'s {name!r}") for name, value in values.items()}

    def _measured(self, metrics: Any, labels: Any, outputs: Any) -> dict[str, Array | Metric]:
        """What `process_metrics` returns, and what it has updated in its place."""
        built: BuiltMetrics = renewed(name_metrics(metrics or {}, place=self._place("build_metrics")))
        returned: Any = self.process_metrics(built, labels, outputs)
        if returned is not None and not isinstance(returned, Mapping):
            raise refused(self, "process_metrics", f"returned a {type(returned).__name__}")
        measured = {**dict(results(built)), **(returned or {})}
        left_out = [metric.name for metric in all_metrics(built) if metric.name not in measured]
        if returned is None and left_out:
            raise refused(self, "process_metrics", f"neither returned nor updated {left_out[0]!r}")
        return measured

    def _place(self, name: str) -> str:
        return place_of(self, name)


TaskClass = TypeVar("TaskClass", bound=type[Task])

_tasks: Registry[Callable[..., Task]] = Registry(
    "task", advice="Import the module that has its task, which register_task_cls makes known."
)


def register_task_cls(task_config_cls: type[TaskConfig]) -> Callable[[TaskClass], TaskClass]:
    """Returns a decorator that makes a class the task of configs of a class and its subclasses.

    Example:
        @register_task_cls(DigitsConfig)
        class DigitsTask(Task): ...
    """
    return _tasks.register(task_config_cls)


def get_task(task_config: TaskConfig, *, logging_dir: str | None = None, name: str | None = None) -> Task:
    """Returns the task that is registered for, or bound to, a config's class or its nearest parent.

    In the config of the task, copies on this machine are in the place of addresses such as `gs://bucket/data`.
    """
    if not isinstance(task_config, TaskConfig):
        raise ArgumentError(f"get_task was given {shown(task_config)}, but it takes a TaskConfig, such as params.task.")
    if task_config.task_module:
        import_whole(task_config.task_module)
    task = _task_builder(type(task_config))(with_copies(task_config), logging_dir=logging_dir, name=name)
    if not isinstance(task, Task):
        raise ArgumentError(f"The builder of {type(task_config).__name__} has returned {shown(task)}, not a Task.")
    return task


def _task_builder(config_cls: type[TaskConfig]) -> Callable[..., Task]:
    for cls in config_cls.__mro__:
        if cls in _tasks:
            return _tasks.get(cls)
        if issubclass(cls, TaskConfig) and "BUILDER" in vars(cls):
            return cast(Callable[..., Task], cls.BUILDER)
    return _tasks.get(config_cls)
