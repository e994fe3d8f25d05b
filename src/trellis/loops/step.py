"""One step of a task: the model's forward pass, loss and metrics as sums, gradients, the update."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from trellis.aliases import Apply, Array, Batch, Key, PyTree, Variables
from trellis.errors import ArgumentError, ModelError, shown
from trellis.loops.batch import as_outputs, batch_size, split_batch
from trellis.loops.fused_steps import is_slow_in_scan
from trellis.loops.metrics import (
    HostMetrics,
    Mean,
    Metric,
    MetricFunction,
    as_metric,
    is_metric_class,
    merge,
    zeros,
)
from trellis.loops.state import StepOutput, TrainState, describe_arrays
from trellis.optimizers import all_finite, current_loss_scale, trained_part, with_part
from trellis.runtime import StepKeys


class TrainStep(Protocol):
    """A whole training step, to be traced and compiled."""

    def __call__(self, state: TrainState, batch: Batch, keys: StepKeys) -> tuple[TrainState, StepOutput]:
        """The state after one update; `state.step` is counted by the loop. `keys["dropout"]` is this step's key."""


@dataclass(frozen=True, kw_only=True)
class TrainTask:
    """What is trained on what: a model, an optimizer and a loss, or a whole `train_step`; and the data.

    Example:
        TrainTask(apply=model.apply, optimizer=optax.adamw(1e-3), loss=cross_entropy, data=stream)
    """

    data: Any
    """A stream (`batch(step)`), an iterator of batches, or a data set whose iterators know their position."""
    apply: Apply | None = None
    optimizer: optax.GradientTransformation | None = None
    loss: MetricFunction | None = None
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)
    """Computed on the training batches, before the update."""
    n_microbatches: int = 1
    """Gradient accumulation: a batch is cut into so many parts, and the update is that of the whole batch."""
    train_step: TrainStep | None = None
    """Stands in for `apply`, `loss`, `metrics` and `n_microbatches`."""
    initialize: Callable[[Variables], Variables] | None = None
    """Returns the variables to start from at step 0, given those of `init`; what it leaves out keeps its values."""
    count_tokens: Callable[[Batch], Array | None] | None = None
    """Returns how many tokens a batch has, padding apart, so that tokens a second are told; None if it has none."""

    def __post_init__(self) -> None:
        is_whole = self.train_step is not None
        is_in_parts = self.apply is not None and self.loss is not None and self.optimizer is not None
        if is_whole == is_in_parts or (is_whole and (self.apply or self.loss)):
            raise ArgumentError("A TrainTask needs apply, optimizer and loss, or in their place a whole train_step.")
        _check_optimizer(self.optimizer)
        for name in ("apply", "loss", "train_step"):
            _check_callable(getattr(self, name), f"TrainTask.{name}")
        _check_metrics(self.metrics, "TrainTask.metrics")
        if self.train_step is not None:
            _check_signature(self.train_step)
        if self.n_microbatches < 1:
            raise ArgumentError(f"n_microbatches is {self.n_microbatches}, but a batch has at least one part.")

    def __repr__(self) -> str:
        return f"TrainTask(data={type(self.data).__name__}, metrics={[*self.metrics]})"


class ValidationStep(Protocol):
    """A whole validation step, to be traced and compiled."""

    def __call__(self, params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys) -> tuple[Any, ...]:
        """The metrics of a batch, and arrays for `EvalTask.host_metrics`; with `EvalTask.carry` also the new carry."""


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """What is measured on what: a model and metrics, or a whole `validation_step`; and the data.

    Example:
        EvalTask(apply=model.apply, metrics={"accuracy": accuracy}, data=stream)
    """

    data: Any
    apply: Apply | None = None
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)
    validation_step: ValidationStep | None = None
    """Stands in for `apply` and `metrics`."""
    host_metrics: HostMetrics | None = None
    """Measures what the validation step returns beside its metrics."""
    carry: Mapping[str, PyTree] = field(default_factory=dict)
    """Collections of the model's state that each batch hands to the next, such as an LSTM's memory over a long text, as
    they are before the first batch; None starts from those of the checkpoint. `apply` changes them, as `mutable` ones;
    a `validation_step` has them in its model_state, and returns the new ones third."""

    def __post_init__(self) -> None:
        if (self.validation_step is None) == (self.apply is None):
            raise ArgumentError("An EvalTask needs apply and metrics, or in their place a whole validation_step.")
        _check_callable(self.apply, "EvalTask.apply")
        _check_callable(self.validation_step, "EvalTask.validation_step")
        _check_metrics(self.metrics, "EvalTask.metrics")
        if not isinstance(self.carry, Mapping):
            raise ArgumentError(
                f"EvalTask.carry is a {type(self.carry).__name__}. Give collections by name: carry="
                f"{{'memory': jnp.zeros((batch_size, 64))}}, or None in the place of arrays for the checkpoint's."
            )

    def __repr__(self) -> str:
        return f"EvalTask(data={type(self.data).__name__}, metrics={[*self.metrics]})"


def check_task(task: Any, kind: type[TrainTask | EvalTask], *, place: str) -> None:
    """Raises an error if a loop was given something else than the task that it runs."""
    if not isinstance(task, kind):
        raise ArgumentError(f"{place} is {shown(task)}. Give a trellis.{kind.__name__}(…).")


def check_collections(collections: Any) -> None:
    """Raises an error if it does not say which keys `init` and `apply` are given."""
    way_out = "Say for what, and which: collections={'apply': ['dropout']}"
    if not isinstance(collections, Mapping):
        raise ArgumentError(f"collections is {shown(collections)}. {way_out}")
    for part, names in collections.items():
        if part not in ("init", "apply"):
            raise ArgumentError(f"collections has {part!r}, which is neither init nor apply. {way_out}")
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"collections[{part!r}] is {shown(names)}, which is no list of names. {way_out}")


def _check_optimizer(optimizer: Any) -> None:
    if optimizer is None or (
        callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))
    ):
        return
    if isinstance(optimizer, int | float):
        raise ArgumentError(
            f"TrainTask.optimizer is {optimizer}. Give an optimizer with that rate: optax.adam({optimizer})"
        )
    name = getattr(optimizer, "__name__", None)
    if name is not None:
        raise ArgumentError(f"TrainTask.optimizer is the function {name}. Give what it returns: optax.{name}(1e-3)")
    raise ArgumentError(
        f"TrainTask.optimizer is a {type(optimizer).__name__}, which has no `init` and `update`. "
        f"Give one of optax, such as optax.adam(1e-3)."
    )


def _check_callable(function: Any, place: str) -> None:
    if isinstance(function, nn.Module):
        # It can be called, but only within another one.
        name = type(function).__name__
        raise ArgumentError(f"{place} is the module {name}. Give its method: {name}(…).apply")
    if function is not None and not callable(function):
        raise ArgumentError(f"{place} is {shown(function)}, which cannot be called. Give a function.")


def _check_metrics(metrics: Any, place: str) -> None:
    if not isinstance(metrics, Mapping):
        kind = type(metrics).__name__
        raise ArgumentError(f"{place} is a {kind}. Give each metric a name: {{'accuracy': trellis.Accuracy()}}")
    for name, function in metrics.items():
        _check_callable(function, f"{place}[{name!r}]")
        if is_metric_class(function):
            kind = function.__name__
            raise ArgumentError(f"{place}[{name!r}] is the class {kind}. Give one of it: {kind}()")


def _check_signature(train_step: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(train_step)
    except ValueError:
        # What is written in C does not tell.
        return
    try:
        signature.bind("state", "batch", "keys")
    except TypeError as error:
        raise ArgumentError(
            f"TrainTask.train_step takes {signature}, but it is called with a state, a batch and keys ({error}). Write "
            f"def train_step(state, batch, keys): …, and take what else it needs from around it."
        ) from None


def build_train_step(
    task: TrainTask, *, rng_names: Sequence[str], mutable: Sequence[str], around: Callable[[Apply], Apply]
) -> TrainStep:
    """The training step of a task: its own, or one made of its model, loss and optimizer.

    Args:
        rng_names: The rng collections that the model is given.
        mutable: The collections of the model's state that a step changes.
        around: Adds to the model's `apply` what the arrangement of the devices needs.
    """
    if task.train_step is not None:
        return task.train_step
    assert task.apply is not None and task.loss is not None and task.optimizer is not None
    apply, optimizer = around(task.apply), task.optimizer
    functions = {"loss": task.loss, **task.metrics}

    def forward(params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys) -> tuple[PyTree, dict[str, Metric]]:
        inputs, targets = split_batch(batch)
        variables = {"params": params, **model_state}
        outputs, changes = run_model(apply, variables, inputs, rngs=keys.rngs(rng_names), mutable=mutable)
        return {**model_state, **changes}, _measure(functions, outputs, targets, batch)

    def step(state: TrainState, batch: Batch, keys: StepKeys) -> tuple[TrainState, StepOutput]:
        return update_state(
            state, forward=forward, optimizer=optimizer, batch=batch, keys=keys, n_parts=task.n_microbatches
        )

    return step


def checked_result(result: Any, *, before: TrainState, n_examples: int) -> tuple[TrainState, StepOutput]:
    """What a training step has returned, with plain numbers among its metrics as means; an error if it is not that.

    Args:
        before: The state that the step was given: the new one has the same arrays, with other values.
    """
    is_pair = isinstance(result, tuple) and len(result) == 2
    if not is_pair or not isinstance(result[0], TrainState) or not isinstance(result[1], StepOutput):
        kinds = " and ".join(_kind(part) for part in (result if is_pair else (result,)))
        raise ModelError(
            f"TrainTask.train_step returned {kinds}, but it has to return the new state and what was measured: "
            f"return state, trellis.StepOutput(loss, metrics, grads)"
        )
    state, output = result
    _check_arrays(before, state)
    metrics = {name: as_metric(value, n_examples, f"{name!r}") for name, value in output.metrics.items()}
    return state, replace(output, metrics=metrics)


def _check_arrays(before: TrainState, after: TrainState) -> None:
    old, new = _described(before), _described(after)
    problems = [
        f"  {name}: {old.get(name, '—')} before, {new.get(name, '—')} after"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    if problems:
        listed = "\n".join(problems)
        raise ModelError(
            f"TrainTask.train_step returned a state with other arrays than it was given:\n{listed}\n"
            f"Each step changes values, not names, shapes or dtypes. What steps carry on is made by init, as a "
            f"collection beside `params`: state.model_state has it."
        )


def _described(state: TrainState) -> dict[str, str]:
    """The dtypes and shapes of what a step may change, by name."""
    parts = {"params": state.params, "model_state": state.model_state, "optimizer_state": state.optimizer_state}
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(parts)
    }


def _kind(value: Any) -> str:
    return "an array" if isinstance(value, jax.Array) else f"a {type(value).__name__}"


class CarryingStep(Protocol):
    """A validation step that hands a state to the next."""

    def __call__(
        self, params: PyTree, model_state: PyTree, carry: PyTree, batch: Batch, keys: StepKeys, /
    ) -> tuple[Mapping[str, Metric], PyTree, PyTree]:
        """The metrics of a batch, arrays for the host, and the carry for the next batch."""


def build_validation_step(task: EvalTask, *, rng_names: Sequence[str]) -> CarryingStep:
    """The validation step of a task: its own, or one made of its model and metrics."""
    apply, validation_step, functions = task.apply, task.validation_step, task.metrics

    def step(
        params: PyTree, model_state: PyTree, carry: PyTree, batch: Batch, keys: StepKeys
    ) -> tuple[Mapping[str, Metric], PyTree, PyTree]:
        model_state = {**model_state, **carry}
        if validation_step is not None:
            return _with_carry(validation_step(params, model_state, batch, keys), carry)
        assert apply is not None
        inputs, targets = split_batch(batch)
        variables = {"params": params, **model_state}
        outputs, changes = run_model(apply, variables, inputs, rngs=keys.rngs(rng_names), mutable=tuple(carry))
        return _measure(functions, outputs, targets, batch), (), _carried(changes, carry)

    return step


def _with_carry(results: tuple[Any, ...], carry: PyTree) -> tuple[Mapping[str, Metric], PyTree, PyTree]:
    if not carry:
        metrics, outputs = results
        return metrics, outputs, carry
    if len(results) != 3:
        raise ModelError(
            f"EvalTask has a carry, so its validation_step returns metrics, arrays for the host and the new carry, "
            f"but it returned {len(results)} things. Write: return metrics, (), {{{', '.join(map(repr, carry))}: …}}"
        )
    return results[0], results[1], _carried(results[2], carry)


def _carried(changes: Mapping[str, PyTree], carry: PyTree) -> PyTree:
    """The new carry, which has to be as the old one: what was not changed stays."""
    new = {name: changes.get(name, old) for name, old in carry.items()}
    for name, old in carry.items():
        before, after = (describe_arrays(jax.eval_shape(lambda tree=tree: tree)) for tree in (old, new[name]))
        if before != after:
            raise ModelError(
                f"EvalTask.carry[{name!r}] is {before} before a batch and {after} after it. Start with arrays of the "
                f"shapes and dtypes that the model leaves; batches of one size need drop_remainder=True."
            )
    return new


def run_model(
    apply: Apply,
    variables: Variables,
    inputs: tuple[Any, ...],
    *,
    rngs: Mapping[str, Key],
    mutable: Sequence[str] = (),
    **options: Any,
) -> tuple[Any, Mapping[str, PyTree]]:
    """Runs a model forward: its outputs, and the collections among `mutable` as it has changed them."""
    try:
        if mutable:
            outputs, changes = apply(variables, *inputs, rngs=rngs, mutable=list(mutable), **options)
            return outputs, changes
        return apply(variables, *inputs, rngs=rngs, mutable=False, **options), {}
    except flax.errors.InvalidRngError as error:
        match = re.search(r'PRNG for "(\w+)"', str(error))
        names = [*rngs, match[1] if match else "…"]
        raise ModelError(
            f"The model asks for the rng collection {names[-1]!r}, which the loop does not give. "
            f"Name it: collections={{'init': ['params'], 'apply': {names}}}, or in a Task: rng_collections = "
            f"{tuple(names)}."
        ) from error


def _measure(
    functions: Mapping[str, MetricFunction], outputs: Any, targets: tuple[Any, ...], batch: Batch
) -> dict[str, Metric]:
    return {
        name: as_metric(function(*as_outputs(outputs), *targets), batch_size(batch), f"{name!r}")
        for name, function in functions.items()
    }


class ForwardPass(Protocol):
    """A model run on a batch and measured."""

    def __call__(
        self, params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys, /
    ) -> tuple[PyTree, dict[str, Metric]]:
        """The new model state, and metrics among which `loss` is."""


def update_state(
    state: TrainState,
    *,
    forward: ForwardPass,
    optimizer: optax.GradientTransformation,
    batch: Batch,
    keys: StepKeys,
    n_parts: int = 1,
) -> tuple[TrainState, StepOutput]:
    """The state after one update, and its loss, metrics and gradients.

    In parts the gradients of the totals are added up and divided by the whole weight: what one big batch would give.
    With a loss scale (`scale_loss`) the metrics tell it, and the share of updates that were left out. Of parameters
    that are frozen (`freeze_parameters`) no gradients are computed: the tree of gradients has None in their place.
    """
    scale = current_loss_scale(state.optimizer_state)
    compute = _compute_gradients if n_parts == 1 else _compute_gradients_in_parts
    forward = _with_means(forward)
    grads, model_state, metrics = compute(forward, state, batch, keys, n_parts=n_parts, loss_scale=scale)
    loss = metrics.pop("loss")

    # A line search gives it every argument that it does not know itself.
    def value_fn(params: PyTree, step: Array) -> Array:
        return _mean_loss(forward(params, state.model_state, batch, keys)[1]["loss"])

    # Whole, whatever the optimizer is made of; what freezes drops the zeros, and so they are never made.
    whole = jax.tree.map(lambda leaf, grad: jnp.zeros_like(leaf) if grad is None else grad, state.params, grads)
    # What line searches and others look at; XLA leaves out what is not used.
    known = {"value": _mean_loss(loss), "grad": whole, "value_fn": value_fn, "step": state.step}
    update = optax.with_extra_args_support(optimizer).update
    updates, optimizer_state = update(whole, state.optimizer_state, state.params, **known)
    changed = trained_part(optax.apply_updates(state.params, updates), optimizer_state=state.optimizer_state)
    params = with_part(state.params, part=changed)
    if scale is not None:
        is_good = all_finite(grads)
        model_state = optax.tree.where(is_good, model_state, state.model_state)
        one = jnp.float32(1)
        metrics |= {"loss_scale": Mean(scale, one), "skipped_updates": Mean(jnp.float32(~is_good), one)}
    return TrainState(state.step, params, model_state, optimizer_state), StepOutput(loss, metrics, grads)


def _with_means(forward: ForwardPass) -> ForwardPass:
    """The same, with plain scalars among its metrics as means over the examples of the batch."""

    def measured(params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys) -> tuple[PyTree, dict[str, Metric]]:
        model_state, metrics = forward(params, model_state, batch, keys)
        if "loss" not in metrics:
            raise ModelError(f"A forward pass measured {', '.join(metrics) or 'nothing'}, but no 'loss' to descend.")
        n_examples = batch_size(batch)
        return model_state, {name: as_metric(value, n_examples, f"{name!r}") for name, value in metrics.items()}

    return measured


def _compute_gradients(
    forward: ForwardPass, state: TrainState, batch: Batch, keys: StepKeys, *, n_parts: int, loss_scale: Array | None
) -> tuple[PyTree, PyTree, dict[str, Metric]]:
    """The gradients of the mean loss, the new model state, and the metrics."""
    trained = trained_part(state.params, optimizer_state=state.optimizer_state)

    def mean_loss(part: PyTree) -> tuple[Array, Any]:
        params = with_part(state.params, part=part)
        model_state, metrics = forward(params, state.model_state, batch, keys)
        return _scaled(_mean_loss(metrics["loss"]), loss_scale), (model_state, metrics)

    grads, (model_state, metrics) = jax.grad(mean_loss, has_aux=True)(trained)
    return grads if loss_scale is None else _divided(grads, loss_scale), model_state, metrics


def _compute_gradients_in_parts(
    forward: ForwardPass, state: TrainState, batch: Batch, keys: StepKeys, *, n_parts: int, loss_scale: Array | None
) -> tuple[PyTree, PyTree, dict[str, Metric]]:
    """The same, of a batch that is cut into parts which are computed one after the other."""
    size = batch_size(batch)
    if size % n_parts:
        raise ArgumentError(f"A batch of {size} examples cannot be cut into n_microbatches={n_parts} equal parts.")

    trained = trained_part(state.params, optimizer_state=state.optimizer_state)

    def total_loss(trained: PyTree, model_state: PyTree, part: Batch, index: Array) -> tuple[Array, Any]:
        params = with_part(state.params, part=trained)
        model_state, metrics = forward(params, model_state, part, StepKeys(keys["part"], index))
        if not isinstance(metrics["loss"], Mean):
            raise ModelError("With n_microbatches the loss is a scalar or a trellis.Mean, so that its parts add up.")
        return _scaled(metrics["loss"].total, loss_scale), (model_state, metrics)

    def body(carry: tuple[Any, Any, Any], indexed: tuple[Array, Batch]) -> tuple[tuple[Any, Any, Any], None]:
        grads, model_state, totals = carry
        index, part = indexed
        more, (model_state, metrics) = jax.grad(total_loss, has_aux=True)(trained, model_state, part, index)
        return (jax.tree.map(jnp.add, grads, more), model_state, merge(totals, metrics)), None

    # Every n-th example, not every n-th block: so each part is spread over all devices, as the whole is.
    parts = jax.tree.map(lambda leaf: leaf.reshape(size // n_parts, n_parts, *leaf.shape[1:]).swapaxes(0, 1), batch)
    first = jax.tree.map(lambda leaf: leaf[0], parts)
    traced = jax.make_jaxpr(total_loss, return_shape=True)
    jaxpr, (_, (_, shapes)) = traced(trained, state.model_state, first, jnp.int32(0))
    start = (jax.tree.map(jnp.zeros_like, trained), state.model_state, zeros(shapes))
    unroll = is_slow_in_scan(jaxpr.jaxpr, platform=jax.default_backend())
    (grads, model_state, totals), _ = jax.lax.scan(body, start, (jnp.arange(n_parts), parts), unroll=unroll)
    return _divided(grads, _scaled(_divisor(totals["loss"].weight), loss_scale)), model_state, totals


def _mean_loss(loss: Metric) -> Array:
    return loss.total / _divisor(loss.weight) if isinstance(loss, Mean) else loss.compute()


def _divisor(weight: Array) -> Array:
    # A batch in which everything is masked teaches nothing, instead of NaN.
    return jnp.where(weight == 0, 1, weight)


def _scaled(loss: Array, loss_scale: Array | None) -> Array:
    return loss if loss_scale is None else loss * loss_scale


def _divided(grads: PyTree, divisor: Array) -> PyTree:
    return jax.tree.map(lambda grad: grad / divisor.astype(grad.dtype), grads)
