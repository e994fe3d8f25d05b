"""The training loop: batches in, checkpoints out."""

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any, NoReturn, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import DenyList
from flax.core.scope import in_filter

from trellis.aliases import Array, Batch, Init, Key, PyTree
from trellis.errors import (
    ArgumentError,
    Preempted,
    StaleCheckpointError,
    StreamEndedError,
    shown,
)
from trellis.loops.batch import batch_size, check_divisible, split_batch
from trellis.loops.feed import Feed, build_feed
from trellis.loops.fused_steps import (
    FusableStep,
    FusedSteps,
    StepPlan,
    choose_lengths,
    count_flops,
    is_slow_in_scan,
    whole_number,
)
from trellis.loops.initial_state import InitialState
from trellis.loops.metrics import FirstStep, Metric, Packing, Total, as_metric, merge, pack, zeros
from trellis.loops.session import Attachable, Session, close_at_exit
from trellis.loops.state import (
    Checkpoint,
    CheckpointSource,
    Lease,
    Outline,
    TrainState,
    check_as_before,
    made_parts,
    saved_part,
    tracing,
    with_made,
)
from trellis.loops.step import TrainStep, TrainTask, build_train_step, check_collections, check_task, checked_result
from trellis.loops.time_ledger import InputMeter
from trellis.optimizers import trained_part
from trellis.runtime import (
    Placement,
    StepKeys,
    checked_key,
    chip_peak,
    describe_exactness,
    describe_weights,
    note_progress,
)

_T = TypeVar("_T")
DIVERGED = "first step whose loss is not a number"
TOKENS = "number of tokens"
_SECONDS_BETWEEN_LOOKS = 5.0
_MUCH_WAITING = 0.1
_SECONDS_BEFORE_ADVICE = 10.0
"""How long steps have to run before a wait for input is more than that of a start."""
_NO_OPTIMIZER = (
    "TrainTask has a train_step and no optimizer, so that state.optimizer_state is empty. If the step needs it, give "
    "the optimizer too: TrainTask(train_step=…, optimizer=…, data=…)."
)


class TrainLoop:
    """Trains, and yields a checkpoint at every multiple of `n_steps_per_checkpoint` and at the last step.

    Steps are counted from the start of the training, over all runs: `n_steps`, `loop(n_steps=N)` and `loop.run(N)` name
    the step to stop at. Between two yields the steps run fused, in few compiled calls.

    To make a loop costs nothing: it is traced when its `outline()` is asked for, and its arrays are made, or read from
    a checkpoint file, for its first step.

    Example:
        loop = TrainLoop(init=model.init, task=task, rnkey=jax.random.key(0), n_steps=1000, n_steps_per_checkpoint=100)
        for checkpoint in loop:
            print(checkpoint.step, checkpoint.loss)

    Args:
        init: Makes the model's variables; a checkpoint reader starts from its checkpoint if there is one.
        rnkey: The root of all randomness; the default is `jax.random.key(0)`.
        input_sample: Inputs to initialise the model with; by default those of the next batch, which is not consumed.
        n_steps_per_checkpoint: One period or several.
        n_steps: The default is the end of the data, for data that knows it.
        collections: The rng collections to give to `init` and `apply`: `{"init": ["params"], "apply": ["dropout"]}`.
        mutable_collections: The collections that a step may change, as linen's `mutable`.
        devices: The default is all local ones; a `Placement` arranges them in a mesh.
        n_fused_steps: The most steps in one compiled call; the default follows from the cost of a step.
        grads: Whether checkpoints hold the gradients of their last step, for the memory of one more set of parameters.
    """

    def __init__(
        self,
        *,
        init: Init | CheckpointSource,
        task: TrainTask,
        rnkey: Key | None = None,
        input_sample: Any = None,
        n_steps_per_checkpoint: int | Sequence[int] = 1,
        n_steps: int | None = None,
        collections: Mapping[str, Sequence[str]] | None = None,
        mutable_collections: Any = DenyList("intermediates"),  # noqa: B008  (immutable)
        devices: Sequence[Any] | Placement | None = None,
        stdout: bool = True,
        n_fused_steps: int | None = None,
        grads: bool = True,
    ) -> None:
        _check_init(init.target if isinstance(init, CheckpointSource) else init)
        check_task(task, TrainTask, place="TrainLoop.task")
        check_collections(collections or {})
        if n_fused_steps is not None and whole_number(n_fused_steps, "n_fused_steps") < 1:
            raise ArgumentError(f"n_fused_steps is {n_fused_steps}, but a call runs at least one step.")
        self._task = task
        self._placement = Placement.of(devices)
        self._root = self._placement.put_state(jax.random.key(0) if rnkey is None else checked_key(rnkey))
        self._rng_names = {"init": ["params"], "apply": [], **(collections or {})}
        self._mutable_collections = mutable_collections
        self._input_sample = input_sample
        self._n_fused_steps = n_fused_steps
        self._keeps_grads = grads
        self._source = init if isinstance(init, CheckpointSource) else None
        self._initial_state = InitialState(
            init.target if isinstance(init, CheckpointSource) else init,
            optimizer=task.optimizer,
            placement=self._placement,
            initialize=task.initialize,
        )
        own_rows = self._placement.own_rows if self._placement.spans_processes else None
        self._feed = build_feed(task.data, place="TrainTask.data", own_rows=own_rows)
        self.session = Session(stdout=stdout, is_shared=self._placement.spans_processes)
        self.n_steps_per_checkpoint = n_steps_per_checkpoint
        self.n_steps = self._feed.n_batches if n_steps is None else n_steps
        self._running: _Running | None = None

    def __repr__(self) -> str:
        step = "" if self._running is None else f", step={self._running.step}"
        return f"TrainLoop(n_steps={self.n_steps}, n_steps_per_checkpoint={self.n_steps_per_checkpoint}{step})"

    @property
    def step(self) -> int:
        """How many steps are completed. To tell, a loop that may go on from a checkpoint file reads it."""
        if self._running is None and self._source is None:
            return 0
        return self._start().step

    @property
    def n_steps(self) -> int | None:
        """The step to stop at."""
        return self._n_steps

    @n_steps.setter
    def n_steps(self, n_steps: int | None) -> None:
        self._n_steps = None if n_steps is None else self._check_target(n_steps)

    @property
    def n_steps_per_checkpoint(self) -> int | Sequence[int]:
        """The period, or several: a checkpoint is due at every multiple of one of them."""
        return self._plan.periods if len(self._plan.periods) > 1 else self._plan.periods[0]

    @n_steps_per_checkpoint.setter
    def n_steps_per_checkpoint(self, periods: int | Sequence[int]) -> None:
        self._plan = StepPlan.of(periods)

    def attach(self, extension: Attachable) -> None:
        """Lets an extension take part from the first step on, instead of from the first checkpoint that it sees."""
        extension.attach(self.session)

    def __iter__(self) -> Iterator[Checkpoint]:
        return self.run()

    def __next__(self) -> Checkpoint:
        return next(self.run())

    def run(self, n_steps: int | None = None) -> Generator[Checkpoint, None, None]:
        """Trains up to step `n_steps` (by default the loop's own) and yields the checkpoints that are due."""
        target = self.n_steps if n_steps is None else self._check_target(n_steps)
        if target is None:
            raise ArgumentError("It was not said how long to train. Give TrainLoop(n_steps=…) or loop(n_steps=…).")
        checkpoints = self._run(target)
        close_at_exit(checkpoints)
        return checkpoints

    __call__ = run

    def next_step(self) -> Checkpoint:
        """Trains one step.

        What is saved of its checkpoint is written before the writer returns, as this step may be the last.
        """
        running = self._start()
        return self._advance_alone(running, running.step + 1)

    def next_checkpoint(self) -> Checkpoint:
        """Trains up to the step at which the next checkpoint is due; saves are as those of `next_step`."""
        running = self._start()
        targets = [self._plan.due_after(running.step), self.n_steps or 0]
        return self._advance_alone(running, min(step for step in targets if step > running.step))

    @property
    def checkpoint(self) -> Checkpoint:
        """The training as it is now: its last checkpoint, or what there is between two after an interrupt.

        Its arrays are valid until the loop advances. A loop that has not begun makes them, or reads them from a file.
        """
        running = self._start()
        running.check_whole()
        if running.last is not None and not running.n_completed_steps:
            return running.last
        checkpoint = self._unfinished(running)
        if not running.n_completed_steps:
            return checkpoint
        values = running.packing.start_compute(running.totals)()
        values.pop(DIVERGED)
        values.pop(TOKENS, None)
        return dataclasses.replace(checkpoint, loss=values.pop("loss"), train_metrics=values)

    def _run(self, target: int) -> Generator[Checkpoint, None, None]:
        running = self._start()
        if running.step >= target:
            message = f"Stop training, already reached the total training steps {target}."
            self.session.emit("finished", step=running.step, text=message)
            return
        running.check_whole()
        with self.session.running(lambda: running.step):
            while running.step < target:
                yield self._advance(running, min(self._plan.due_after(running.step), target), target)

    def outline(self) -> Outline:
        """What the loop holds and computes, by abstract evaluation: nothing is run, and nothing large is made."""
        return self.traced.outline

    def lower(self) -> jax.stages.Lowered:
        """The program of one step, as it would be compiled for the loop's devices; nothing large is made for it.

        Example:
            loop.lower().compile().memory_analysis()
        """
        batch = self.outline().batch
        check_divisible(batch, self._placement.n_parts)
        steps = FusedSteps(self.traced.step, self._placement, lengths=(1, 1))
        return steps.lower(self._shapes, self.traced.no_totals, self._placement.put_batch(batch), self._root)

    def state_shapes(self) -> TrainState:
        """The shapes of the state, each with the sharding that it has on the devices."""
        return self._shapes

    @cached_property
    def _shapes(self) -> TrainState:
        batch = self._first_batch()
        with tracing("the model's init", batch):
            return self._initial_state.shapes(self._init_rngs(step=0), *self._sample_inputs(batch))

    @cached_property
    def traced(self) -> "TracedStep":
        """The step, traced: what is compiled, and all that is known of it before there are arrays."""
        batch = self._first_batch()
        shapes = self._shapes
        train_step = build_train_step(
            self._task,
            rng_names=self._rng_names["apply"],
            mutable=[name for name in shapes.model_state if in_filter(self._mutable_collections, name)],
            around=self._placement.gathering({"params": shapes.params, **shapes.model_state}),
        )
        # Compiled as a part of what calls it, so that it is traced once, whatever calls it.
        inlined = jax.jit(train_step, inline=True)

        def measured(state: TrainState, batch: Batch, root: Key) -> tuple[TrainState, dict[str, Metric], PyTree]:
            with self._placement.tracing():
                return measured_step(
                    inlined,
                    state,
                    batch,
                    root,
                    keeps_grads=self._keeps_grads,
                    count_tokens=self._task.count_tokens,
                )

        # Where it will be when the step is compiled: else that would take a trace of its own.
        placed = self._placement.put_batch(batch)
        with tracing("a training step", batch, hint=_NO_OPTIMIZER if self._task.optimizer is None else ""):
            _, metrics, _ = jax.eval_shape(measured, shapes, placed, self._root)
        no_totals, packing = pack(zeros(metrics))
        no_totals = self._placement.put_state(no_totals)

        def step(state: TrainState, totals: PyTree, batch: Batch, root: Key) -> tuple[TrainState, PyTree, PyTree]:
            state, metrics, grads = measured(state, batch, root)
            return state, pack(merge(packing.unpack(totals), metrics))[0], grads

        jaxpr = jax.make_jaxpr(step)(shapes, no_totals, placed, self._root)
        outline = Outline(
            checkpoint=Checkpoint.of(shapes, step=0),
            data=self._task.data,
            batch=batch,
            metrics=tuple(name for name in metrics if name not in (DIVERGED, TOKENS)),
            flops=count_flops(jaxpr.jaxpr),
        )
        is_slow = is_slow_in_scan(jaxpr.jaxpr, platform=self._placement.devices[0].platform)
        return TracedStep(step, no_totals=no_totals, packing=packing, outline=outline, is_slow_in_scan=is_slow)

    def start(self) -> Checkpoint:
        """Makes the arrays for the first step, or reads them from a file, if that is not done yet; returns them."""
        running = self._start()
        return Checkpoint.of(running.state, step=running.step, session=self.session, lease=running.lease)

    def first_checkpoint(self, *, root: Key | None = None) -> Checkpoint:
        """Makes the arrays for step 0 anew, whatever files there are; the batch may lack what only training needs.

        Args:
            root: The root of all randomness; the default is the loop's own.
        """
        state = self._build_state(self._first_batch(), root=root)
        return Checkpoint.of(state, step=0, session=self.session)

    def complete(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint of a file, with what no file holds made as for step 0.

        An error tells what of it is not as it was when the file was written.
        """
        parts = made_parts(checkpoint.model_state)
        if not any(isinstance(leaf, jax.ShapeDtypeStruct) for part in parts for leaf in jax.tree.leaves(part.tree)):
            return checkpoint
        made = self._build_state(self._first_batch()).model_state
        for before, now in zip(parts, made_parts(made), strict=True):
            check_as_before(before, now=now)
        return dataclasses.replace(checkpoint, model_state=with_made(saved_part(checkpoint.model_state), like=made))

    def parts(self) -> "LoopParts":
        """What the loop was made of."""
        return LoopParts(
            task=self._task,
            source=self._source,
            root=self._root,
            feed=self._feed,
            plan=self._plan,
            placement=self._placement,
            rng_names=self._rng_names["apply"],
            mutable_collections=self._mutable_collections,
            n_fused_steps=self._n_fused_steps,
            keeps_grads=self._keeps_grads,
        )

    def _start(self) -> "_Running":
        """Makes the state for the first step: that of the checkpoint to go on from, or a new one."""
        if self._running is not None:
            return self._running
        with self.session.ledger.spending("start"):
            return self._begin()

    def _begin(self) -> "_Running":
        started = time.perf_counter()
        outline = self.outline()
        check_divisible(outline.batch, self._placement.n_parts)
        totals = self.traced.packing.unpack(self.traced.no_totals)
        initializer = dataclasses.replace(outline.checkpoint, totals=totals, session=self.session)
        checkpoint = initializer if self._source is None else self._source(initializer)
        is_new = checkpoint.model_params is initializer.model_params
        self._running = self._new_state(checkpoint.step) if is_new else self._resume(checkpoint)
        self.session.wait_for_steps = self._running.steps.wait
        self.tell_start(outline, step=self._running.step, seconds=time.perf_counter() - started)
        return self._running

    def tell_start(self, outline: Outline, *, step: int, seconds: float) -> None:
        """Tells that the arrays for the step after `step` are there, and what was made in so many seconds."""
        weights = _describe_weights(outline.checkpoint)
        text = f"Total model initialization time is {seconds:.2f} seconds.\n{weights}\n"
        if self._placement.platform == "gpu":
            # Elsewhere there is nothing to choose.
            exactness = describe_exactness("gpu", is_exact=self._placement.is_exact)
            text += f"Steps are {exactness}.\n"
        self.session.emit("initialized", step=step, text=text, seconds=seconds)
        self.session.write_time(step, is_due=True)

    def _new_state(self, step: int) -> "_Running":
        return self._run_from(self._build_state(self.outline().batch, step=step), step)

    def _build_state(self, batch: Batch, *, step: int = 0, root: Key | None = None) -> TrainState:
        inputs = self._sample_inputs(batch)
        rngs = self._init_rngs(step=step, root=root)
        return self._initial_state.build(rngs, *inputs, shapes=self._shapes, step=step)

    def _resume(self, checkpoint: Checkpoint) -> "_Running":
        started = time.perf_counter()
        checkpoint = self.complete(checkpoint)
        state = TrainState(
            jnp.int32(checkpoint.step), checkpoint.model_params, checkpoint.model_state, checkpoint.optimizer_state
        )
        takes = self._source is not None and self._source.gives_away
        # What was made here is in its place already, and copied it would be there twice.
        saved = self._placement.put_state(saved_part(state), like=saved_part(self._shapes), takes=takes)
        state = with_made(saved, like=state)
        running = self._run_from(state, checkpoint.step)
        if checkpoint.totals is not None:
            running.totals = self._placement.put_state(pack(checkpoint.totals)[0])
            running.n_completed_steps = checkpoint.n_completed_steps
            running.elapsed_time = checkpoint.elapsed_time
        n_skipped = self._feed.seek(checkpoint.step, checkpoint.position)
        if n_skipped:
            seconds = time.perf_counter() - started
            text = f"{n_skipped} batches of the iterator were read and skipped in {seconds:.2f} seconds."
            if not self._feed.is_replayed:
                text += (
                    " They are not those that were trained on: a shuffle without a seed? The run goes on with others."
                )
            self.session.emit("skipped", step=running.step, text=text, n_batches=n_skipped, seconds=seconds)
        return running

    def _run_from(self, state: TrainState, step: int) -> "_Running":
        outline = self.outline()
        lengths = choose_lengths(
            flops=outline.flops,
            batch=outline.batch,
            platform=self._placement.devices[0].platform,
            most_steps=self._n_fused_steps,
            is_slow_in_scan=self.traced.is_slow_in_scan,
        )
        return _Running(
            FusedSteps(self.traced.step, self._placement, lengths=lengths),
            state=state,
            step=step,
            no_totals=self.traced.no_totals,
            totals=self.traced.no_totals,
            packing=self.traced.packing,
        )

    def _advance_alone(self, running: "_Running", target: int) -> Checkpoint:
        """Advances outside of an iteration."""
        try:
            with self.session.watching_for_signals():
                checkpoint = self._advance(running, target, self.n_steps)
            if self.session.is_stopping:
                self._leave(running, time.perf_counter())
            return checkpoint
        finally:
            self.session.forget_interrupt()

    def _advance(self, running: "_Running", target: int, n_steps: int | None) -> Checkpoint:
        """Trains up to step `target`, or to the end of the data, and makes a checkpoint there.

        A Ctrl-C waits for the steps under way, so that the loop can be gone on with.
        """
        self.session.is_stepping = True
        # By now all is done with the last checkpoint, and its time is known.
        self.session.write_time(running.step)
        self.session.ledger.switch("step")
        try:
            return self._advance_to(running, target, n_steps)
        finally:
            self.session.ledger.switch("other")
            self.session.is_stepping = False

    def _advance_to(self, running: "_Running", target: int, n_steps: int | None) -> Checkpoint:
        running.lease.is_over = True
        running.lease = Lease()
        started = time.perf_counter()
        compile_time = running.steps.compile_time
        while running.step < target and not running.has_ended:
            self.session.progress(running.step, n_steps)
            self.session.advance()
            if self.session.wants_to_stop:
                self._leave(running, started)
            self._train(running, self._n_steps_in_call(running, target), target)
        fetch = running.packing.start_compute(running.totals)
        if n_steps and running.step < n_steps:
            n_next = self._n_steps_in_call(running, n_steps)
            self._make_input(running, lambda: self._feed.prefetch(running.step, n_next))
        values = fetch()
        running.steps.wait()
        self.session.progress(running.step, n_steps)
        if running.n_completed_steps == 0:
            last_step = n_steps or target
            raise StreamEndedError(
                f"TrainTask.data ended after {running.step} steps: {last_step - running.step} of {last_step} are "
                f"missing. The work so far is in the last checkpoint. Repeat the data, or train with "
                f"n_steps={running.step}."
            )
        diverged_step = int(values.pop(DIVERGED))
        self._look(running, diverged_step)
        running.is_diverged = bool(diverged_step)
        elapsed_time = running.elapsed_time + time.perf_counter() - started
        compile_time = running.steps.compile_time - compile_time
        n_tokens = values.pop(TOKENS, None)
        rates = self._rates(running, seconds=elapsed_time - compile_time, n_tokens=n_tokens)
        checkpoint = Checkpoint.of(
            running.state,
            step=running.step,
            grads=running.grads,
            loss=values.pop("loss"),
            train_metrics=values,
            n_completed_steps=running.n_completed_steps,
            elapsed_time=elapsed_time,
            compile_time=compile_time,
            rates=rates,
            is_last=running.has_ended or running.step == n_steps,
            position=self._feed.position(),
            last_batch=partial(put_last, self._placement, *running.last_taken),
            session=self.session,
            lease=running.lease,
        )
        self._advise(running, rates.get("input_wait", 0.0), elapsed_time)
        running.start_anew(checkpoint)
        note_progress("extensions", running.step)
        return checkpoint

    def _advise(self, running: "_Running", input_wait: float, seconds: float) -> None:
        """Says once what to do if the devices wait for input."""
        running.step_seconds += seconds
        if input_wait <= _MUCH_WAITING or running.step_seconds < _SECONDS_BEFORE_ADVICE or running.is_advised:
            return
        running.is_advised = True
        text = (
            f"Step {running.step:6d}: the devices waited for input for {100 * input_wait:.0f} % of the time. Let a "
            f"batch cost less: prepare the data once and not in each batch, give a stream with `stacked_batches`, or "
            f"give the host more cores. `trellis runs time` tells how much it is in the end."
        )
        self.session.emit("input_bound", step=running.step, text=text, share=input_wait)

    def _rates(self, running: "_Running", *, seconds: float, n_tokens: float | None) -> dict[str, float]:
        """What the clock says of the steps since the last checkpoint, which took so many seconds."""
        if seconds <= 0:
            return {}
        outline = self.outline()
        steps_per_second = running.n_completed_steps / seconds
        rates = {
            "input_wait": min(1.0, (running.input_meter.waited - running.waited_before) / seconds),
            "examples_per_second": steps_per_second * batch_size(outline.batch),
        }
        if n_tokens is not None:
            rates["tokens_per_second"] = n_tokens / seconds
        devices = self._placement.devices
        peak = chip_peak(devices[0].device_kind)
        if peak is not None:
            rates["flops_utilisation"] = steps_per_second * outline.flops / (len(devices) * peak.flops)
        return rates

    def _train(self, running: "_Running", n: int, target: int) -> None:
        """Starts `n` steps as one call, or as many as the data still has."""
        n_taken, batch = self._make_input(running, lambda: self._feed.take(running.step, n))
        running.has_ended = n_taken < n
        compile_time = running.steps.compile_time
        if n_taken:
            running.step += n_taken
            running.n_completed_steps += n_taken
            running.last_taken = (n_taken, batch)
            arguments = (running.state, running.totals, batch, self._root)
            try:
                if self._n_fused_steps == 1 and running.step < target:
                    running.state, running.totals = running.steps.run_bare(*arguments)
                    running.grads = None
                else:
                    running.state, running.totals, running.grads = running.steps(n_taken, *arguments)
            except FloatingPointError as error:
                # JAX looks at every step by itself where it is asked to find such a number.
                error.add_note(f"That was in step {running.step}.")
                raise
        if running.steps.compile_time > compile_time:
            self.session.ledger.move(running.steps.compile_time - compile_time, to="compile")
        if time.perf_counter() > running.next_look:
            self.session.write_time(running.step)
            totals = running.packing.unpack(running.totals)
            self._look(running, int(totals[DIVERGED].compute()))

    def _make_input(self, running: "_Running", make: Callable[[], _T]) -> _T:
        """Makes batches, and notes how long the devices waited for them."""
        meter = running.input_meter
        waited, hidden = meter.waited, meter.hidden
        note_progress("input", running.step)
        result = meter.measure(make, last_call=running.steps.last_call)
        note_progress("step")
        self.session.ledger.move(meter.waited - waited, to="input_wait")
        self.session.ledger.hidden_input += meter.hidden - hidden
        return result

    def _look(self, running: "_Running", diverged_step: int) -> None:
        """Tells, once until a checkpoint is good again, of a loss that is not a number."""
        running.next_look = time.perf_counter() + _SECONDS_BETWEEN_LOOKS
        if diverged_step and not running.is_diverged:
            running.is_diverged = True
            self.session.emit("diverged", step=diverged_step, text=f"Step {diverged_step:6d}: the loss is not finite.")

    def _leave(self, running: "_Running", started: float) -> NoReturn:
        """Saves and exits, as a signal asks; what was summed up since the last checkpoint is saved too."""
        running.steps.wait()
        running.elapsed_time += time.perf_counter() - started
        # Without the lease: what saves it may still hold it when the loop is run again.
        n_savers = self.session.preempt(dataclasses.replace(self._unfinished(running), lease=None))
        is_interrupted = self.session.stopped_by == "Ctrl-C"
        if n_savers:
            way_on = f"saved step {running.step}. The same command continues the run."
        elif is_interrupted:
            way_on = (
                f"step {running.step} is in `loop.checkpoint`, and in no file. To run the loop again goes on there."
            )
        else:
            way_on = (
                "no checkpoint writer is attached, nothing was saved. The same command goes on from its last "
                "checkpoint file, if there is one."
            )
        text = f"Stopped by {self.session.stopped_by or 'SIGTERM'}: {way_on}"
        text = text if is_interrupted else f"{text} Exit code 143."
        self.session.emit("preempted", step=running.step, text=text)
        raise KeyboardInterrupt if is_interrupted else Preempted

    def _unfinished(self, running: "_Running") -> Checkpoint:
        """The state between two checkpoints, with the sums for the next."""
        return Checkpoint.of(
            running.state,
            step=running.step,
            n_completed_steps=running.n_completed_steps,
            elapsed_time=running.elapsed_time,
            totals=running.packing.unpack(running.totals) if running.n_completed_steps else None,
            position=self._feed.position(),
            session=self.session,
            lease=running.lease,
        )

    def _n_steps_in_call(self, running: "_Running", end: int) -> int:
        return self._plan.n_steps_in_call(running.step, running.steps.lengths, end)

    def _init_rngs(self, *, step: int, root: Key | None = None) -> dict[str, Key]:
        return StepKeys(self._root if root is None else root, step).rngs(self._rng_names["init"], prefix="init/")

    def _first_batch(self) -> Batch:
        batch = self._feed.peek()
        batch_size(batch)  # an error, if its arrays do not go together
        return batch

    def _sample_inputs(self, batch: Batch) -> tuple[Any, ...]:
        return split_batch(batch if self._input_sample is None else (self._input_sample, ()))[0]

    def _check_target(self, n_steps: int) -> int:
        n_steps = whole_number(n_steps, "n_steps")
        if n_steps < 1:
            raise ArgumentError(f"n_steps is {n_steps}, but training takes at least one step.")
        if self._feed.n_batches is not None and self._feed.n_batches < n_steps:
            raise ArgumentError(
                f"n_steps is {n_steps}, but TrainTask.data holds {self._feed.n_batches} batches. Train with "
                f"n_steps={self._feed.n_batches}, or let the stream repeat."
            )
        return n_steps


def _describe_weights(checkpoint: Checkpoint) -> str:
    trained = trained_part(checkpoint.model_params, optimizer_state=checkpoint.optimizer_state)
    whole = (checkpoint.model_params, [part.tree for part in made_parts(checkpoint.model_state)])
    n_all, n_trained = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (whole, trained))
    return describe_weights(trained, n_frozen=n_all - n_trained)


def _check_init(init: Any) -> None:
    if isinstance(init, nn.Module):
        name = type(init).__name__
        raise ArgumentError(f"TrainLoop.init is the module {name}. Give its method: init={name}(…).init")
    bridge = {"keras": "KerasModel(model)", "flax.nnx": "NNXModel(build)"}
    for module, wrapped in bridge.items():
        if any(f"{base.__module__}.".startswith(f"{module}.") for base in type(init).__mro__):
            raise ArgumentError(
                f"TrainLoop.init is a {type(init).__name__} of {module}. Make it a pair of functions: "
                f"model = trellis.bridges.{wrapped}, and give init=model.init and apply=model.apply."
            )
    if isinstance(init, Mapping):
        raise ArgumentError(
            f"TrainLoop.init is {shown(init)}, which cannot be called. Give the model's init, and what to start from "
            f"to the task: TrainTask(…, initialize=lambda variables: …)"
        )
    if not callable(init):
        raise ArgumentError(
            f"TrainLoop.init is {shown(init)}, which cannot be called. Give the model's init, or a reader."
        )


def measured_step(
    train_step: TrainStep,
    state: TrainState,
    batch: Batch,
    root: Key,
    *,
    keeps_grads: bool,
    count_tokens: Callable[[Batch], Array | None] | None,
) -> tuple[TrainState, dict[str, Metric], PyTree]:
    """One step, counted: the new state, what was measured, and the gradients if they are kept."""
    n_examples = batch_size(batch)
    result = train_step(state, batch, StepKeys(root, state.step))
    new_state, output = checked_result(result, before=state, n_examples=n_examples)
    loss = as_metric(output.loss, n_examples, "The loss")
    diverged = FirstStep(jnp.where(jnp.isfinite(loss.compute()), 0.0, state.step + 1.0))
    metrics: dict[str, Metric] = {"loss": loss, **output.metrics, DIVERGED: diverged}
    n_tokens = None if count_tokens is None else count_tokens(batch)
    if n_tokens is not None:
        metrics[TOKENS] = Total(jnp.float32(n_tokens))
    # A step of the user's may have counted itself, as those of Flax do.
    return dataclasses.replace(new_state, step=state.step + 1), metrics, output.grads if keeps_grads else None


def put_last(placement: Placement, n: int, batch: Batch) -> Batch:
    """Puts the last of the batches of a call on the devices."""
    return placement.put_rows(jax.tree.map(lambda leaf: leaf[-1], batch) if n > 1 else batch)


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """What a loop was made of: for a `ReplicaLoop`, which runs it within a program of its own."""

    task: TrainTask
    source: CheckpointSource | None
    """Where it may find a checkpoint to start from."""
    root: Key
    feed: Feed
    plan: StepPlan
    placement: Placement
    rng_names: Sequence[str]
    mutable_collections: Any
    n_fused_steps: int | None
    keeps_grads: bool


@dataclass(frozen=True)
class TracedStep:
    """A step before there are arrays."""

    step: FusableStep
    """From the state, the totals, a batch and the root of all keys to the new state and totals, and the gradients."""
    _: KW_ONLY
    no_totals: PyTree
    """The sums of the loss and the metrics when nothing was seen, packed."""
    packing: Packing
    outline: Outline
    is_slow_in_scan: bool


@dataclass
class _Running:
    """A training under way: its state, and what has happened since the last checkpoint."""

    steps: FusedSteps
    _: KW_ONLY
    state: TrainState
    step: int
    """How many steps were started, which the loop waits for before it tells of them."""
    no_totals: PyTree
    totals: PyTree
    """The sums of the loss and the metrics since the last checkpoint, packed."""
    packing: Packing
    n_completed_steps: int = 0
    elapsed_time: float = 0.0
    is_diverged: bool = False
    """Whether it was told that the loss is not a number."""
    grads: PyTree = None
    last_taken: tuple[int, Batch] = (0, None)
    """The batches of the last call, and how many they are."""
    input_meter: InputMeter = dataclasses.field(default_factory=InputMeter)
    waited_before: float = 0.0
    """How long the devices had waited for input by the last checkpoint."""
    step_seconds: float = 0.0
    """How long steps have run."""
    is_advised: bool = False
    """Whether it was told that the devices wait for input."""
    has_ended: bool = False
    """Whether the data has no batch left."""
    next_look: float = 0.0
    """When to look for a loss that is not a number."""
    lease: Lease = dataclasses.field(default_factory=Lease)
    last: Checkpoint | None = None
    """The last checkpoint."""

    def check_whole(self) -> None:
        """Raises an error if the loop was left in the midst of a step, whose state is nowhere."""
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(self.state)):
            raise StaleCheckpointError(
                f"The loop was left in the midst of steps, after step {self.step} was begun, so that it has no state "
                f"any more. Make a new one, from a checkpoint file if there is one."
            )

    def start_anew(self, checkpoint: Checkpoint) -> None:
        """Forgets what was counted for the checkpoint that was just made."""
        self.last = checkpoint
        self.totals = self.no_totals
        self.n_completed_steps = 0
        self.elapsed_time = 0.0
        self.waited_before = self.input_meter.waited
