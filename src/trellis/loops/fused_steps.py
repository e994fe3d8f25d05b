"""Several steps in one compiled call: how many, where calls are cut, and the calls themselves."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from trellis.aliases import Batch, PyTree
from trellis.errors import ArgumentError, shown
from trellis.runtime import Placement, jit_on, note_progress, shardings_of

# A compiled call is not interrupted: these bound its duration (a fraction of a second) and the memory of its batches.
# They are functions of the program alone, never of a measured time, so that two runs fuse alike.
_FLOPS_PER_CALL = {"cpu": 5e9}
_FLOPS_PER_CALL_ON_ACCELERATORS = 1e13
_BATCH_BYTES_PER_CALL = 64 * 2**20
_MOST_STEPS_PER_CALL = 50
# With this share of those FLOPs a call is worth what it takes to start it.
_LEAST_SHARE = 0.05

# Calls under way at any time: enough to hide the host's work, few enough to bound memory and the answer to a signal,
# and to keep collectives over virtual CPU devices from waiting for each other for ever.
_CALLS_IN_FLIGHT = 3


def whole_number(value: Any, name: str) -> int:
    """The value, such as 10 or 1e6, as an integer."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != value or isinstance(value, bool):
        raise ArgumentError(f"{name} is {shown(value)}, which is no whole number.")
    return number


@dataclass(frozen=True)
class StepPlan:
    """Periods of checkpoints: one is due at every multiple of one of them.

    All is a function of absolute step numbers, so that a resumed run executes the same programs as any other.
    """

    periods: tuple[int, ...]

    @classmethod
    def of(cls, periods: int | Sequence[int]) -> "StepPlan":
        """The plan for one period or several."""
        listed = periods if isinstance(periods, list | tuple) else (periods,)
        plan = cls(tuple(whole_number(period, "n_steps_per_checkpoint") for period in listed))
        if not plan.periods or min(plan.periods) < 1:
            raise ArgumentError(f"n_steps_per_checkpoint is {periods}, but a period has at least one step.")
        return plan

    def due_after(self, step: int) -> int:
        """The next step at which a checkpoint is due."""
        return min((step // period + 1) * period for period in self.periods)

    def n_steps_in_call(self, step: int, lengths: tuple[int, int], end: int) -> int:
        """How many steps from `step` on go into one call.

        Args:
            lengths: The least steps that are worth a call, and the most that one takes.
            end: A later step that is due too: where the run ends.
        """
        if lengths[1] == 1:
            return 1
        last = max(step // period * period for period in self.periods)
        due = min(self.due_after(step), end)
        n = _even_cut(due - last, *lengths)
        return min(due - step, n - (step - last) % n)


@lru_cache
def _even_cut(n_steps: int, least: int, most: int) -> int:
    """The length of the calls that make up `n_steps`: equal ones, which are one program, if they are not too short."""
    most = min(n_steps, most)
    even = max(n for n in range(1, most + 1) if n_steps % n == 0)
    return even if even >= min(least, most // 2 + 1) else most


class FusableStep(Protocol):
    """One step, to be traced."""

    def __call__(self, state: Any, totals: PyTree, batch: Batch, constant: PyTree, /) -> tuple[Any, Any, Any]:
        """Returns the new state, the new totals, and what is wanted of the last step only."""


class FusedSteps:
    """Runs a step on one batch, or on several stacked ones by a scan, each number of steps compiled once.

    The state, and what was returned of the last step, are donated: the arrays given are gone after the call.
    """

    def __init__(self, step: FusableStep, placement: Placement, *, lengths: tuple[int, int]) -> None:
        self._step = step
        self._placement = placement
        self.lengths = lengths
        """The least steps that are worth a call, and the most that one takes."""
        self._programs: dict[int, Callable[..., Any]] = {}
        self._in_flight: deque[Any] = deque()
        self._last: Any = None
        self.compile_time = 0.0
        """Seconds spent on tracing and compiling so far."""

    def __call__(self, n: int, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> tuple[Any, Any, Any]:
        """Starts `n` steps; `batch` holds this process's rows, after an axis of steps if `n` is above one."""
        batch = self._placement.put_rows(batch, stacked=n > 1)
        program = self._programs.get(n) or self._compile(n, state, totals, batch, constant)
        state, self._last, totals = program(state, self._last, totals, batch, constant)
        self._launched(totals)
        return state, totals, self._last

    def run_bare(self, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> tuple[Any, Any]:
        """Starts one step of which nothing else is wanted: cheaper by what is not returned, and compiled apart."""
        batch = self._placement.put_rows(batch)
        program = self._programs.get(0) or self._compile(0, state, totals, batch, constant)
        state, totals = program(state, totals, batch, constant)
        self._launched(totals)
        return state, totals

    def _launched(self, totals: PyTree) -> None:
        self._in_flight.append(jax.tree.leaves(totals)[0])
        self.wait(n_left=_CALLS_IN_FLIGHT)

    @property
    def last_call(self) -> Any:
        """What the call that was started last will have made; None if all are known to be done."""
        return self._in_flight[-1] if self._in_flight else None

    def wait(self, *, n_left: int = 0) -> None:
        """Waits until at most `n_left` calls are under way; nothing is fetched."""
        while len(self._in_flight) > n_left:
            self._in_flight.popleft().block_until_ready()

    def lower(self, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> jax.stages.Lowered:
        """The program of one step, before XLA compiles it: of shapes alone, so that nothing large is made."""
        last = self._last_shapes(1, state, totals, batch, constant)
        steps, options = self._program(1, shardings_of(state), shardings_of(last))
        return jax.jit(steps, **options).lower(state, last, totals, batch, constant)

    def _compile(self, n: int, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> Callable[..., Any]:
        started = time.perf_counter()
        if n and self._last is None:
            shapes = self._last_shapes(n, state, totals, batch, constant)
            self._last = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), shapes)
        steps, options = self._program(n, shardings_of(state), shardings_of(self._last))
        program = jit_on(self._placement.devices, steps, is_exact=self._placement.is_exact, **options)

        def first(*arguments: Any) -> Any:
            note_progress("compiling")
            results = program(*arguments)
            note_progress("step")
            self.compile_time += time.perf_counter() - started
            self._programs[n] = program
            return results

        return first

    def _program(self, n: int, state: PyTree, last: PyTree) -> tuple[Callable[..., Any], dict[str, Any]]:
        """What is compiled for `n` steps, or for one of which nothing else is wanted (0), and the options of `jax.jit`.

        Args:
            state: The shardings of the state.
            last: Those of what the last step leaves.
        """
        everywhere = self._placement.replicated
        # To find the operation that made a NaN, JAX runs a step again: its arrays must be there still.
        donated = () if is_debugged() else (0, 1)
        if n == 0:
            return self._bare, {"donate_argnums": donated[:1], "out_shardings": (state, everywhere)}
        steps = self._one if n == 1 else self._scan
        out_shardings = (state, last, everywhere)
        # What the last step left is not read, but its memory is used again: nothing is allocated from call to call.
        return steps, {"donate_argnums": donated, "keep_unused": True, "out_shardings": out_shardings}

    def _last_shapes(self, n: int, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> PyTree:
        """The shapes of what the last step leaves, each with its sharding."""
        one = jax.tree.map(lambda leaf: leaf[0], batch) if n > 1 else batch
        shapes = jax.eval_shape(self._step, state, totals, one, constant)[2]
        places = self._placement.shardings(shapes, like=state)
        return jax.tree.map(lambda leaf, place: leaf.update(sharding=place), shapes, places)

    def _bare(self, state: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> tuple[Any, Any]:
        return self._step(state, totals, batch, constant)[:2]

    def _one(self, state: PyTree, last: PyTree, totals: PyTree, batch: Batch, constant: PyTree) -> tuple[Any, ...]:
        state, totals, last = self._step(state, totals, batch, constant)
        return state, last, totals

    def _scan(self, state: PyTree, last: PyTree, totals: PyTree, batches: Batch, constant: PyTree) -> tuple[Any, ...]:
        def body(carry: tuple[Any, Any, Any], batch: Batch) -> tuple[tuple[Any, ...], None]:
            return self._one(*carry, batch, constant), None

        return jax.lax.scan(body, (state, last, totals), batches)[0]


def choose_lengths(
    *, flops: float, batch: Batch, platform: str, most_steps: int | None, is_slow_in_scan: bool = False
) -> tuple[int, int]:
    """The least steps that are worth a call, and the most that one takes: a function of what a step costs.

    Args:
        flops: Of one step.
        batch: Of one step.
        most_steps: The most, if somebody has chosen it.
        is_slow_in_scan: Whether a step loses more inside of a scan than a call takes to start.
    """
    if is_debugged():
        return 1, 1
    if most_steps is not None:
        return most_steps, most_steps
    if is_slow_in_scan:
        return 1, 1
    n_bytes = sum(np.size(leaf) * np.asarray(leaf).dtype.itemsize for leaf in jax.tree.leaves(batch))
    by_flops = _FLOPS_PER_CALL.get(platform, _FLOPS_PER_CALL_ON_ACCELERATORS) / max(flops, 1.0)
    fits = min(by_flops, _BATCH_BYTES_PER_CALL / max(n_bytes, 1), _MOST_STEPS_PER_CALL)
    return math.ceil(by_flops * _LEAST_SHARE), max(1, int(fits))


def is_debugged() -> bool:
    """Whether JAX is to name the operation that makes a NaN or an infinity (`JAX_DEBUG_NANS`, `JAX_DEBUG_INFS`)."""
    settings: Any = jax.config
    return bool(settings.jax_debug_nans or settings.jax_debug_infs)


def count_flops(jaxpr: Jaxpr) -> float:
    """About how many floating-point operations it takes: those of products, and one for each element made otherwise.

    A scan counts as often as it runs, a loop of unknown length once, and of several branches the dearest.
    """
    return sum(map(_count, jaxpr.eqns))


def _count(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    n_made: int = sum(math.prod(getattr(var.aval, "shape", ())) for var in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        n_contracted: int = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        return 2.0 * n_made * n_contracted
    if name == "conv_general_dilated":
        kernel: tuple[int, ...] = equation.invars[1].aval.shape
        n_features: int = kernel[params["dimension_numbers"].rhs_spec[0]]
        n_apart: int = math.prod(params["lhs_dilation"])
        return 2.0 * n_made * math.prod(kernel) / n_features / n_apart
    within = [count_flops(leaf) for leaf in jax.tree.leaves(params, is_leaf=_is_jaxpr) if _is_jaxpr(leaf)]
    if not within:
        return float(n_made)
    return max(within) if name == "cond" else params.get("length", 1) * sum(within)


def is_slow_in_scan(jaxpr: Jaxpr, *, platform: str) -> bool:
    """Whether XLA makes slow code of it inside of a scan: on CPUs a convolution took 14 to 26 times as long there."""
    return platform == "cpu" and any(map(_has_convolution, jaxpr.eqns))


def _has_convolution(equation: Any) -> bool:
    if equation.primitive.name == "conv_general_dilated":
        return True
    within = (leaf for leaf in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr) if _is_jaxpr(leaf))
    return any(_has_convolution(inner) for jaxpr in within for inner in jaxpr.eqns)


def _is_jaxpr(leaf: Any) -> bool:
    # Whether it is closed or not, which are one class in new versions of JAX.
    return getattr(leaf, "eqns", None) is not None
