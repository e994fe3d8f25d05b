"""A task as a trainer calls it: each method with what it takes, and what it returns checked."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from trellis.aliases import PyTree, Variables
from trellis.errors import ArgumentError, ModelError
from trellis.loops import Metric, as_metric, is_traceable, traceable
from trellis.optimizers import AverageState, FrozenState, OptimizationConfig
from trellis.runtime import RuntimeConfig
from trellis.tasks import (
    BoundModel,
    BuiltMetrics,
    InputContext,
    Model,
    Task,
    name_metrics,
    options_for,
    place_of,
    refused,
    renewed,
    shape_problems,
)


def check_shapes(task: Task) -> None:
    """Raises an error if methods of a task cannot be called, with code to write in their place."""
    problems = list(shape_problems(task, base=Task))
    if problems:
        raise ModelError("\n\n".join(problems))


def build_task_inputs(task: Task, *, params: Any, runtime: RuntimeConfig) -> Any:
    """The stream of a task for a data config."""
    context = options_for(task.build_inputs, {"input_context": InputContext(seed=runtime.seed)})
    inputs = task.build_inputs(params, **context)
    if inputs is None:
        raise refused(task, "build_inputs", "returned nothing")
    return inputs


def build_task_model(task: Task) -> Model:
    """The model of a task."""
    model: Any = task.build_model()
    if callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None)):
        return model  # type: ignore[no-any-return]
    packages = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    wraps = {"keras": "KerasModel(model)", "flax": "NNXModel(lambda rngs: …)"}
    bridge = next((f" (trellis.bridges.{wraps[name]} has them)" for name in wraps if name in packages), "")
    raise refused(task, "build_model", f"returned {_kind(model)}, which has no init and apply{bridge}")


def build_task_metrics(task: Task, *, training: bool) -> BuiltMetrics:
    """The metrics of a task, not updated yet."""
    return renewed(name_metrics(task.build_metrics(training=training), place=place_of(task, "build_metrics")))


def build_task_optimizer(
    task: Task, *, config: OptimizationConfig, runtime: RuntimeConfig, n_steps: int | None
) -> optax.GradientTransformation:
    """The optimizer of a task, which need not take all that there is to know.

    Args:
        n_steps: The length of the run, if that is known.
    """
    privacy = getattr(task.task_config, "differential_privacy_config", None)
    known = {"runtime_config": runtime, "dp_config": privacy, "n_steps": n_steps}
    taken = options_for(task.create_optimizer, known)
    if privacy is not None and "dp_config" not in taken:
        raise refused(task, "create_optimizer", "takes no dp_config, but task.differential_privacy_config is set")
    if runtime.mixed_precision_dtype == "float16" and "runtime_config" not in taken:
        raise refused(task, "create_optimizer", "takes no runtime_config, but float16 needs its loss scaled")
    optimizer: Any = task.create_optimizer(config, **taken)
    if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
        raise refused(task, "create_optimizer", f"returned {_kind(optimizer)}")
    return _checked_optimizer(optimizer, task=task, config=config)


def _has_node(tree: PyTree, kind: type) -> bool:
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return any(isinstance(node, kind) for node in nodes)


def _checked_optimizer(
    optimizer: optax.GradientTransformation, *, task: Task, config: OptimizationConfig
) -> optax.GradientTransformation:
    """The optimizer; an error if its state shows that it leaves out what the config asks for, as a task's own may."""

    def init(params: PyTree) -> PyTree:
        state = optimizer.init(params)
        asked = {
            "freeze_parameters": ("frozen", bool(config.frozen), FrozenState),
            "average_parameters": ("ema", config.ema is not None, AverageState),
        }
        for function, (field, is_asked, kind) in asked.items():
            if is_asked and not _has_node(state, kind):
                raise ArgumentError(
                    f"trainer.optimizer_config.{field} is set, but the optimizer of {type(task).__name__}."
                    f"create_optimizer does nothing about it. Let it return trellis.optimizers.{function}(…), or "
                    f"leave the field out."
                )
        return state

    return optax.GradientTransformationExtraArgs(init, optax.with_extra_args_support(optimizer).update)


def start_of(task: Task) -> Callable[[BoundModel], Variables]:
    """`Task.initialize`, which may return nothing: then the model starts as that has left it."""

    def initialize(model: BoundModel) -> Variables:
        before = (model.params, model.model_state)
        variables: Any = task.initialize(model)
        if isinstance(variables, Mapping):
            return variables
        is_untouched = model.params is before[0] and model.model_state is before[1]
        if variables is not None:
            raise refused(task, "initialize", f"returned {_kind(variables)}")
        if is_untouched and task.starts_from:
            raise refused(task, "initialize", f"returned nothing, but the run is to start from `{task.starts_from}`")
        return model.variables

    return traceable(initialize) if is_traceable(task.initialize) else initialize


def sort_logs(task: Task, logs: Any, *, n_examples: int) -> tuple[dict[str, Metric], dict[str, Any]]:
    """What a task's validation step returned: the metrics in it, a plain scalar being a mean, and what is for the host.

    A scalar is both, if the task aggregates logs.

    Args:
        n_examples: Of the batch: what a plain scalar weighs.
    """
    place = f"{type(task).__name__}.validation_step"
    if not isinstance(logs, Mapping):
        raise ModelError(
            f"{place} returned {_kind(logs)}, but it has to return what "
            f"it has measured by name: return {{self.loss: loss}}"
        )
    metrics = {
        name: as_metric(value, n_examples, f"{place}'s {name!r}")
        for name, value in logs.items()
        if isinstance(value, Metric) or _is_scalar(value)
    }
    arrays = {name: value for name, value in logs.items() if not isinstance(value, Metric)}
    aggregates = type(task).aggregate_logs is not Task.aggregate_logs
    lost = [] if aggregates else [name for name in arrays if name not in metrics]
    if lost:
        raise ModelError(
            f"{place} returned {lost[0]!r}, which is no scalar, and {type(task).__name__} has no aggregate_logs that "
            f"would take it. Return a scalar or trellis.Mean(total, weight), or override aggregate_logs and "
            f"reduce_aggregated_logs."
        )
    if not metrics and not aggregates:
        raise ModelError(f"{place} returned nothing to measure. Return at least the loss: return {{self.loss: loss}}")
    return metrics, arrays if aggregates else {}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | np.generic) or (isinstance(value, jax.Array | np.ndarray) and not value.ndim)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
