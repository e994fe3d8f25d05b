"""The shapes of a task's methods: how a trainer calls them, and what to write where a method has another shape.

Tasks that were written for TensorFlow's Model Garden have methods of the same names. What can work is called as it is;
what cannot is refused before the first step, with code to write in its place.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from trellis.errors import ModelError

_TENSORFLOW = ("tensorflow", "tf_keras", "official")
"""Packages that compute with TensorFlow."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a method is called, and a method that can be called so."""

    takes: tuple[str, ...] = ()
    """Arguments by position."""
    options: tuple[str, ...] = ()
    """Arguments by name."""
    may_take: tuple[str, ...] = ()
    """Arguments by name that a method is given only if it has them."""
    why: str
    """Why it is called so, or what to do in the place of what cannot work."""
    code: str
    """A method of this shape, to be pasted."""
    is_traced: bool = False
    """Whether JAX traces it, so that nothing else can compute in it."""
    foreign_calls: tuple[str, ...] = ()
    """Methods of other libraries' objects that cannot be called in it."""

    def __str__(self) -> str:
        options = (f"{name}=…" for name in self.options)
        return ", ".join((*self.takes, *options))


SHAPES = {
    "build_model": Shape(
        why="it is built from task_config alone",
        code="""
def build_model(self):
    return Classifier(self.task_config.hidden_size)  # a linen module, or anything with init and apply
""",
    ),
    "build_inputs": Shape(
        takes=("params",),
        may_take=("input_context",),
        why="params is task_config.train_data or task_config.validation_data",
        code="""
def build_inputs(self, params, input_context=None):
    return trellis.ExampleStream((images, labels), batch_size=params.global_batch_size)
""",
    ),
    "build_losses": Shape(
        takes=("labels", "model_outputs"),
        options=("aux_losses",),
        why="aux_losses are what the layers of the model have sown, or None",
        is_traced=True,
        code="""
def build_losses(self, labels, model_outputs, aux_losses=None):
    losses = optax.softmax_cross_entropy_with_integer_labels(model_outputs, labels)
    return losses.mean() + sum(aux_losses or ())
""",
    ),
    "build_metrics": Shape(
        options=("training",),
        why="the metrics of training may be others than those of validation",
        code="""
def build_metrics(self, training=True):
    return {"accuracy": trellis.Accuracy()}
""",
    ),
    "process_metrics": Shape(
        takes=("metrics", "labels", "model_outputs"),
        why="metrics are what build_metrics returned",
        is_traced=True,
        code="""
def process_metrics(self, metrics, labels, model_outputs, **kwargs):
    return {name: metric(model_outputs, labels) for name, metric in metrics.items()}
""",
    ),
    "train_step": Shape(
        takes=("inputs",),
        options=("state", "model", "optimizer", "metrics", "keys"),
        may_take=("n_microbatches",),
        why="JAX's arrays do not change, so a step is given the state and returns the new one; a task that differs in "
        "its loss alone needs no train_step, only build_losses",
        is_traced=True,
        foreign_calls=("GradientTape", "apply_gradients"),
        code="""
def train_step(self, inputs, *, state, model, optimizer, metrics=None, keys, n_microbatches=1):
    def forward(params, model_state, batch, keys):
        features, labels = batch
        rngs = keys.rngs(self.rng_collections)
        bound = trellis.BoundModel(model, params=params, model_state=model_state, rngs=rngs)
        outputs = bound(features, training=True)
        loss = self.build_losses(labels, outputs, bound.losses)
        return bound.model_state, {"loss": loss, **self.process_metrics(metrics, labels, outputs)}

    return trellis.loops.update_state(
        state, forward=forward, optimizer=optimizer, batch=inputs, keys=keys, n_parts=n_microbatches
    )
""",
    ),
    "validation_step": Shape(
        takes=("inputs", "model", "metrics"),
        why="it returns what it has measured by name",
        is_traced=True,
        code="""
def validation_step(self, inputs, model, metrics=None):
    features, labels = inputs
    outputs = self.inference_step(features, model)
    loss = self.build_losses(labels, outputs, model.losses)
    return {self.loss: loss, **self.process_metrics(metrics, labels, outputs)}
""",
    ),
    "inference_step": Shape(
        takes=("inputs", "model"),
        why="the model has its variables with it",
        is_traced=True,
        code="""
def inference_step(self, inputs, model):
    return model(inputs, training=False)
""",
    ),
    "aggregate_logs": Shape(
        takes=("state", "step_outputs"),
        why="step_outputs are whole NumPy arrays by name, of all devices together, not one tensor for each replica",
        foreign_calls=("numpy",),
        code="""
def aggregate_logs(self, state, step_outputs):
    return [*(state or []), step_outputs["predictions"]]
""",
    ),
    "reduce_aggregated_logs": Shape(
        takes=("aggregated_logs",),
        options=("global_step",),
        why="it returns metrics by name",
        code="""
def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {"mean_prediction": float(np.concatenate(aggregated_logs).mean())}
""",
    ),
    "initialize": Shape(
        takes=("model",),
        why="a model's arrays do not change, so what it is to start from is returned, or nothing if it starts from its "
        "own values",
        foreign_calls=("assert_existing_objects_matched", "expect_partial"),
        code="""
def initialize(self, model):
    return trellis.tasks.read_warm_start(self.task_config.init_checkpoint, model=model)
""",
    ),
    "create_optimizer": Shape(
        takes=("optimizer_config",),
        may_take=("runtime_config", "dp_config", "n_steps"),
        why="it returns an optimizer of optax",
        code="""
@classmethod
def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None, n_steps=None):
    optimizer = super().create_optimizer(optimizer_config, runtime_config, dp_config, n_steps=n_steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optimizer)
""",
    ),
}
"""Of all that a trainer calls, by name."""

_COMPILED = "process_compiled_metrics"


def shape_problems(task: Any, *, base: type) -> Iterator[str]:
    """Yields what is wrong with the methods that a task has of its own, each with its place and with code to write.

    Args:
        base: The class whose methods have the right shapes.
    """
    if type(task).process_metrics is base.process_metrics:  # type: ignore[attr-defined]
        yield from (f"{line} Write:\n{code_of('process_metrics')}" for line in uncalled_methods(task))
    for name, shape in SHAPES.items():
        if getattr(type(task), name) is getattr(base, name):
            continue
        reason = _reason(getattr(task, name), shape, name)
        if reason:
            yield f"{place_of(task, name)} {reason}. Write:\n{code_of(name)}"


def uncalled_methods(task: Any) -> Iterator[str]:
    """Yields a line for each method of a published task that nothing calls here."""
    if getattr(type(task), _COMPILED, None) is not None:
        yield (
            f"{place_of(task, _COMPILED)} is not called: nothing is compiled into a model here. Metrics are those of "
            f"build_metrics, and process_metrics measures them."
        )


def refused(task: Any, name: str, what: str) -> ModelError:
    """The error for a method of a task that has returned something else than it should: its place, and its shape.

    Args:
        what: What it returned, after its place.
    """
    return ModelError(f"{place_of(task, name)} {what}: {SHAPES[name].why}. Write:\n{code_of(name)}")


def options_for(method: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """What of the arguments by name a method takes."""
    parameters = inspect.signature(method).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in given.items() if takes_any or name in parameters}


def place_of(task: Any, name: str) -> str:
    """A method for a message: its class and name, its file and line."""
    code = getattr(_function(getattr(task, name)), "__code__", None)
    at = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{type(task).__name__}.{name}{at}"


def code_of(name: str) -> str:
    """The code of a method, set off from a message."""
    return textwrap.indent(SHAPES[name].code.strip("\n"), "    ")


def _reason(method: Any, shape: Shape, name: str) -> str:
    """Why a method cannot be called; empty if it can."""
    signature = inspect.signature(method)
    options = [*shape.options, *options_for(method, dict.fromkeys(shape.may_take))]
    try:
        signature.bind(*shape.takes, **dict.fromkeys(options))
    except TypeError:
        return f"takes {signature}, but it is called as {name}({shape}): {shape.why}"
    function = _function(method)
    names = [*_tensorflow_names(function)] if shape.is_traced else []
    if names:
        return (
            f"computes with TensorFlow (`{names[0]}`), which cannot run in what JAX compiles: use jax.numpy and optax"
        )
    calls = [call for call in shape.foreign_calls if call in _called_methods(function)]
    if calls:
        return f"calls `{calls[0]}`, which is TensorFlow's: {shape.why}"
    return ""


def _function(method: Any) -> Any:
    return inspect.unwrap(getattr(method, "__func__", method))


def _tensorflow_names(function: Any) -> Iterator[str]:
    """Yields the names by which a function reads modules of TensorFlow."""
    code = getattr(function, "__code__", None)
    for name in _names(code) if code is not None else ():
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _TENSORFLOW:
            yield name


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _called_methods(function: Any) -> set[str]:
    """The names of the methods that a function calls, as far as its source is known."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set()
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.attr for function in calls if isinstance(function, ast.Attribute)}
