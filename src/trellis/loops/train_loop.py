"""The training loop: batches in, checkpoints out."""

import dataclasses
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from flax.core import DenyList

from trellis.aliases import Batch, Init, Key, PyTree
from trellis.errors import ArgumentError, Preempted, StreamEndedError
from trellis.loops.batch import batch_size, check_divisible, split_batch
from trellis.loops.feed import build_feed
from trellis.loops.fused_steps import FusedSteps, StepPlan
from trellis.loops.initial_state import mutable_names, state_maker
from trellis.loops.metrics import FirstStep, Metric, as_metric, merge, pack, zeros
from trellis.loops.session import Attachable, Session
from trellis.loops.state import Checkpoint, CheckpointSource, Lease, TrainState
from trellis.loops.step import TrainTask, build_train_step
from trellis.runtime import Placement, StepKeys, describe_weights

_DIVERGED = "first step whose loss is not a number"
_SECONDS_BETWEEN_LOOKS = 5.0


class TrainLoop:
    """Trains, and yields a checkpoint at every multiple of `n_steps_per_checkpoint` and at the last step.

    Steps are counted from the start of the training, over all runs: `n_steps`, `loop(n_steps=N)` and `loop.run(N)` name
    the step to stop at. Between two yields the steps run fused, in few compiled calls.

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

    _totals: PyTree
    _is_diverged: bool

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
        started, self._placement = time.perf_counter(), Placement.of(devices)
        self.session = Session(stdout=stdout, is_shared=self._placement.spans_processes)
        self.n_steps_per_checkpoint = n_steps_per_checkpoint
        self._feed = build_feed(task.data, place="TrainTask.data")
        self.n_steps = self._feed.n_batches if n_steps is None else n_steps
        self._root = self._placement.put_state(jax.random.key(0) if rnkey is None else rnkey)
        self._keep_grads, self._has_ended, self._lease, self._next_look = grads, False, Lease(), 0.0

        sample = self._feed.peek()
        check_divisible(sample, self._placement.n_parts)
        rng_names = {"init": ["params"], "apply": [], **(collections or {})}
        inputs, _ = split_batch(sample if input_sample is None else (input_sample, ()))
        rngs = StepKeys(self._root, 0).rngs(rng_names["init"], prefix="init/")
        target = init.target if isinstance(init, CheckpointSource) else init
        make = state_maker(target, optimizer=task.optimizer, keep_names=True)
        shapes = self._placement.shapes(make, rngs, *inputs)
        mutable = mutable_names(shapes.model_state, mutable_collections)
        around = self._placement.gathering({"params": shapes.params, **shapes.model_state})
        step = build_train_step(task, rng_names=rng_names["apply"], mutable=mutable, around=around)
        self._train_step = jax.jit(step, inline=True)  # so that it is traced once, whatever it is part of
        self._fused = FusedSteps(self._fusable_step, self._placement, most_steps=n_fused_steps)
        totals = jax.eval_shape(self._seen_in_step, shapes, sample, self._root)[1]
        packed, self._packing = pack(zeros(totals))
        self._no_totals = self._placement.put_state(packed)
        wanted = Checkpoint.of(shapes, step=0, totals=totals, session=self.session)
        found = init(wanted) if isinstance(init, CheckpointSource) else wanted
        self._start_anew(found.step)
        if found is wanted:
            self._state = self._placement.build_state(make, rngs, *inputs, like=shapes)
        else:
            self._resume(found, shapes)
        self._fused.choose_lengths(self._state, self._no_totals, sample, self._root)
        seconds = time.perf_counter() - started
        text = f"Total model initialization time is {seconds:.2f} seconds.\n{describe_weights(shapes.params)}\n"
        self.session.emit("initialized", step=self.step, text=text, seconds=seconds)

    @property
    def step(self) -> int:
        """How many steps are completed."""
        return self._step

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

    def __iter__(self) -> Iterator[Checkpoint]:
        return self.run()

    def __next__(self) -> Checkpoint:
        return next(self.run())

    def run(self, n_steps: int | None = None) -> Generator[Checkpoint, None, None]:
        """Trains up to step `n_steps` (by default the loop's own) and yields the checkpoints that are due."""
        target = self.n_steps if n_steps is None else self._check_target(n_steps)
        if target is None:
            raise ArgumentError("It was not said how long to train. Give TrainLoop(n_steps=…) or loop(n_steps=…).")
        return self._run(target)

    __call__ = run

    def next_step(self) -> Checkpoint:
        """Trains one step."""
        return self._advance(self.step + 1, self.n_steps)

    def next_checkpoint(self) -> Checkpoint:
        """Trains up to the step at which the next checkpoint is due."""
        ahead = [step for step in (self._plan.due_after(self.step), self.n_steps) if step and step > self.step]
        return self._advance(min(ahead), self.n_steps)

    def attach(self, extension: Attachable) -> None:
        """Lets an extension take part from the first step on, instead of from the first checkpoint that it sees."""
        extension.attach(self.session)

    def _run(self, target: int) -> Generator[Checkpoint, None, None]:
        if self.step >= target:
            said = f"Stop training, already reached the total training steps {target}."
            return self.session.emit("finished", step=self.step, text=said)
        with self.session.running(lambda: self.step):
            while self.step < target:
                yield self._advance(min(self._plan.due_after(self.step), target), target)

    def _advance(self, target: int, n_steps: int | None) -> Checkpoint:
        """Trains up to step `target`, or to the end of the data, and makes a checkpoint there."""
        self._lease.is_over, self._lease = True, Lease()
        started, compiled = time.perf_counter(), self._fused.compile_time
        while self.step < target and not self._has_ended:
            self.session.progress(self.step, n_steps)
            self.session.advance()
            if self.session.wants_to_stop:
                self._leave(started)
            self._train(self._plan.n_steps_in_call(self.step, self._fused.lengths, target), target)
        fetch = self._packing.start_compute(self._totals)
        if n_steps and self.step < n_steps:
            self._feed.prefetch(self.step, self._plan.n_steps_in_call(self.step, self._fused.lengths, n_steps))
        values = fetch()
        self._fused.wait()
        self.session.progress(self.step, n_steps)
        if self._n_completed_steps == 0:
            wanted = n_steps or target
            raise StreamEndedError(
                f"TrainTask.data ended after {self.step} steps: {wanted - self.step} of {wanted} are missing. "
                f"The work so far is in the last checkpoint. Repeat the data, or train with n_steps={self.step}."
            )
        self._look(int(values.pop(_DIVERGED)))
        checkpoint = Checkpoint.of(
            self._state,
            step=self.step,
            grads=self._grads,
            loss=values.pop("loss"),
            train_metrics=values,
            n_completed_steps=self._n_completed_steps,
            elapsed_time=self._elapsed_time + time.perf_counter() - started,
            compile_time=self._fused.compile_time - compiled,
            is_last=self._has_ended or self.step == n_steps,
            position=self._feed.position(),
            session=self.session,
            lease=self._lease,
        )
        self._start_anew(self.step)
        return checkpoint

    def _train(self, n: int, target: int) -> None:
        """Starts `n` steps as one call, or as many as the data still has."""
        n_taken, batch = self._feed.take(self.step, n)
        self._has_ended = n_taken < n
        if n_taken:
            given = (self._state, self._totals, batch, self._root)
            self._step += n_taken
            if self._fused.is_single_by_wish and self.step < target:
                (self._state, self._totals), self._grads = self._fused.run_bare(*given), None
            else:
                self._state, self._totals, self._grads = self._fused(n_taken, *given)
            self._n_completed_steps += n_taken
        if time.perf_counter() > self._next_look:
            self._look(int(self._packing.unpack(self._totals)[_DIVERGED].compute()))

    def _look(self, diverged_step: int) -> None:
        """Tells, once for each checkpoint, of a loss that is not a number."""
        self._next_look = time.perf_counter() + _SECONDS_BETWEEN_LOOKS
        if diverged_step and not self._is_diverged:
            self._is_diverged = True
            self.session.emit("diverged", step=diverged_step, text=f"Step {diverged_step:6d}: the loss is not finite.")

    def _leave(self, started: float) -> NoReturn:
        """Saves and exits, as SIGTERM asks; what was summed up since the last checkpoint is saved too."""
        self._fused.wait()
        checkpoint = Checkpoint.of(
            self._state,
            step=self.step,
            n_completed_steps=self._n_completed_steps,
            elapsed_time=self._elapsed_time + time.perf_counter() - started,
            totals=self._packing.unpack(self._totals) if self._n_completed_steps else None,
            position=self._feed.position(),
            session=self.session,
        )
        n_savers = self.session.preempt(checkpoint)
        saved = f"saved step {self.step}" if n_savers else "no checkpoint writer is attached, nothing was saved"
        text = f"Stopped by SIGTERM: {saved}. The same command continues the run. Exit code 143."
        self.session.emit("preempted", step=self.step, text=text)
        raise Preempted

    def _start_anew(self, step: int) -> None:
        self._step, self._n_completed_steps, self._elapsed_time = step, 0, 0.0
        self._is_diverged, self._totals = False, self._no_totals

    def _resume(self, found: Checkpoint, shapes: TrainState) -> None:
        started = time.perf_counter()
        if found.totals is not None:
            self._n_completed_steps, self._elapsed_time = found.n_completed_steps, found.elapsed_time
            self._totals = self._placement.put_state(pack(found.totals)[0])
        state = TrainState(jnp.int32(found.step), found.model_params, found.model_state, found.optimizer_state)
        self._state = self._placement.put_state(state, like=shapes)
        n_skipped = self._feed.seek(found.step, found.position)
        if n_skipped:
            seconds = time.perf_counter() - started
            text = f"{n_skipped} batches of the iterator were read and skipped in {seconds:.2f} seconds."
            self.session.emit("skipped", step=self.step, text=text, n_batches=n_skipped, seconds=seconds)

    def _seen_in_step(self, state: TrainState, batch: Batch, root: Key) -> tuple[TrainState, dict[str, Metric], PyTree]:
        state, output = self._train_step(state, batch, StepKeys(root, state.step))
        loss = as_metric(output.loss, batch_size(batch), "The loss")
        diverged = FirstStep(jnp.where(jnp.isfinite(loss.compute()), 0.0, state.step + 1.0))
        seen: dict[str, Metric] = {"loss": loss, **output.metrics, _DIVERGED: diverged}
        state = dataclasses.replace(state, step=state.step + 1)
        return state, seen, output.grads if self._keep_grads else None

    def _fusable_step(self, state: TrainState, totals: PyTree, batch: Batch, root: Key) -> tuple[Any, Any, Any]:
        state, seen, grads = self._seen_in_step(state, batch, root)
        return state, pack(merge(self._packing.unpack(totals), seen))[0], grads

    def _check_target(self, n_steps: int) -> int:
        if n_steps < 1:
            raise ArgumentError(f"n_steps is {n_steps}, but training takes at least one step.")
        if self._feed.n_batches is not None and self._feed.n_batches < n_steps:
            raise ArgumentError(
                f"n_steps is {n_steps}, but TrainTask.data holds {self._feed.n_batches} batches. Train with "
                f"n_steps={self._feed.n_batches}, or let the stream repeat."
            )
        return n_steps
