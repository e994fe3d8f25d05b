"""A task, run in stages: each is a Trainer's run from the step where the one before it ended."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from trellis.aliases import Variables
from trellis.data import is_stream
from trellis.errors import ArgumentError, ModelError, Preempted
from trellis.extensions import (
    BestCheckpointFileWriter,
    CheckpointFileReader,
    CheckpointFileWriter,
    Extension,
    checkpoint_storage as storage,
    every,
    regular_files,
)
from trellis.loops import Checkpoint, Session, Summary
from trellis.runtime import RuntimeConfig, print_line
from trellis.tasks import BoundModel, Model, Task
from trellis.trainer.configs import ProgressiveTrainerConfig
from trellis.trainer.default_extensions import best_writer, on_averages
from trellis.trainer.outline import Outline
from trellis.trainer.progressive_policy import get_policy
from trellis.trainer.stage import Stage, overlaid
from trellis.trainer.trainer import Trainer

EXPORT_DIR = "exported_ckpts"
"""Where in `model_dir` the checkpoint files go that hold a stage's plain model."""


class ProgressiveTrainer:
    """Runs a task in the stages of a policy, with the methods of a `Trainer`.

    A stage is a Trainer's run up to an absolute step. Its last checkpoint is always saved, and the next stage starts
    from it: in memory, or from its file if the run was interrupted there, to the same effect. A checkpoint file belongs
    to the stage that ran its step.

    Example:
        trainer = trellis.ProgressiveTrainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir)
        trainer.train()

    Args:
        evaluate: Whether `train` evaluates every `validation_interval` steps and at the last of each stage.
        extensions: What else to do with every checkpoint of the training, metrics included.
        save_summary: Whether to write metrics to files.
    """

    def __init__(
        self,
        task: Task,
        *,
        config: ProgressiveTrainerConfig,
        runtime: RuntimeConfig | None = None,
        model_dir: str | os.PathLike[str],
        evaluate: bool = True,
        extensions: Sequence[Callable[[Any], Any]] = (),
        save_summary: bool = True,
    ) -> None:
        self.task = task
        self.config = config
        self.runtime = runtime or RuntimeConfig()
        self.model_dir = Path(model_dir)
        self.policy = get_policy(task, config=config, runtime=self.runtime)
        self._last_steps = self.policy.last_steps
        self._evaluates = evaluate
        self._extensions = tuple(extensions)
        self._save_summary = save_summary
        self._current: tuple[int, Trainer] | None = None
        self._train_data: Any = None
        self._watch = Session()

    def train(self) -> Summary | None:
        """Trains up to `train_steps`, from the newest checkpoint file if there is one; returns the last summary.

        None if there was nothing left to do.
        """
        # A wish to stop that comes between two stages, or while one is prepared, finds no loop that would hear it.
        with self._watch.watching_for_sigterm():
            return self._train()

    def evaluate(self, checkpoint: Checkpoint | None = None) -> Summary:
        """The metrics of a checkpoint, by default of the newest file, on the validation data of its stage."""
        if checkpoint is None:
            checkpoint = self.read_checkpoint()
        return self._trainer_of(checkpoint.step).evaluate(checkpoint)

    def read_checkpoint(self, path: Path | None = None) -> Checkpoint:
        """The checkpoint of a file, by default of the newest in `model_dir` that is whole."""
        step = (self._reached() or 0) if path is None else int(path.name.rpartition("_")[2])
        return self._trainer_of(step).read_checkpoint(path)

    def bound_model(self, checkpoint: Checkpoint) -> BoundModel:
        """The model with the parameters of a checkpoint, or with their averages if there are some."""
        return self._trainer_of(checkpoint.step).bound_model(checkpoint)

    def outline(self, *, trains: bool, evaluates: bool) -> Outline:
        """What the stage that comes next holds and computes, by abstract evaluation."""
        return self._trainer_of(self._reached() or 0).outline(trains=trains, evaluates=evaluates)

    def inference_inputs(self, step: int) -> Any:
        """The inputs of a first batch, as `Task.inference_step` takes them in the stage of a step."""
        return self._trainer_of(step).inference_inputs()

    @property
    def best(self) -> BestCheckpointFileWriter | None:
        """The writer of the best checkpoint file, if the config asks for one."""
        return best_writer(self.config, model_dir=self.model_dir)

    def _train(self) -> Summary | None:
        reached = self._reached() or 0
        self._drop_exports_past(reached)
        last, old_model = None, None
        for stage_id in range(self.policy.compute_stage_id(reached), len(self._last_steps)):
            trainer = self._trainer(stage_id) if old_model is None else self._start(stage_id, old_model)
            end = trainer.config.train_steps
            if reached < end:
                print_line(f"Stage {stage_id + 1} of {len(self._last_steps)}: up to step {end}.")
                last = trainer.train()
                if last is None or last.step < end:
                    return last
                reached = end
            if reached >= self.config.train_steps:
                break
            self._leave_if_told(reached)
            trainer.build_train_data()
            old_model, last = _on_the_host(trainer.model, last or trainer.read_checkpoint()), None
        return last

    def _leave_if_told(self, step: int) -> None:
        if self._watch.is_stopping:
            print_line(
                f"Stopped by SIGTERM between two stages: step {step} is saved. The same command continues the run. "
                f"Exit code 143."
            )
            raise Preempted

    def _reached(self) -> int | None:
        """The step of the newest whole checkpoint file, of whatever stage."""
        return CheckpointFileReader(dir=self.model_dir, target=_no_init).find_step()

    def _trainer_of(self, step: int) -> Trainer:
        return self._trainer(self.policy.compute_stage_id(step))

    def _trainer(self, stage_id: int) -> Trainer:
        if self._current is not None and self._current[0] == stage_id:
            return self._current[1]
        return self._start(stage_id, None)

    def _start(self, stage_id: int, old_model: BoundModel | None) -> Trainer:
        """A new trainer of a stage."""
        start = self._last_steps[stage_id - 1] if stage_id else 0
        end, wanted = self._last_steps[stage_id], self.config.train_steps
        config = self.config.replace(
            optimizer_config=self.policy.get_optimizer(stage_id),
            # An evaluation may look at a stage that lies past the steps to train.
            train_steps=wanted if start < wanted < end else end,
        )
        interval = config.export_checkpoint_interval or config.checkpoint_interval
        is_last = stage_id == len(self._last_steps) - 1
        exports = config.export_checkpoint and (is_last or not config.export_only_final_stage_ckpt)
        export = [every(interval, self._export)] if exports else []
        trainer = Trainer(
            self.task,
            config=config,
            runtime=self.runtime,
            model_dir=self.model_dir,
            evaluate=self._evaluates,
            extensions=[_StageStart(stage_id, start, self._watch), *self._extensions, *export],
            save_summary=self._save_summary,
            stage=self._build_stage(stage_id, old_model, start=start, periods=(interval,) if exports else ()),
        )
        self._current = (stage_id, trainer)
        return trainer

    def _build_stage(
        self, stage_id: int, old_model: BoundModel | None, *, start: int, periods: tuple[int, ...]
    ) -> Stage:
        bound = self.policy.get_model(stage_id, old_model)
        place = f"{type(self.policy).__name__}.get_model"
        if not isinstance(bound, BoundModel):
            raise ModelError(
                f"{place}({stage_id}) returned {bound!r}. Return trellis.BoundModel(model, params=…), with {{}} for "
                f"parameters that are to be initialised."
            )

        def initialize(model: BoundModel) -> Variables:
            own = model.variables
            if not stage_id:
                own = overlaid(own, self.task.initialize(model), place="Task.initialize")
            return overlaid(own, bound.variables, place=f"{place}({stage_id})")

        return Stage(
            model=bound.model,
            build_train_data=lambda: self._checked_train_data(stage_id),
            build_validation_data=lambda: self.policy.get_eval_dataset(stage_id),
            initialize=initialize,
            start_step=start,
            periods=periods,
        )

    def _checked_train_data(self, stage_id: int) -> Any:
        before, self._train_data = self._train_data, self.policy.get_train_dataset(stage_id)
        if before is self._train_data and not is_stream(before):
            raise ArgumentError(
                f"{type(self.policy).__name__}.get_train_dataset({stage_id}) returned the iterator of the stage "
                f"before, which a resumed run could not find again. Return a new one, or a stream (`batch(step)`)."
            )
        return self._train_data

    @cached_property
    def _export_writer(self) -> CheckpointFileWriter:
        keep = self.config.export_max_to_keep or self.config.max_to_keep
        return CheckpointFileWriter(self.model_dir / EXPORT_DIR, keep=keep)

    def _export(self, checkpoint: Checkpoint) -> Checkpoint:
        plain = dataclasses.replace(on_averages(checkpoint), optimizer_state=(), position=None, lease=None)
        # Not the writer itself, which would also save when the run is stopped.
        self._export_writer.handle(plain)
        return checkpoint

    def _drop_exports_past(self, step: int) -> None:
        """Removes what was exported by steps that are run again."""
        for exported, path in regular_files(self.model_dir / EXPORT_DIR):
            if exported > step:
                storage.remove(path)


class _StageStart(Extension):
    """Tells which stage begins, and tells its loop of a wish to stop that came before."""

    def __init__(self, stage_id: int, step: int, watch: Session) -> None:
        self._stage_id, self._step, self._watch = stage_id, step, watch

    def join(self, session: Session) -> None:
        session.is_stopping = session.is_stopping or self._watch.is_stopping
        session.emit("stage", step=self._step, stage_id=self._stage_id)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint


def _on_the_host(model: Model, checkpoint: Checkpoint) -> BoundModel:
    """The model as it was trained, out of the way of the next stage, whose start it is for as long as that runs."""
    params, model_state = jax.device_get((checkpoint.model_params, checkpoint.model_state))
    return BoundModel(model, params=params, model_state=model_state)


def _no_init(rngs: Any, *inputs: Any) -> Variables:
    return {}
