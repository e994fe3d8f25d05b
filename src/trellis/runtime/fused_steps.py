"""Several steps in one compiled call."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Array, Batch, PyTree
from trellis.errors import ArgumentError
from trellis.runtime.mesh import Placement

# A compiled call is not interrupted: these bound its duration (a fraction of a second) and the memory of its batches.
# They are functions of the program alone, never of a measured time, so that two runs fuse alike.
_FLOPS_PER_CALL = {"cpu": 5e9}
_FLOPS_PER_CALL_ON_ACCELERATORS = 1e13
_BATCH_BYTES_PER_CALL = 64 * 2**20
_MOST_STEPS_PER_CALL = 50

# Calls under way at any time: enough to hide the host's work, few enough to bound memory and the answer to a signal,
# and to keep collectives over virtual CPU devices from waiting for each other for ever.
_CALLS_IN_FLIGHT = 3


class FusableStep(Protocol):
    """One step, to be traced."""

    def __call__(self, state: Any, totals: PyTree, batch: Batch, constant: PyTree, /) -> tuple[Any, Any, Any, Any]:
        """Returns the new state, the new totals, what is wanted of the last step only, and what is wanted of each."""


class FusedSteps:
    """Runs a step on one batch, or on several stacked ones by a scan, each number of steps compiled once.

    The state is donated: the arrays given are gone after the call.
    """

    def __init__(self, step: FusableStep, placement: Placement, *, most_steps: int | None = None) -> None:
        if most_steps is not None and most_steps < 1:
            raise ArgumentError(f"n_fused_steps is {most_steps}, but a call runs at least one step.")
        self._step = step
        self._placement = placement
        self._chosen = most_steps
        self._programs: dict[int, Callable[..., Any]] = {}
        self._in_flight: deque[Any] = deque()
        self.compile_time = 0.0
        """Seconds spent on tracing and compiling so far."""

    def __call__(self, n: int, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> tuple[Any, Any, Any]:
        """Starts `n` steps; `batch` has a leading axis of steps if `n` is above one."""
        batch = self._placement.put_batch(batch, stacked=n > 1)
        program = self._programs.get(n)
        if program is None:
            program = self._compile(n, state, totals, batch, constant)
        state, totals, last, each = program(state, totals, batch, constant)
        self._in_flight.append(each)
        return state, totals, last

    def finished(self, *, n_left: int = _CALLS_IN_FLIGHT) -> Iterator[Array]:
        """Waits until at most `n_left` calls are under way; yields what was wanted of each step of those that ended."""
        while len(self._in_flight) > n_left:
            yield np.asarray(self._in_flight.popleft()).reshape(-1)

    @property
    def most_steps(self) -> int:
        """How many steps at most go into one call."""
        return self._chosen or 1

    def choose_most_steps(self, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> None:
        """Chooses, unless it was given, how many steps go into one call: a function of the step and its shapes."""
        if self._chosen is not None:
            return
        n_bytes = sum(np.size(leaf) * np.asarray(leaf).dtype.itemsize for leaf in jax.tree.leaves(batch))
        started = time.perf_counter()
        lowered = jax.jit(self._step).lower(state, totals, self._placement.put_batch(batch), constant)
        cost = lowered.cost_analysis()
        self.compile_time += time.perf_counter() - started
        flops = float(cost.get("flops", 0.0)) if isinstance(cost, dict) else 0.0
        platform = self._placement.devices[0].platform
        flops_per_call = _FLOPS_PER_CALL.get(platform, _FLOPS_PER_CALL_ON_ACCELERATORS)
        fits = min(flops_per_call / max(flops, 1.0), _BATCH_BYTES_PER_CALL / max(n_bytes, 1), _MOST_STEPS_PER_CALL)
        self._chosen = max(1, int(fits))

    def _compile(self, n: int, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> Callable[..., Any]:
        started = time.perf_counter()
        program = self._step if n == 1 else self._scan
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        jitted = jax.jit(program, donate_argnums=0, out_shardings=(shardings, None, None, None))
        compiled = jitted.lower(state, totals, batch, constant).compile()
        self._programs[n] = compiled
        self.compile_time += time.perf_counter() - started
        return compiled

    def _scan(self, state: PyTree, totals: PyTree, batches: Batch, constant: PyTree) -> tuple[Any, Any, Any, Any]:
        def body(carry: tuple[Any, Any, Any], batch: Batch) -> tuple[tuple[Any, Any, Any], Array]:
            state, totals, last, each = self._step(carry[0], carry[1], batch, constant)
            return (state, totals, last), each

        first = jax.tree.map(lambda leaf: leaf[0], batches)
        shapes = jax.eval_shape(self._step, state, totals, first, constant)[2]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (state, totals, last), each = jax.lax.scan(body, (state, totals, nothing), batches)
        return state, totals, last, each
