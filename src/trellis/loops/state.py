"""The state that a step changes, what a loop yields of it, and what is known of it before the first step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from trellis.aliases import JSON, Array, Batch, Init, Metrics, PyTree
from trellis.errors import ArgumentError, CheckpointMismatchError, StaleCheckpointError, TrellisError, drop_jax_note
from trellis.loops.media import Media
from trellis.loops.metrics import Metric
from trellis.loops.session import Session
from trellis.optimizers import parameter_paths
from trellis.runtime import count_weights, describe_metric

_MOST_NAMED = 3


@struct.dataclass
class TrainState:
    """What a step changes."""

    step: Array
    """How many steps are completed."""
    params: PyTree
    model_state: PyTree
    """The model's other collections, such as batch statistics."""
    optimizer_state: PyTree

    def __repr__(self) -> str:
        return f"TrainState({count_weights(self.params)} weights)"


@struct.dataclass
class MadeAtStart:
    """A part of a model's state that no step changes and each start makes as step 0 does.

    Such are the weights beside which adapters are trained. No checkpoint file holds it: of a file it is read as shapes,
    and `TrainLoop.complete` puts the arrays there.
    """

    tree: PyTree
    fingerprint: Array
    """What tells its arrays from others to the bit, two numbers for each: that is in checkpoint files."""
    origin: str = struct.field(pytree_node=False, default="the weights")
    """Where its arrays come from, for errors."""

    def __repr__(self) -> str:
        return f"MadeAtStart({count_weights(self.tree)} weights)"


def is_made_at_start(node: Any) -> bool:
    """Whether a node of a state is a part that no checkpoint file holds."""
    return isinstance(node, MadeAtStart)


def saved_part(tree: PyTree) -> PyTree:
    """What checkpoint files hold of a tree."""
    return jax.tree.map(
        lambda node: replace(node, tree=None) if isinstance(node, MadeAtStart) else node, tree, is_leaf=is_made_at_start
    )


def with_made(saved: PyTree, *, like: PyTree) -> PyTree:
    """The tree of which `saved_part` was taken, with the parts that each start makes from another tree."""
    return jax.tree.map(
        lambda other, own: replace(own, tree=other.tree) if isinstance(other, MadeAtStart) else own,
        like,
        saved,
        is_leaf=is_made_at_start,
    )


def made_parts(tree: PyTree) -> list[MadeAtStart]:
    """The parts of a tree that each start makes."""
    nodes = jax.tree.leaves(tree, is_leaf=is_made_at_start)
    return [node for node in nodes if isinstance(node, MadeAtStart)]


def check_as_before(before: MadeAtStart, *, now: MadeAtStart) -> None:
    """Raises an error if what was made for a start is not what a checkpoint file was written beside."""
    old, new = np.asarray(before.fingerprint), np.asarray(now.fingerprint)
    paths = parameter_paths(now.tree)
    changed = [path for path, is_same in zip(paths, (old == new).all(axis=-1), strict=True) if not is_same]
    if changed:
        more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        raise CheckpointMismatchError(
            f"What the run was trained beside is not what is here: {len(changed)} of {len(paths)} arrays of "
            f"{now.origin} differ: {', '.join(changed[:_MOST_NAMED])}{more}. Bring back what was there, or name the "
            f"place where it is now."
        )


@struct.dataclass
class StepOutput:
    """What a training step tells beside the new state."""

    loss: Metric
    metrics: Mapping[str, Metric] = struct.field(default_factory=dict)
    grads: PyTree = None

    def __repr__(self) -> str:
        return f"StepOutput({', '.join(['loss', *self.metrics])})"


@dataclass
class Lease:
    """The right to a checkpoint's arrays, which ends when the loop moves on."""

    is_over: bool = False


_LEASED = frozenset({"model_params", "model_state", "optimizer_state", "grads", "totals"})


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint:
    """The training state at a step, in memory.

    Its arrays belong to the loop: they are valid until the loop advances. `copy()` makes a checkpoint that stays.

    Example:
        for checkpoint in loop:
            print(checkpoint.step, checkpoint.loss)
    """

    model_params: PyTree
    model_state: PyTree
    optimizer_state: PyTree
    grads: PyTree
    """The gradients of the last step; None if the loop was told not to keep them."""
    loss: float
    """The mean loss of the steps since the last checkpoint."""
    n_completed_steps: int
    """The number of steps since the last checkpoint."""
    elapsed_time: float
    """Seconds spent on those steps, without what was done with the last checkpoint."""
    step: int
    compile_time: float = 0.0
    """The part of `elapsed_time` that went into compiling."""
    is_last: bool = False
    """Whether the loop ends here."""
    train_metrics: Metrics = field(default_factory=dict)
    """Metrics of the training step itself, over the steps since the last checkpoint."""
    rates: Metrics = field(default_factory=dict)
    """What the clock says of those steps: the share of their time that the devices waited for input, examples and
    tokens a second, and where the peak of the devices is known, the share of it that the step's operations came to."""
    totals: PyTree = None
    """Sums for the next checkpoint; None at a regular one, where they start anew."""
    position: JSON = None
    """Where the data stream stands, if that does not follow from the step."""
    last_batch: Callable[[], Batch] | None = None
    """Puts the batch of the last step on the devices again, and returns it; all processes of a run have to call it."""
    session: Session | None = None
    lease: Lease | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """What the model's `apply` takes: the parameters, and the model's other collections."""
        return {"params": self.model_params, **self.model_state}

    @classmethod
    def of(cls, state: TrainState, **values: Any) -> "Checkpoint":
        """A checkpoint of a state; `values` are the other fields, of which only `step` is needed."""
        others = {"grads": None, "loss": math.nan, "n_completed_steps": 0, "elapsed_time": 0.0}
        return cls(state.params, state.model_state, state.optimizer_state, **others | values)

    def __getattribute__(self, name: str) -> Any:
        if name in _LEASED:
            lease = object.__getattribute__(self, "lease")
            if lease is not None and lease.is_over:
                raise StaleCheckpointError(
                    f"`{name}` of the checkpoint at step {self.step} is gone: the loop has moved on and reused its "
                    f"memory. Take `checkpoint.copy()` before the loop advances."
                )
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step={self.step}, loss={describe_metric(self.loss)})"

    def copy(self) -> "Checkpoint":
        """The same checkpoint in memory of its own, valid for as long as it is held."""
        values = _values(self)
        arrays = jax.tree.map(jnp.copy, {name: values[name] for name in _LEASED})
        return type(self)(**values | arrays | {"lease": None})


@dataclass(frozen=True, eq=False, repr=False)
class Summary(Checkpoint):
    """A checkpoint with metrics: `{group: {name: value}}`, groups `train` and `eval`."""

    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    media: Mapping[str, Mapping[str, Media]] = field(default_factory=dict)
    """Histograms, images and text, under the groups and names of their own; the screen and `events.jsonl` leave them
    to those who can show them."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "Summary":
        """The checkpoint with the metrics of its training steps, or the summary that it is already."""
        if isinstance(checkpoint, Summary):
            return checkpoint
        n_steps = max(1, checkpoint.n_completed_steps)
        train = {"seconds_per_step": (checkpoint.elapsed_time - checkpoint.compile_time) / n_steps}
        if checkpoint.compile_time:
            train["compile_seconds"] = checkpoint.compile_time
        train |= checkpoint.rates
        if checkpoint.grads is not None:
            train["gradients_l2norm"] = float(_norm(checkpoint.grads))
        train["weights_l2norm"] = float(_norm(checkpoint.model_params))
        train["loss"] = checkpoint.loss
        return cls(**_values(checkpoint), metrics={"train": train | dict(checkpoint.train_metrics)})

    def __repr__(self) -> str:
        metrics = [f"{group}/{name}={text}" for group, name, text in self._rows()]
        return f"Summary({', '.join([f'step={self.step}', *metrics])})"

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        rows = "".join(
            f"<tr><td>{escape(group)}/{escape(name)}</td><td style='text-align: right'>{text}</td></tr>"
            for group, name, text in self._rows()
        )
        return f"<table><caption>Step {self.step}</caption>{rows}</table>"

    def _rows(self) -> list[tuple[str, str, str]]:
        return [
            (group, name, describe_metric(value))
            for group, named in self.metrics.items()
            for name, value in named.items()
        ]

    def with_metrics(self, **groups: Metrics) -> "Summary":
        """The summary with more groups of metrics."""
        return Summary(**_values(self) | {"metrics": {**self.metrics, **groups}})

    def with_media(self, **groups: Mapping[str, Media]) -> "Summary":
        """The summary with more histograms, images and text, beside those that its groups have already."""
        for group, named in groups.items():
            for name, value in named.items():
                if not isinstance(value, Media):
                    raise ArgumentError(
                        f"with_media was given a {type(value).__name__} as {group}/{name}. Give a trellis.Histogram, a "
                        f"trellis.Image or a trellis.Text; numbers go into with_metrics."
                    )
        media = {group: {**self.media.get(group, {}), **named} for group, named in groups.items()}
        return Summary(**_values(self) | {"media": {**self.media, **media}})

    def only(self, group: str) -> "Summary":
        """The summary with the metrics and the media of one group alone."""
        parts = {"metrics": {group: self.metrics.get(group, {})}, "media": {group: self.media.get(group, {})}}
        return Summary(**_values(self) | parts)


_norm = jax.jit(optax.tree.norm)


def _values(checkpoint: Checkpoint) -> dict[str, Any]:
    return {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}


class CheckpointSource(ABC):
    """An `init` that may have a checkpoint to start from."""

    target: Init
    """Makes the variables if there is no checkpoint, and their structure if there is one."""
    gives_away = False
    """Whether nobody else has the arrays of its checkpoint, so that a loop may take those that are in place already."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    @abstractmethod
    def __call__(self, initializer: Checkpoint) -> Checkpoint:
        """The checkpoint to start from, or `initializer`, which has shapes in the place of arrays, if there is none."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A loop before its first step."""

    checkpoint: Checkpoint
    """What its checkpoints hold: shapes and dtypes, each with the sharding that it has on the devices."""
    data: Any
    batch: Batch
    """The first one."""
    metrics: tuple[str, ...]
    """The names of what a step measures on the devices; those of a training step have the loss among them."""
    flops: float
    """About how many floating-point operations a step takes."""

    def __repr__(self) -> str:
        n_weights = count_weights(self.checkpoint.model_params)
        batch = describe_arrays(self.batch)
        return f"Outline({n_weights} weights, batch={batch}, metrics={self.metrics}, flops={self.flops:.4g})"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Takes from an error the note in which JAX tells that it has shortened the trace, which helps nobody."""
    try:
        yield
    except Exception as error:
        drop_jax_note(error)
        raise


@contextmanager
def tracing(what: str, batch: Batch, *, hint: str = "") -> Iterator[None]:
    """Adds to an error what was being traced, with what batch, and what may be the cause."""
    try:
        with plain_errors():
            yield
    except Exception as error:
        error.add_note(f"That was while tracing {what} with a batch of {describe_arrays(batch)}.")
        if isinstance(batch, Mapping) and not isinstance(error, TrellisError):
            error.add_note(
                "A batch that is a mapping is given whole, as one argument; a pair (inputs, targets) is unpacked."
            )
        if hint and not isinstance(error, TrellisError):
            error.add_note(hint)
        raise


def describe_arrays(tree: PyTree) -> str:
    """The dtypes and shapes of a tree, such as `(float32[32,64], int32[32])`."""

    def describe(leaf: Any) -> str:
        array = leaf if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array) else np.asarray(leaf)
        return f"{array.dtype}[{','.join(map(str, array.shape))}]"

    return str(jax.tree.map(describe, tree)).replace("'", "")
