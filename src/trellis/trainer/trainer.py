"""A task, run: its two sides become a training and an evaluation loop, its config a list of extensions."""

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from trellis.aliases import JSON, PyTree, Variables
from trellis.config import raise_if_any
from trellis.data import is_stream
from trellis.disk import local_path
from trellis.errors import ArgumentError, DivergedError, Preempted
from trellis.extensions import (
    BestCheckpointFileWriter,
    CheckpointFileReader,
    EarlyStopping,
    Extension,
    Tracker,
    recorded_notes,
    serial,
)
from trellis.loops import Checkpoint, Session, Summary, TimeLedger, finish_saves, take_command_age
from trellis.runtime import (
    ONE_DEVICE,
    Placement,
    RuntimeConfig,
    fetch,
    print_line,
    runtime_problems,
)
from trellis.tasks import BoundModel, Model, Task, options_for, with_addresses
from trellis.trainer.changes import Change, find_changes, notes_of
from trellis.trainer.configs import ProgressiveTrainerConfig, TrainerConfig
from trellis.trainer.default_extensions import (
    Evaluation,
    ShownModel,
    best_writer,
    default_extensions,
    early_stopping,
    evaluation_extensions,
    on_averages,
)
from trellis.trainer.stage import Stage, StageOutline, stage_id_of
from trellis.trainer.task_calls import build_task_inputs, build_task_model, check_shapes, start_of


class StagedTrainer(ABC):
    """Runs a task as a config says, in one stage or several: `train()`, `evaluate()`.

    A stage is trained up to an absolute step. Its last checkpoint is saved, and the next stage starts from it: in
    memory, or from its file if the run was interrupted there, to the same effect. A checkpoint file belongs to the
    stage that ran its step.
    """

    def __init__(
        self,
        task: Task,
        *,
        config: TrainerConfig,
        runtime: RuntimeConfig | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        evaluate: bool = True,
        extensions: Sequence[Callable[[Any], Any]] = (),
        save_summary: bool = True,
        experiment: str = "",
    ) -> None:
        _check_task(task, config)
        self.task = task
        self.config = config
        self.runtime = runtime or RuntimeConfig()
        self.model_dir = _temporary_dir(self) if model_dir is None else local_path(model_dir, name="model_dir")
        self.placement = build_placement(self.runtime)
        self.is_shown = True
        """Whether a training is told on the screen; what it writes is the same."""
        self.evaluates = evaluate
        self._extensions = tuple(extensions)
        self._save_summary = save_summary and self.placement.is_writer
        self._experiment = experiment
        self._stage: Stage | None = None
        self._watch = Session(is_shared=self.placement.spans_processes)
        # One for all loops of the training: those of its stages, and those after a recovery.
        self._ledger = TimeLedger(age=take_command_age())
        self.last_steps = self.plan_stages()

    def __repr__(self) -> str:
        directory, n_steps = str(self.model_dir), self.config.train_steps
        return f"{type(self).__name__}({self.task!r}, model_dir={directory!r}, train_steps={n_steps})"

    @abstractmethod
    def plan_stages(self) -> Sequence[int]:
        """The step at which each stage ends."""

    @abstractmethod
    def build_stage(self, stage_id: int, *, old_model: BoundModel | None = None) -> Stage:
        """A stage.

        Args:
            old_model: That of the stage before, as it was trained. None in the first stage, and for a stage whose
                variables come from a checkpoint file.
        """

    def evaluate_while_training(self, evaluates: bool) -> None:
        """Says whether `train` evaluates, in the place of what the trainer was made with: a run's mode decides that."""
        if evaluates != self.evaluates:
            self.evaluates = evaluates
            # Its loop stops for evaluations.
            self._stage = None

    def stage_extensions(self, stage: Stage) -> Sequence[Callable[[Any], Any]]:
        """What is done with every checkpoint of a stage, beside what the config and the user ask for."""
        return ()

    def initialize(self) -> Checkpoint:
        """The checkpoint that the training goes on from: the newest file, or the model's after `Task.initialize`."""
        return self._next_stage().train_loop.start()

    def outline(self, *, trains: bool, evaluates: bool) -> StageOutline:
        """What the stage that comes next holds and computes, by abstract evaluation."""
        return self._next_stage().outline(trains=trains, evaluates=evaluates)

    def lower(self) -> jax.stages.Lowered:
        """The program of one training step of the stage that comes next; nothing large is made for it."""
        return self._next_stage().train_loop.lower()

    def train(self) -> Summary | None:
        """Trains up to `train_steps`, from the newest checkpoint file if there is one; returns the last summary.

        None if there was nothing left to do. When the loss blows up, goes back to the last checkpoint file and past
        the data since, up to `recovery_max_trials` times; after that the error is raised.
        """
        if len(self.last_steps) == 1:
            return self._train_stage(self._get_stage(0))
        # SIGTERM may come between two stages or while one is prepared, when no loop runs that would notice it.
        with self._watch.watching_for_signals():
            return self._train_stages()

    def _train_stages(self) -> Summary | None:
        step = self._find_step()
        summary: Summary | None = None
        old_model: BoundModel | None = None
        for stage_id in range(stage_id_of(step, last_steps=self.last_steps), len(self.last_steps)):
            stage = self._get_stage(stage_id, old_model)
            end = stage.config.train_steps
            summary = None
            if step < end:
                print_line(f"Stage {stage_id + 1} of {len(self.last_steps)}: up to step {end}.")
                summary = self._train_stage(stage)
                if summary is None or summary.step < end:
                    return summary
                step = end
            if step >= self.config.train_steps:
                return summary
            if self._watch.wants_to_stop:
                saved = f"step {step} is saved. The same command continues the run."
                saved = saved if self.config.saves else "nothing is saved, as trainer.checkpoint_interval=0 has it."
                print_line(f"Stopped by {self._watch.stopped_by or 'SIGTERM'} between two stages: {saved}")
                raise KeyboardInterrupt if self._watch.stopped_by == "Ctrl-C" else Preempted
            old_model = _on_the_host(stage.model, summary or stage.read_checkpoint(trains=True))
        return summary

    def _train_stage(self, stage: Stage) -> Summary | None:
        while True:
            try:
                return self._run(stage)
            except DivergedError as error:
                self._recover(stage, error)

    def _run(self, stage: Stage) -> Summary | None:
        loop = stage.train_loop
        process = self.begin(stage, step=lambda: loop.step)
        if process is None:
            return None
        with closing(loop.run(stage.config.train_steps)) as checkpoints:
            try:
                return _process_all(checkpoints, process)
            except BaseException as error:
                # The loop tells in its events why it was left.
                checkpoints.throw(error)
                raise

    def begin(self, stage: Stage, *, step: Callable[[], int]) -> Extension | None:
        """Has all take part that is done with the checkpoints of a stage, and returns it; None if the run is over.

        Args:
            step: Tells the step that the stage goes on from.
        """
        loop = stage.train_loop
        loop.session.ledger = self._ledger
        stopping = early_stopping(self.config, self.best) if self.evaluates else None
        is_evaluated = step() > 0 and step() % self.config.validation_interval == 0
        if stopping is not None and is_evaluated and stopping.is_over(step()):
            return None
        if self.placement.is_writer:
            stage.skipped_data.mend()
        process = serial(*self._build_extensions(stage, stopping))
        loop.attach(process)
        return process

    def _build_extensions(self, stage: Stage, stopping: EarlyStopping | None) -> list[Callable[[Any], Any]]:
        notes = self._notes(stage)
        return default_extensions(
            self.config,
            model_dir=self.model_dir,
            evaluation=self._evaluation(stage) if self.evaluates else None,
            stopping=stopping,
            schedules=stage.schedules,
            extensions=[*self.stage_extensions(stage), *self._extensions],
            trackers=self._build_trackers(notes["config"]) if self._save_summary else (),
            save_summary=self._save_summary,
            notes=notes,
            is_shown=self.is_shown,
        )

    def _build_trackers(self, config: Any) -> list[Tracker]:
        return [
            Tracker(
                service,
                output_dir=self.model_dir,
                project=self._experiment or self.task.name,
                config=config,
                tags={
                    "task": type(self.task).__name__,
                    **({"experiment": self._experiment} if self._experiment else {}),
                },
            )
            for service in self.config.trackers
        ]

    def _notes(self, stage: Stage) -> dict[str, JSON]:
        configs = {"task": with_addresses(self.task.task_config), "trainer": self.config, "runtime": self.runtime}
        return notes_of(stage, configs=configs)

    def find_changes(self) -> tuple[int, list[Change]]:
        """The step that the training goes on from, and what has changed since the run noted what it is."""
        recorded = recorded_notes(self.model_dir)
        if recorded is None:
            return 0, []
        step, notes = recorded
        return step, find_changes(notes, self._notes(self._next_stage())) if notes else []

    def _recover(self, stage: Stage, error: DivergedError) -> None:
        n_trials, most = stage.skipped_data.n_windows, self.config.recovery_max_trials
        if n_trials >= most or not is_stream(stage.train_data):
            reason = f"trainer.recovery_max_trials={most} allows {'no' if not most else 'no more'} recovery"
            if most > n_trials:
                reason = "recovery needs training data that is a stream (`batch(step)`)"
            error.add_note(f"{reason}. Lower the learning rate, clip gradients, or look at the data of those steps.")
            raise error
        step = stage.find_step()
        stage.go_back(to=step, n_batches=error.step - step)
        left_out = f"past the {error.step - step} batches since"
        print_line(f"{error} Recovery {n_trials + 1} of {most}: back to step {step}, {left_out}.")

    def evaluate(self, checkpoint: Checkpoint | None = None, *, writes: bool = True) -> Summary:
        """The metrics of a checkpoint, by default of the newest file, on the validation data of its stage.

        Args:
            writes: Whether they go into the summaries of the run, and decide what is best.
        """
        if checkpoint is None:
            checkpoint = self.read_checkpoint()
        stage = self.stage_of(checkpoint.step)
        summary = (self._evaluation(stage) if writes else Evaluation(stage.eval_loop))(checkpoint)
        # What was written is committed when a loop moves on, and here none does.
        finish_saves()
        return Summary.from_checkpoint(summary)

    def _evaluation(self, stage: Stage) -> Evaluation:
        shown = [ShownModel(stage.show)] if stage.shows else []
        return Evaluation(stage.eval_loop, *shown, *self._evaluation_extensions)

    @cached_property
    def best(self) -> BestCheckpointFileWriter | None:
        """The writer of the best checkpoint file, if the config asks for one."""
        best = best_writer(self.config, model_dir=self.model_dir)
        if best is not None:
            # Whether a run ends early hangs on it.
            found = self.placement.agreed(lambda: (best.best_metric, best.best_step, dict(best.best_metrics)))
            best.best_metric, best.best_step, best.best_metrics = found
        return best

    @cached_property
    def _evaluation_extensions(self) -> list[Extension]:
        # Made once: what is evaluated by and by goes into one file of summaries.
        return evaluation_extensions(
            self.config,
            model_dir=self.model_dir,
            best=self.best,
            placement=self.placement,
            save_summary=self._save_summary,
        )

    def read_checkpoint(self, path: Path | None = None, *, trains: bool = False) -> Checkpoint:
        """The checkpoint of a file, by default of the newest in `model_dir` that is whole.

        Args:
            trains: Whether to learn from the training data what the model takes, and not from the validation data.
        """
        if path is not None:
            return self.stage_of(_step_of(path.name)).read_checkpoint(path, trains=trains)
        # A training may be writing there.
        name = self.placement.agreed(self._find_name)
        if name is None:
            if self.task.starts_from:
                print_line(f"There is no checkpoint file in `{self.model_dir}`: step 0 is `{self.task.starts_from}`.")
                return self._next_stage().first_checkpoint()
            raise ArgumentError(
                f"There is no checkpoint file in model_dir `{self.model_dir}`, so there is nothing to evaluate. "
                f"Train first (--mode=train), or give the model_dir of a run."
            )
        return self.read_checkpoint(self.model_dir / name, trains=trains)

    def _find_name(self) -> str | None:
        """The name of the newest checkpoint file that is whole; None if there is none."""
        reader = CheckpointFileReader(dir=self.model_dir, target=lambda rngs, *inputs: {})
        path = reader.find_path()
        return None if path is None else path.name

    def bound_model(self, checkpoint: Checkpoint) -> BoundModel:
        """The model with the parameters of a checkpoint, or with their averages if there are some."""
        return self.stage_of(checkpoint.step).bound_model(checkpoint)

    def trained_params(self, checkpoint: Checkpoint) -> PyTree:
        """The parameters that a checkpoint has of its own, or their averages if there are some: all, or adapters."""
        return on_averages(checkpoint).model_params

    def model_with(self, variables: Variables, *, step: int) -> BoundModel:
        """The model of the stage of a step, with variables from elsewhere; no data is looked at."""
        return self.stage_of(step).model_with(variables)

    def inference_inputs(self, step: int = 0) -> Any:
        """The inputs of the first validation batch, as `Task.inference_step` takes them in the stage of a step."""
        inputs = self.stage_of(step).sample_inputs()
        return inputs[0] if len(inputs) == 1 else inputs

    def validation_data(self, step: int = 0) -> Any:
        """The validation data, in the stage of a step."""
        return self.stage_of(step).validation_data

    def _next_stage(self) -> Stage:
        return self._get_stage(0) if len(self.last_steps) == 1 else self.stage_of(self._find_step())

    def stage_of(self, step: int) -> Stage:
        """The stage that runs a step."""
        return self._get_stage(stage_id_of(step, last_steps=self.last_steps))

    def _get_stage(self, stage_id: int, old_model: BoundModel | None = None) -> Stage:
        if self._stage is None or self._stage.stage_id != stage_id or old_model is not None:
            self._stage = self.build_stage(stage_id, old_model=old_model)
        return self._stage

    def _find_step(self) -> int:
        """The step of the newest whole checkpoint file, of whatever stage; 0 if there is none."""
        name = self.placement.agreed(self._find_name)
        return 0 if name is None else _step_of(name)

    def _periods(self, config: TrainerConfig) -> tuple[int, ...]:
        """How often something is done with a checkpoint."""
        periods = [config.steps_per_loop, config.summary_interval]
        if config.saves:
            periods.append(config.checkpoint_interval)
        if self.evaluates:
            periods.append(config.validation_interval)
        return tuple(periods)


class Trainer(StagedTrainer):
    """Runs a task as a config says: `train()`, `evaluate()`.

    Example:
        task = trellis.get_task(params.task, logging_dir=model_dir)
        trainer = trellis.Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir)
        trainer.train()

    Args:
        model_dir: Where a run writes, and resumes from. The default is a directory that goes with the trainer.
        evaluate: Whether `train` evaluates every `validation_interval` steps and at the last.
        extensions: What else to do with every checkpoint of the training, metrics included.
        save_summary: Whether to write metrics to files, and to have trackers track the run.
        experiment: What trackers file the run under; the default is the name of the task.
    """

    def plan_stages(self) -> Sequence[int]:
        """One stage, up to the last step."""
        return (self.config.train_steps,)

    def build_stage(self, stage_id: int, *, old_model: BoundModel | None = None) -> Stage:
        """The whole training."""
        task, data = self.task, self.task.task_config
        return Stage(
            task=task,
            model=build_task_model(task),
            initialize=start_of(task),
            build_train_data=lambda: build_task_inputs(task, params=data.train_data, runtime=self.runtime),
            build_validation_data=lambda: build_task_inputs(task, params=data.validation_data, runtime=self.runtime),
            config=self.config,
            runtime=self.runtime,
            placement=self.placement,
            model_dir=self.model_dir,
            periods=self._periods(self.config),
            is_shown=self.is_shown,
        )


def build_placement(config: RuntimeConfig) -> Placement:
    """The devices that a config asks for, arranged as its mesh says.

    `off` and `one_device` are one device; every other strategy is all devices, of all processes that have joined, or
    `num_gpus` local ones.
    """
    raise_if_any(runtime_problems(config))
    takes_one = config.distribution_strategy in ONE_DEVICE
    devices: list[Any] = jax.local_devices() if takes_one or config.num_gpus else jax.devices()
    n_devices = 1 if takes_one else config.num_gpus or len(devices)
    if n_devices > len(devices):
        raise ArgumentError(
            f"runtime.num_gpus is {n_devices}, but this process has {len(devices)} devices ({devices[0].platform}). "
            f"Set runtime.num_gpus=0 to use all that there are."
        )
    mesh = config.mesh
    return Placement(devices[:n_devices], data=mesh.data, fsdp=mesh.fsdp, model=mesh.model, exact=config.exact)


def _temporary_dir(owner: object) -> Path:
    """A directory that is removed when its owner is no more."""
    directory = tempfile.mkdtemp(prefix="trellis-")
    print_line(
        f"model_dir is not given: what the trainer writes lies in `{directory}`, and goes with it. The run cannot be "
        f"resumed."
    )
    weakref.finalize(owner, shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _check_task(task: Task, config: TrainerConfig) -> None:
    """Raises an error if the task's methods cannot be called, or its step cannot do what the config asks for."""
    check_shapes(task)
    if config.lora is not None and isinstance(config, ProgressiveTrainerConfig):
        raise ArgumentError(
            "trainer.lora is set, but a progressive training changes its model from stage to stage, and adapters fit "
            "one. Leave it out, or train the last model with adapters in a run of its own."
        )
    if config.n_microbatches != 1 and not options_for(task.train_step, {"n_microbatches": config.n_microbatches}):
        raise ArgumentError(
            f"trainer.n_microbatches is {config.n_microbatches}, but {type(task).__name__}.train_step takes no "
            f"n_microbatches. Let it cut the batch into so many parts, or leave trainer.n_microbatches at 1."
        )


def _process_all(checkpoints: Iterable[Checkpoint], process: Extension) -> Summary | None:
    """Processes checkpoints up to one that an extension calls the last; returns the last summary."""
    summary = None
    for checkpoint in checkpoints:
        summary = Summary.from_checkpoint(process(checkpoint))
        if summary.is_last and not checkpoint.is_last:
            break
    return summary


def _on_the_host(model: Model, checkpoint: Checkpoint) -> BoundModel:
    """The model as it was trained, out of the way of the next stage, whose start it is for as long as that runs."""
    params, model_state = fetch((checkpoint.model_params, checkpoint.model_state))
    return BoundModel(model, params=params, model_state=model_state)


def _step_of(name: str) -> int:
    """The step of a checkpoint file, of its name."""
    return int(name.removesuffix(".replaced").rpartition("_")[2])
