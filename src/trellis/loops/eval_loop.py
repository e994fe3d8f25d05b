"""The evaluation loop: a checkpoint in, a summary out."""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import jax

from trellis.aliases import Array, Batch, Key, PyTree
from trellis.loops.feed import Replay
from trellis.loops.metrics import compute, merge, zeros
from trellis.loops.state import Checkpoint, Summary
from trellis.loops.step import EvalTask, build_validation_step
from trellis.runtime import Placement, StepKeys, fetch, jit_on, shardings_of

_CALLS_IN_FLIGHT = 4  # few enough to bound memory; many collectives at once can also lock up virtual CPU devices


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
        self.n_steps = n_steps
        self._group = group
        self._batches = Replay(task.data, n_batches=n_steps, place="EvalTask.data")
        self._placement = placement = Placement.of(devices)
        self._root = self._placement.put_state(jax.random.key(0) if rnkey is None else rnkey)
        step = build_validation_step(task, rng_names=(collections or {}).get("apply", ()))
        self._step = jax.jit(step, inline=True)  # so that it is traced once, for all evaluations
        self._host_metrics = task.host_metrics
        # Totals are the same everywhere, also where devices are not all of this process.
        self._measure = jit_on(placement.devices, self._measured, out_shardings=(placement.replicated, None))

    def __call__(self, checkpoint: Checkpoint) -> Summary:
        """The checkpoint with the metrics of its model."""
        held = self._placement.put_params((checkpoint.model_params, checkpoint.model_state))
        self._shardings = shardings_of(held)
        totals = state = None
        in_flight: deque[Any] = deque()
        for index, batch in enumerate(self._batches):
            given = (held, self._placement.put_any_batch(batch), self._root, index)
            if totals is None:  # from zeros on, so that the first batch needs no program of its own
                totals = self._placement.put_state(zeros(jax.eval_shape(self._measured, None, *given)[0]))
            in_flight.append(self._measure(totals, *given))
            totals = in_flight[-1][0]
            if len(in_flight) > _CALLS_IN_FLIGHT:
                state = self._aggregate(state, in_flight.popleft())
        state = reduce(self._aggregate, in_flight, state)
        values = compute(totals or {})
        if self._host_metrics is not None and state is not None:
            values |= self._host_metrics.reduce_aggregated_logs(state, global_step=checkpoint.step)
        return Summary.from_checkpoint(checkpoint).with_metrics(**{self._group: values})

    def _aggregate(self, state: Any, measured: tuple[PyTree, PyTree]) -> Any:
        jax.block_until_ready(measured)
        return self._host_metrics and self._host_metrics.aggregate_logs(state, fetch(measured[1]))

    def _measured(self, totals: Any, held: PyTree, batch: Batch, root: Key, index: Array) -> Any:
        params, model_state = self._placement.gather(held, shardings=self._shardings)
        seen, outputs = self._step(params, model_state, batch, StepKeys(root, index))
        return (dict(seen) if totals is None else merge(totals, seen)), outputs
