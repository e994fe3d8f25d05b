"""Several trainings as one program: every step of theirs is a part of one compiled call."""

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NoReturn

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core.scope import in_filter

from trellis.aliases import Array, Batch, Key, Metrics, PyTree
from trellis.errors import ArgumentError, Preempted, StreamEndedError
from trellis.loops.batch import ShapeCheck, batch_size
from trellis.loops.feed import Feed
from trellis.loops.fused_steps import FusedSteps, choose_lengths
from trellis.loops.metrics import Metric, merge, pack
from trellis.loops.session import Session
from trellis.loops.state import Checkpoint, Outline, TrainState
from trellis.loops.step import TrainTask, build_train_step
from trellis.loops.time_ledger import InputMeter
from trellis.loops.train_loop import DIVERGED, TOKENS, TrainLoop, measured_step, put_last
from trellis.runtime import note_progress

BuildTask = Callable[[Mapping[str, Array]], TrainTask]
"""From numbers, which may be traced, to the task that has them; its data is not looked at."""


class ReplicaLoop:
    """Trains several loops as one program, and yields the checkpoints of each, with its index.

    A replica is what its loop would be alone, up to rounding: it has its seed, its data, its session and its checkpoint
    files, which are those of a lone run. What one of them computes, NaN too, touches no other. The loops are of one
    model, one kind of optimizer and one length, on one device; they may differ in their keys and data, and in numbers.

    A replica that has ended computes on, and nobody looks; so does a place that is None. The program is that of all
    places from the first step to the last, whoever is there: a resumed training has the same bits.

    Example:
        def build_task(numbers):
            return TrainTask(apply=model.apply, optimizer=optax.adam(numbers["rate"]), loss=cross_entropy, data=stream)

        rates = [1e-3, 1e-2]
        one = jax.devices()[:1]
        tasks = [build_task({"rate": rate}) for rate in rates]
        loops = [TrainLoop(init=model.init, task=task, n_steps=20, devices=one) for task in tasks]
        for index, checkpoint in ReplicaLoop(loops, numbers={"rate": rates}, build_task=build_task):
            print(index, checkpoint.step, checkpoint.loss)

    Args:
        loops: One for each place. None of them may have begun; what they share is read from the first.
        numbers: By name, the value in each place.
        build_task: Is traced once for all, with a scalar for each number; the default is the task of the first loop.
        same_start: Whether the first loop's `init`, with its own key, makes the state of every replica: not so if it
            depends on numbers.
    """

    def __init__(
        self,
        loops: Sequence[TrainLoop | None],
        *,
        numbers: Mapping[str, Sequence[float]] | None = None,
        build_task: BuildTask | None = None,
        same_start: bool = True,
    ) -> None:
        present = [loop for loop in loops if loop is not None]
        numbers = numbers or {}
        _check(loops, present, numbers, build_task)
        self._first = present[0]
        self._build_task = build_task
        self._same_start = same_start
        self._parts = self._first.parts()
        self._parts_of = [(loop or self._first).parts() for loop in loops]
        """Those of the loops, and of the first in the place of those that are missing."""
        self._loops = {index: loop for index, loop in enumerate(loops) if loop is not None}
        self._numbers = {name: _weak([values[i] for i in range(len(loops))]) for name, values in numbers.items()}
        self._replicas: dict[int, _Replica] = {}
        self._feeds: list[Feed] = [parts.feed for parts in self._parts_of]
        if all(parts.task.data is self._parts.task.data for parts in self._parts_of):
            self._feeds = self._feeds[:1]
        self.step = 0
        """How many steps are completed of the replicas that are under way."""
        self._state: Any = None
        self._totals: Any = None
        self._compile_time = 0.0
        self._meter = InputMeter()
        self._waited_before = 0.0
        self._taken: tuple[int, Sequence[Batch]] = (0, ())

    def __repr__(self) -> str:
        return f"ReplicaLoop({len(self._loops)} replicas, {self._first!r})"

    @property
    def n_replicas(self) -> int:
        """How many places there are."""
        return len(self._parts_of)

    def outline(self) -> Outline:
        """What one replica holds and computes alone."""
        return self._first.outline()

    def end(self, index: int, error: BaseException | None = None) -> None:
        """Ends a replica: what is saved of it is finished, and no checkpoint of it is yielded any more.

        Args:
            error: What has gone wrong with it; its events tell of it.
        """
        replica = self._replicas.pop(index, None)
        if replica is None:
            return
        replica.leave(error or GeneratorExit())

    def __iter__(self) -> Iterator[tuple[int, Checkpoint]]:
        return self.run()

    def run(self, n_steps: int | None = None) -> Generator[tuple[int, Checkpoint], None, None]:
        """Trains all up to step `n_steps`, each from where it was; at each step that is due, yields those under way.

        Args:
            n_steps: The default is that of the loops.
        """
        n_steps = n_steps or self._first.n_steps
        if n_steps is None:
            raise ArgumentError("It was not said how long to train. Give TrainLoop(n_steps=…), or run(n_steps).")
        waiting = self._start(n_steps)
        try:
            while waiting or self._replicas:
                if not self._replicas:
                    # Others are ahead: nobody looks at the steps up to there.
                    self.step = min(replica.start.step for replica in waiting.values())
                self._join(waiting)
                last = min([n_steps, *(replica.start.step for replica in waiting.values())])
                target = min(self._parts.plan.due_after(self.step), last)
                self._advance(target, n_steps)
                if target in (n_steps, self._parts.plan.due_after(target - 1)):
                    yield from self._checkpoints(n_steps)
        except BaseException as error:
            for index in list(self._replicas):
                self.end(index, error)
            raise

    def _start(self, n_steps: int) -> "dict[int, _Replica]":
        """Makes or reads the state of every replica; returns those that have steps left."""
        started = time.perf_counter()
        no_totals = self._first.traced.packing.unpack(self._first.traced.no_totals)
        outline = self.outline()
        self._check_batches()
        waiting = {}
        for index, loop in self._loops.items():
            with loop.session.ledger.spending("start"):
                initializer = dataclasses.replace(outline.checkpoint, totals=no_totals, session=loop.session)
                source = self._parts_of[index].source
                start = initializer if source is None else source(initializer)
                if start.model_params is initializer.model_params:
                    maker = self._first if self._same_start else loop
                    start = maker.first_checkpoint(root=self._parts_of[index].root)
            if start.step >= n_steps:
                message = f"Stop training, already reached the total training steps {n_steps}."
                loop.session.emit("finished", step=start.step, text=message)
            else:
                waiting[index] = _Replica(loop, start)
        if waiting:
            filler = next(iter(waiting.values())).start
            # A place whose replica is ahead computes with something until that joins.
            self._fill(filler)
            for replica in waiting.values():
                replica.loop.tell_start(outline, step=replica.start.step, seconds=time.perf_counter() - started)
                replica.loop.session.wait_for_steps = self._steps.wait
        return waiting

    def _check_batches(self) -> None:
        """Raises an error if the batches of the replicas do not go into one program."""
        check = ShapeCheck("The data of the replicas")
        for feed in self._feeds:
            check(feed.peek(), 0)

    @cached_property
    def _steps(self) -> FusedSteps:
        """The program: the step of one replica, mapped over all."""
        parts, outline = self._parts, self.outline()
        n_batches = len(self._feeds)
        lengths = choose_lengths(
            flops=outline.flops * self.n_replicas,
            batch=[outline.batch] * n_batches,
            platform=parts.placement.devices[0].platform,
            most_steps=parts.n_fused_steps,
            is_slow_in_scan=self._first.traced.is_slow_in_scan,
        )
        mapped = jax.vmap(self._step, in_axes=(0, 0, 0 if n_batches > 1 else None, 0))
        return FusedSteps(mapped, parts.placement, lengths=lengths)

    def _step(
        self, state: TrainState, totals: PyTree, batch: Batch, constant: tuple[Key, Mapping[str, Array]]
    ) -> tuple[TrainState, PyTree, PyTree]:
        root, numbers = constant
        state, metrics, grads = self.traced_step(state, batch, root, numbers)
        return state, pack(merge(self._first.traced.packing.unpack(totals), metrics))[0], grads

    def traced_step(
        self, state: TrainState, batch: Batch, root: Key, numbers: Mapping[str, Array]
    ) -> tuple[TrainState, dict[str, Metric], PyTree]:
        """One step of one replica, to be traced."""
        parts = self._parts
        task = parts.task if self._build_task is None else self._build_task(numbers)
        train_step = build_train_step(
            task,
            rng_names=parts.rng_names,
            mutable=[name for name in state.model_state if in_filter(parts.mutable_collections, name)],
            around=lambda apply: apply,
        )
        with parts.placement.tracing(), nn.intercept_methods(_drop_by_number):
            return measured_step(
                train_step, state, batch, root, keeps_grads=parts.keeps_grads, count_tokens=task.count_tokens
            )

    def number_problems(self) -> dict[str, Exception]:
        """Each number that the step cannot take as a traced value, with the error that it makes; nothing is run."""
        if not self._numbers:
            return {}
        if self._traces(list(self._numbers)) is None:
            return {}
        found = {name: self._traces([name]) for name in self._numbers}
        return {name: error for name, error in found.items() if error is not None}

    def _traces(self, names: Sequence[str]) -> Exception | None:
        """The error of a step in which some numbers are traced, and the others are those of the first replica."""
        concrete: dict[str, Any] = {name: values[0].item() for name, values in self._numbers.items()}
        traced = {name: self._numbers[name][0] for name in names}

        def step(state: TrainState, batch: Batch, root: Key, numbers: Mapping[str, Array]) -> Any:
            return self.traced_step(state, batch, root, {**concrete, **numbers})[:2]

        arguments = (self._first.state_shapes(), self.outline().batch, self._parts.root, traced)
        try:
            jax.eval_shape(step, *arguments)
        except Exception as error:  # noqa: BLE001  (whatever the code of a model makes of a traced number)
            return error
        return None

    def _fill(self, start: Checkpoint) -> None:
        """Puts one state into all places."""
        n = self.n_replicas
        state, totals = self._arrays_of(start)
        everywhere = self._parts.placement.replicated

        def filled(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)), tree)

        fill = jax.jit(filled, out_shardings=everywhere)
        self._state, self._totals = fill((state, totals))
        self._no_totals = fill(self._first.traced.no_totals)
        roots = jnp.stack([parts.root for parts in self._parts_of])
        self._constant = (self._parts.placement.put_state(roots), self._numbers)
        # A state goes in as one program, and comes out as one: whatever the number of places, each is compiled once.
        self._put = jax.jit(_with_part, donate_argnums=0, out_shardings=everywhere)
        self._pick = jax.jit(_part, out_shardings=everywhere)

    def _arrays_of(self, start: Checkpoint) -> tuple[TrainState, PyTree]:
        shapes = self._first.state_shapes()
        state = TrainState(jnp.int32(start.step), start.model_params, start.model_state, start.optimizer_state)
        placed = self._parts.placement.put_state(state, like=shapes)
        totals = self._first.traced.no_totals if start.totals is None else pack(start.totals)[0]
        return placed, totals

    def _join(self, waiting: "dict[int, _Replica]") -> None:
        """Lets in those that begin with the next step."""
        for index in [index for index, replica in waiting.items() if replica.start.step <= self.step]:
            replica = waiting.pop(index)
            state, totals = self._arrays_of(replica.start)
            self._state = self._put(self._state, state, index)
            self._totals = _with_part(self._totals, totals, index)
            if replica.start.totals is not None:
                replica.n_completed_steps = replica.start.n_completed_steps
                replica.elapsed_time = replica.start.elapsed_time
            replica.enter(lambda: self.step)
            self._replicas[index] = replica

    def _advance(self, target: int, n_steps: int) -> None:
        """Trains up to a step."""
        sessions = [replica.loop.session for replica in self._replicas.values()]
        for session in sessions:
            session.is_stepping = True
            session.write_time(self.step)
            session.ledger.switch("step")
        try:
            while self.step < target:
                started = time.perf_counter()
                for session in sessions:
                    session.progress(self.step, n_steps)
                    session.advance()
                if any(session.wants_to_stop for session in sessions):
                    self._leave(sessions)
                n = self._parts.plan.n_steps_in_call(self.step, self._steps.lengths, n_steps)
                self._train(min(n, target - self.step), sessions)
                for replica in self._replicas.values():
                    replica.elapsed_time += time.perf_counter() - started
        finally:
            for session in sessions:
                session.ledger.switch("other")
                session.is_stepping = False

    def _train(self, n: int, sessions: Sequence[Session]) -> None:
        note_progress("input", self.step)
        waited = self._meter.waited
        batches = self._meter.measure(partial(self._take, n), last_call=self._steps.last_call)
        note_progress("step")
        compile_time = self._steps.compile_time
        batch = batches[0] if len(batches) == 1 else _stacked(batches, axis=int(n > 1))
        self._state, self._totals, self._grads = self._steps(n, self._state, self._totals, batch, self._constant)
        for session in sessions:
            session.ledger.move(self._meter.waited - waited, to="input_wait")
            session.ledger.move(self._steps.compile_time - compile_time, to="compile")
        self.step += n
        self._taken = (n, batches)
        for replica in self._replicas.values():
            replica.n_completed_steps += n

    def _take(self, n: int) -> list[Batch]:
        batches = []
        for feed in self._feeds:
            n_taken, batch = feed.take(self.step, n)
            if n_taken < n:
                raise StreamEndedError(f"The data of a replica ended after {self.step + n_taken} steps.")
            batches.append(batch)
        return batches

    def _checkpoints(self, n_steps: int) -> Iterator[tuple[int, Checkpoint]]:
        """Yields a checkpoint of each replica that is under way; its arrays are its own."""
        started = time.perf_counter()
        plan = self._parts.plan
        fetch = self._first.traced.packing.start_compute_each(self._totals)
        if self.step < n_steps:
            n_next = plan.n_steps_in_call(self.step, self._steps.lengths, n_steps)
            for feed in self._feeds:
                feed.prefetch(self.step, n_next)
        values = fetch()
        self._steps.wait()
        seconds = time.perf_counter() - started
        compile_time = self._steps.compile_time - self._compile_time
        self._compile_time = self._steps.compile_time
        waited = self._meter.waited - self._waited_before
        self._waited_before = self._meter.waited
        for index, replica in list(self._replicas.items()):
            if index in self._replicas:
                replica.elapsed_time += seconds
                replica.loop.session.progress(self.step, n_steps)
                own = values[index]
                self._tell_divergence(replica, int(own.pop(DIVERGED)))
                n_tokens = own.pop(TOKENS, None)
                seconds_of_steps = replica.elapsed_time - compile_time
                rates = self._rates(replica, seconds=seconds_of_steps, waited=waited, n_tokens=n_tokens)
                checkpoint = self._checkpoint_of(
                    index,
                    loss=own.pop("loss"),
                    train_metrics=own,
                    compile_time=compile_time,
                    rates=rates,
                    is_last=self.step == n_steps,
                    last_batch=partial(self._last_batch, index, *self._taken),
                )
                note_progress("extensions", self.step)
                yield index, checkpoint
        for index, replica in list(self._replicas.items()):
            replica.n_completed_steps = 0
            replica.elapsed_time = 0.0
            if self.step == n_steps:
                del self._replicas[index]
                replica.leave(None)
        self._totals = self._no_totals

    def _checkpoint_of(self, index: int, **values: Any) -> Checkpoint:
        replica = self._replicas[index]
        state, grads = self._pick((self._state, self._grads), index)
        return Checkpoint.of(
            state,
            step=self.step,
            grads=grads,
            n_completed_steps=replica.n_completed_steps,
            elapsed_time=replica.elapsed_time,
            session=replica.loop.session,
            **values,
        )

    def _last_batch(self, index: int, n: int, batches: Sequence[Batch]) -> Batch:
        return put_last(self._parts.placement, n, batches[index if len(batches) > 1 else 0])

    def _tell_divergence(self, replica: "_Replica", diverged_step: int) -> None:
        if diverged_step and not replica.is_diverged:
            text = f"Step {diverged_step:6d}: the loss is not finite."
            replica.loop.session.emit("diverged", step=diverged_step, text=text)
        replica.is_diverged = bool(diverged_step)

    def _rates(self, replica: "_Replica", *, seconds: float, waited: float, n_tokens: float | None) -> Metrics:
        """What the clock says of one replica."""
        if seconds <= 0:
            return {}
        n_examples = replica.n_completed_steps * batch_size(self.outline().batch)
        rates = {"input_wait": min(1.0, waited / seconds), "examples_per_second": n_examples / seconds}
        return rates if n_tokens is None else rates | {"tokens_per_second": n_tokens / seconds}

    def _leave(self, sessions: Sequence[Session]) -> NoReturn:
        """Saves every replica and exits, as a signal asks."""
        self._steps.wait()
        reason = next(session.stopped_by for session in sessions if session.wants_to_stop) or "SIGTERM"
        unpack = self._first.traced.packing.unpack
        for index, replica in self._replicas.items():
            sums = unpack(_part(self._totals, index)) if replica.n_completed_steps else None
            n_savers = replica.loop.session.preempt(self._checkpoint_of(index, loss=np.nan, totals=sums))
            saved = f"saved step {self.step}. The same command continues the run." if n_savers else "nothing was saved."
            replica.loop.session.emit("preempted", step=self.step, text=f"Stopped by {reason}: {saved}")
        raise KeyboardInterrupt if reason == "Ctrl-C" else Preempted


@dataclass(eq=False)
class _Replica:
    """One of the trainings."""

    loop: TrainLoop
    start: Checkpoint
    """Where it goes on from."""
    n_completed_steps: int = 0
    """Since its last checkpoint, as its elapsed time is."""
    elapsed_time: float = 0.0
    is_diverged: bool = False
    _running: AbstractContextManager[None] | None = field(default=None, init=False)

    def enter(self, step: Callable[[], int]) -> None:
        """Begins its session; the arrays that it was to start with are let go."""
        self.start = Checkpoint.of(TrainState(jnp.int32(self.start.step), (), (), ()), step=self.start.step)
        self._running = self.loop.session.running(step)
        self._running.__enter__()

    def leave(self, error: BaseException | None) -> None:
        """Ends its session as a loop that is left with an error does, or one that has reached its end."""
        assert self._running is not None
        kind = None if error is None else type(error)
        self._running.__exit__(kind, error, None if error is None else error.__traceback__)


def _check(
    loops: Sequence[TrainLoop | None],
    present: Sequence[TrainLoop],
    numbers: Mapping[str, Sequence[float]],
    build_task: BuildTask | None,
) -> None:
    """Raises an error if loops cannot be one program, as far as is known without tracing them."""
    if not present:
        raise ArgumentError("ReplicaLoop was given no loop. Give one for each replica.")
    if numbers and build_task is None:
        raise ArgumentError(f"numbers has {', '.join(numbers)}, but there is no build_task that takes them.")
    for name, values in numbers.items():
        if len(values) != len(loops):
            raise ArgumentError(f"numbers[{name!r}] has {len(values)} values, but there are {len(loops)} loops.")
    first = present[0]
    n_devices = len(first.parts().placement.devices)
    if n_devices > 1:
        raise ArgumentError(
            f"Replicas run on one device, and the loops have {n_devices}. Give each devices=jax.devices()[:1], or in "
            f"an experiment: runtime.distribution_strategy=one_device"
        )
    for index, loop in enumerate(loops):
        if loop is None:
            continue
        for name in ("n_steps", "n_steps_per_checkpoint"):
            own, of_first = getattr(loop, name), getattr(first, name)
            if own != of_first:
                raise ArgumentError(f"{name} of loop {index} is {own}, but of the first {of_first}: give all the same.")
        parts = loop.parts()
        kind_of_key = str(jax.random.key_impl(parts.root))
        if "rbg" in kind_of_key:
            raise ArgumentError(
                f"The key of loop {index} is of the kind {kind_of_key}, which draws other numbers where several are "
                f"mapped over, so that a replica would not be its lone run. Give jax.random.key(seed)."
            )
        if parts.feed.position() is not None:
            kind = type(parts.task.data).__name__
            raise ArgumentError(
                f"The data of loop {index} is a {kind}: an iterator. A replica takes a stream (`batch(step)`), which "
                f"each can seek for itself, such as trellis.ExampleStream."
            )


def _weak(values: Sequence[float]) -> Array:
    """Numbers which take the dtype of what they meet, as those in code do."""
    return jnp.stack([jnp.asarray(value) for value in values])


def _part(tree: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), tree)


def _with_part(tree: PyTree, part: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda whole, leaf: jax.lax.dynamic_update_index_in_dim(whole, leaf, index, 0), tree, part)


def _stacked(batches: Sequence[Batch], *, axis: int) -> Batch:
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis), *batches)


def _drop_by_number(call: Any, arguments: Any, options: Any, context: Any) -> Any:
    """Has Flax's dropout take a rate that is traced, which it compares with 0 and 1."""
    module = context.module
    rate: Any = getattr(module, "rate", None)
    is_dropout = isinstance(module, nn.Dropout) and context.method_name == "__call__"
    if is_dropout and isinstance(rate, jax.Array):
        return _dropped(module, *arguments, **options)
    return call(*arguments, **options)


def _dropped(module: nn.Dropout, inputs: Array, deterministic: bool | None = None, rng: Key | None = None) -> Array:
    if nn.merge_param("deterministic", module.deterministic, deterministic):
        return inputs
    key = module.make_rng(module.rng_collection) if rng is None else rng
    shape = [1 if axis in module.broadcast_dims else size for axis, size in enumerate(inputs.shape)]
    kept = 1.0 - module.rate
    mask = jnp.broadcast_to(jax.random.bernoulli(key, p=kept, shape=shape), inputs.shape)
    # A rate of one keeps nothing, and must not divide by zero either.
    return jnp.where(mask, inputs / jnp.where(kept == 0, 1, kept), jnp.zeros_like(inputs))
