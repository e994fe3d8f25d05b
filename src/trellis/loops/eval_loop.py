"""The evaluation loop: a checkpoint in, a summary out."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from trellis.aliases import Array, Batch, Key, PyTree
from trellis.data import Replay
from trellis.loops.checkpoint import Checkpoint, Summary
from trellis.loops.step import EvalTask
from trellis.metrics import Metric, compute, merge
from trellis.model import Forward
from trellis.runtime import Placement, StepKeys

# Few enough to bound memory, and to keep collectives over virtual CPU devices from waiting for each other for ever.
_CALLS_IN_FLIGHT = 4


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
        devices: Sequence[Any] | None = None,
        group: str = "eval",
    ) -> None:
        self.n_steps = n_steps
        self._group = group
        self._batches = Replay(task.data, n_batches=n_steps, place="EvalTask.data")
        self._placement = Placement(devices)
        self._root = self._placement.put_state(jax.random.key(0) if rnkey is None else rnkey)
        self._forward = Forward(task.apply, task.metrics)
        self._rng_names = (collections or {}).get("apply", ())
        self._first = jax.jit(self._measure)
        self._next = jax.jit(lambda totals, *arguments: merge(totals, self._measure(*arguments)))

    def __call__(self, checkpoint: Checkpoint) -> Summary:
        """The checkpoint with the metrics of its model."""
        held = (checkpoint.model_params, checkpoint.model_state)
        params, model_state = jax.device_put(held, self._placement.replicated)
        totals: Any = None
        for index, batch in enumerate(self._batches):
            arguments = (params, model_state, self._placement.put_any_batch(batch), self._root, index)
            totals = self._first(*arguments) if totals is None else self._next(totals, *arguments)
            if index % _CALLS_IN_FLIGHT == 0:
                jax.block_until_ready(totals)
        return Summary.from_checkpoint(checkpoint).with_metrics(**{self._group: compute(totals)})

    def _measure(self, params: PyTree, model_state: PyTree, batch: Batch, root: Key, index: Array) -> dict[str, Metric]:
        return self._forward(params, model_state, batch, StepKeys(root, index).rngs(self._rng_names))[1]
