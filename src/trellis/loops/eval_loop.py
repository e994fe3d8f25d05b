"""The evaluation loop: a checkpoint in, a summary out."""

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np

from trellis.aliases import Array, Batch, Key, PyTree
from trellis.errors import ArgumentError, ModelError, shown
from trellis.loops.feed import Replay
from trellis.loops.fused_steps import count_flops
from trellis.loops.media import Media
from trellis.loops.metrics import compute, merge, zeros
from trellis.loops.state import Checkpoint, Outline, Summary, tracing
from trellis.loops.step import EvalTask, build_validation_step, check_collections, check_task
from trellis.loops.time_ledger import TimeLedger
from trellis.runtime import Placement, StepKeys, checked_key, fetch, jit_on, note_progress, print_line, shardings_of

_CALLS_IN_FLIGHT = 4  # few enough to bound memory; many collectives at once can also lock up virtual CPU devices
_MOST_ELEMENTS = 100
"""Of an array that a task gives as a metric: a confusion matrix of ten classes is one, predictions are none."""


class EvalLoop:
    """Measures a model on the same batches for every checkpoint, and returns the checkpoint with the metrics.

    Metrics are sums and weights over all batches, the short last one included.

    Example:
        evaluate = EvalLoop(task=EvalTask(apply=model.apply, metrics={"accuracy": accuracy}, data=stream), n_steps=20)
        summary = evaluate(checkpoint)

    Args:
        rnkey: The root of the randomness of models that need some; the default is `jax.random.key(0)`.
        n_steps: How many batches to take; the default is all of them. Those of a plain iterator are kept in memory.
        collections: The rng collections to give to `apply`: `{"apply": ["dropout"]}`.
        group: The name under which the metrics go into the summary.
    """

    def __init__(
        self,
        *,
        task: EvalTask,
        rnkey: Key | None = None,
        n_steps: int | None = None,
        collections: Mapping[str, Sequence[str]] | None = None,
        devices: Sequence[Any] | Placement | None = None,
        group: str = "eval",
    ) -> None:
        check_task(task, EvalTask, place="EvalLoop.task")
        self.n_steps = n_steps
        self._left_out: set[str] = set()
        self._is_compiled = False
        """Whether a batch was measured. That a short last batch is compiled apart counts as evaluation."""
        self._group = group
        self._task = task
        self._batches = Replay(task.data, n_batches=n_steps, place="EvalTask.data")
        self._placement = Placement.of(devices)
        self._root = self._placement.put_state(jax.random.key(0) if rnkey is None else checked_key(rnkey))
        check_collections(collections or {})
        self._validate = build_validation_step(task, rng_names=(collections or {}).get("apply", ()))
        # Compiled as a part of what calls it, so that it is traced once, whatever calls it.
        self._step = jax.jit(self._traced_step, inline=True)
        self._measure = jit_on(
            self._placement.devices,
            self._add_batch,
            is_exact=self._placement.is_exact,
            static_argnames="shardings",
            # Totals and carry are the same everywhere, also where devices are not all of this process.
            out_shardings=(self._placement.replicated, self._placement.replicated, None),
        )

    def __repr__(self) -> str:
        return f"EvalLoop(group={self._group!r}, n_steps={self.n_steps}, task={self._task!r})"

    def peek(self) -> Batch:
        """The first batch."""
        return self._batches.peek()

    def over(self, data: Any, *, rnkey: Key) -> "EvalLoop":
        """The same evaluation of other data, with another key; what is compiled for one of them is so for all."""
        other = copy.copy(self)
        other._batches = Replay(data, n_batches=self.n_steps, place="EvalTask.data")
        other._root = self._placement.put_state(checked_key(rnkey))
        return other

    def outline(self, checkpoint: Checkpoint) -> Outline:
        """What the evaluation of a checkpoint computes, by abstract evaluation.

        Args:
            checkpoint: One with shapes in the place of arrays will do.
        """
        batch = self._batches.peek()
        variables = (checkpoint.model_params, checkpoint.model_state)
        # Where it will be when the step is compiled: else that would take a trace of its own.
        placed = self._placement.put_batch(batch)
        keys = StepKeys(self._root, 0)
        with tracing("a validation step", batch):
            carry = self._first_carry(checkpoint)
            jaxpr, (metrics, *_) = jax.make_jaxpr(self._step, return_shape=True)(*variables, carry, placed, keys)
        return Outline(
            checkpoint=checkpoint,
            data=self._task.data,
            batch=batch,
            metrics=tuple(metrics),
            flops=count_flops(jaxpr.jaxpr),
        )

    def __call__(self, checkpoint: Checkpoint) -> Summary:
        """The checkpoint with the metrics of its model."""
        if not isinstance(checkpoint, Checkpoint):
            raise ArgumentError(
                f"EvalLoop was called with {shown(checkpoint)}, but it takes a checkpoint: what a TrainLoop yields, or "
                f"what a reader's read() returns."
            )
        ledger = TimeLedger() if checkpoint.session is None else checkpoint.session.ledger
        with ledger.spending("eval"):
            return self._evaluate(checkpoint, ledger)

    def _evaluate(self, checkpoint: Checkpoint, ledger: TimeLedger) -> Summary:
        variables = self._placement.put_params((checkpoint.model_params, checkpoint.model_state))
        shardings = _Shardings(variables) if self._placement.shares_params else None
        carry = self._placement.put_state(self._first_carry(checkpoint))
        totals: Any = None
        logs: Any = None
        in_flight: deque[tuple[PyTree, PyTree]] = deque()
        for index, batch in enumerate(self._batches.placed(self._placement)):
            note_progress("eval" if index else "compiling")
            arguments = (variables, batch, self._root, index)
            if totals is None:
                # From zeros on, so that the first batch needs no program of its own.
                with tracing("a validation step", batch):
                    shapes = self._metric_shapes(carry, *arguments)
                totals = self._placement.put_state(zeros(shapes))
            with nullcontext() if self._is_compiled else ledger.spending("compile"):
                totals, carry, outputs = self._measure(totals, carry, *arguments, shardings=shardings)
            self._is_compiled = True
            in_flight.append((totals, outputs))
            if len(in_flight) > _CALLS_IN_FLIGHT:
                logs = self._aggregate(logs, *in_flight.popleft())
        note_progress("eval")
        for measured in in_flight:
            logs = self._aggregate(logs, *measured)
        values = compute(totals or {})
        media: dict[str, Media] = {}
        if self._task.host_metrics is not None and logs is not None:
            reduced = self._flat(self._task.host_metrics.reduce_aggregated_logs(logs, global_step=checkpoint.step))
            media = {name: value for name, value in reduced.items() if isinstance(value, Media)}
            values |= {name: value for name, value in reduced.items() if not isinstance(value, Media)}
        return (
            Summary.from_checkpoint(checkpoint).with_metrics(**{self._group: values}).with_media(**{self._group: media})
        )

    def _first_carry(self, checkpoint: Checkpoint) -> dict[str, PyTree]:
        """What the first batch is given of the state that batches hand on."""
        carry = {}
        for name, value in self._task.carry.items():
            if value is None and name not in checkpoint.model_state:
                names = ", ".join(checkpoint.model_state) or "none"
                raise ArgumentError(
                    f"EvalTask.carry[{name!r}] is None, which stands for the checkpoint's, but its model state has "
                    f"no such collection: {names}. Give the arrays to start with."
                )
            carry[name] = checkpoint.model_state[name] if value is None else value
        return carry

    def _add_batch(
        self,
        totals: PyTree,
        carry: PyTree,
        variables: PyTree,
        batch: Batch,
        root: Key,
        index: Array,
        *,
        shardings: "_Shardings | None",
    ) -> tuple[PyTree, PyTree, PyTree]:
        """One batch as it is compiled: the totals with what it measures, the carry, and the arrays for the host."""
        if shardings is not None:
            variables = self._placement.gather(variables, shardings=shardings.tree)
        metrics, outputs, carry = self._step(*variables, carry, batch, StepKeys(root, index))
        return merge(totals, metrics), carry, outputs

    def _traced_step(self, *arguments: Any) -> tuple[Any, Any, Any]:
        with self._placement.tracing():
            return self._validate(*arguments)

    def _metric_shapes(self, carry: PyTree, variables: PyTree, batch: Batch, root: Key, index: int) -> PyTree:
        return jax.eval_shape(self._step, *variables, carry, batch, StepKeys(root, index))[0]

    def _flat(self, metrics: Any) -> dict[str, float | Media]:
        """Host metrics and media by name: those of a group as `group/name`, of a small array as `name_0` and so on."""
        if not isinstance(metrics, Mapping):
            kind = type(metrics).__name__
            raise ModelError(f"reduce_aggregated_logs returned a {kind}. Return metrics by name: {{'f1': 0.5}}")
        values = dict(_named_values(metrics))
        left_out = [name for name, value in values.items() if value is None and name not in self._left_out]
        if left_out:
            # An error would cost all that was trained since the last checkpoint file.
            print_line(
                f"Left out of the metrics of {self._group}: {', '.join(left_out)}. A metric is a number, a small array "
                f"of at most {_MOST_ELEMENTS}, a histogram, an image, a text or a mapping of those."
            )
            self._left_out.update(left_out)
        return {name: value for name, value in values.items() if value is not None}

    def _aggregate(self, logs: Any, totals: PyTree, outputs: PyTree) -> Any:
        jax.block_until_ready((totals, outputs))
        return self._task.host_metrics and self._task.host_metrics.aggregate_logs(logs, fetch(outputs))


def _named_values(metrics: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float | Media | None]]:
    """Yields each number and each medium of nested host metrics with its name; None for what is neither."""
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Media):
            yield name, value
            continue
        if isinstance(value, Mapping):
            yield from _named_values(value, f"{name}/")
            continue
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            yield name, None
            continue
        if array.size == 1:
            yield name, array.item()
        elif array.size > _MOST_ELEMENTS:
            yield name, None
        else:
            yield from (("_".join([name, *map(str, at)]), float(array[at])) for at in np.ndindex(array.shape))


class _Shardings:
    """How the variables of a checkpoint are shared out: the program of an evaluation is compiled for one such way."""

    def __init__(self, variables: PyTree) -> None:
        self.tree = shardings_of(variables)
        leaves, structure = jax.tree.flatten(self.tree)
        self._identity = (tuple(leaves), structure)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shardings) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)
