"""Several steps in one compiled call."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import Batch, PyTree
from trellis.errors import ArgumentError
from trellis.runtime.mesh import Placement, shardings_of
from trellis.runtime.step_plan import StepPlan

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

    def __call__(self, state: Any, totals: PyTree, batch: Batch, constant: PyTree, /) -> tuple[Any, Any, Any]:
        """Returns the new state, the new totals, and the rest, such as gradients, which is wanted of few steps."""


class FusedSteps:
    """Runs a step on one batch, or on several stacked ones by a scan, each number of steps compiled once.

    The state, and the rest that was returned, are donated: the arrays given are gone after the call. Carrying the rest
    through a scan would copy it at every step, so a step of which it is wanted runs by itself.

    Args:
        most_steps: How many steps at most go into one call; the default follows from the cost of a step.
        rest: Whether what a step returns beside state and totals is wanted of the steps at which something is due.
    """

    def __init__(
        self, step: FusableStep, placement: Placement, *, most_steps: int | None = None, rest: bool = False
    ) -> None:
        if most_steps is not None and most_steps < 1:
            raise ArgumentError(f"n_fused_steps is {most_steps}, but a call runs at least one step.")
        self._step = step
        self._placement = placement
        self._asked = self._chosen = most_steps
        self._wants_rest = rest
        self._programs: dict[int, Callable[..., Any]] = {}
        self._in_flight: deque[Any] = deque()
        self._rest: Any = None
        self.compile_time = 0.0
        """Seconds spent on tracing and compiling so far."""

    def n_steps(self, plan: StepPlan, step: int, target: int) -> int:
        """How many steps from `step` on go into the next call, on the way to `target`."""
        n = plan.n_steps_in_call(step, self._chosen or 1, due_apart=self._wants_rest)
        return max(1, min(n, target - step - self._wants_rest))

    def __call__(
        self, n: int, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree, *, is_due: bool
    ) -> tuple[Any, Any, Any]:
        """Starts `n` steps; returns the state, the totals, and the rest if it is wanted.

        Args:
            batch: With a leading axis of steps if `n` is above one.
            is_due: Whether the rest is wanted of this step, if it is one.
        """
        batch = self._placement.put_batch(batch, stacked=n > 1)
        # A large step is not compiled twice, with and without the rest.
        key = 0 if n == 1 and self._wants_rest and (is_due or self._asked != 1) else n
        program = self._programs.get(key) or self._compile(key, state, totals, batch, constant)
        if key == 0:
            state, self._rest, totals = program(state, self._rest, totals, batch, constant)
        else:
            state, totals = program(state, totals, batch, constant)
        self._launched(totals)
        return state, totals, self._rest if key == 0 else None

    def _launched(self, totals: PyTree) -> None:
        self._in_flight.append(jax.tree.leaves(totals)[0])
        self.wait(n_left=_CALLS_IN_FLIGHT)

    def wait(self, *, n_left: int = 0) -> None:
        """Waits until at most `n_left` calls are under way; nothing is fetched."""
        while len(self._in_flight) > n_left:
            self._in_flight.popleft().block_until_ready()

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
        shardings, everywhere = shardings_of(state), self._placement.replicated
        if n > 0:
            steps = self._one if n == 1 else self._scan
            program = jax.jit(steps, donate_argnums=0, out_shardings=(shardings, everywhere))
        else:
            self._rest = self._nothing(state, totals, batch, constant)
            kept = (shardings, shardings_of(self._rest), everywhere)
            # What such a step left is not read, but its memory is used again: nothing is allocated from call to call.
            program = jax.jit(self._all_of_one, donate_argnums=(0, 1), keep_unused=True, out_shardings=kept)

        def first(*arguments: Any) -> Any:
            results = program(*arguments)
            self.compile_time += time.perf_counter() - started
            self._programs[n] = program
            return results

        return first

    def _nothing(self, state: PyTree, *given: PyTree) -> PyTree:
        shapes = jax.eval_shape(self._step, state, *given)[2]
        places = self._placement.shardings(shapes, like=state)
        return jax.tree.map(lambda leaf, place: jnp.zeros(leaf.shape, leaf.dtype, device=place), shapes, places)

    def _all_of_one(self, state: PyTree, rest: PyTree, *given: PyTree) -> tuple[Any, Any, Any]:
        state, totals, rest = self._step(state, *given)
        return state, rest, totals

    def _one(self, *given: PyTree) -> tuple[Any, Any]:
        return self._step(*given)[:2]

    def _scan(self, state: PyTree, totals: PyTree, batches: Batch, constant: PyTree) -> tuple[Any, Any]:
        def body(carry: tuple[Any, Any], batch: Batch) -> tuple[tuple[Any, Any], None]:
            return self._one(*carry, batch, constant), None

        return jax.lax.scan(body, (state, totals), batches)[0]
