"""A task, run in the stages of a policy."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trellis.aliases import Variables
from trellis.data import is_stream
from trellis.disk import remove_whole
from trellis.errors import ArgumentError, ModelError, shown
from trellis.extensions import CheckpointFileWriter, Extension, every, regular_files
from trellis.loops import Checkpoint, Event, Session, overlaid
from trellis.runtime import is_first_process
from trellis.tasks import BoundModel
from trellis.trainer.configs import ProgressiveTrainerConfig
from trellis.trainer.default_extensions import on_averages
from trellis.trainer.progressive_policy import ProgressivePolicy, get_policy
from trellis.trainer.stage import Stage
from trellis.trainer.task_calls import start_of
from trellis.trainer.trainer import StagedTrainer

EXPORT_DIR = "exported_ckpts"
"""Where in `model_dir` the checkpoint files go that hold a stage's plain model."""


class ProgressiveTrainer(StagedTrainer):
    """Runs a task in the stages of a policy, with the methods of a `Trainer`.

    Example:
        trainer = trellis.ProgressiveTrainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir)
        trainer.train()

    Args:
        evaluate: Whether `train` evaluates every `validation_interval` steps and at the last of each stage.
        extensions: What else to do with every checkpoint of the training, metrics included.
        save_summary: Whether to write metrics to files, and to have trackers track the run.
        experiment: What trackers file the run under; the default is the name of the task.
    """

    config: ProgressiveTrainerConfig
    _train_data: Any = None

    @cached_property
    def policy(self) -> ProgressivePolicy:
        """The policy that is registered for the config."""
        return get_policy(self.task, config=self.config, runtime=self.runtime)

    def plan_stages(self) -> Sequence[int]:
        """The stages of the policy."""
        return self.policy.last_steps

    def build_stage(self, stage_id: int, *, old_model: BoundModel | None = None) -> Stage:
        """What the policy says of a stage."""
        bound = self.policy.get_model(stage_id, old_model)
        place = f"{type(self.policy).__name__}.get_model({stage_id})"
        if not isinstance(bound, BoundModel):
            raise ModelError(
                f"{place} returned {shown(bound)}. Return trellis.BoundModel(model, params=…), with {{}} for "
                f"parameters that are to be initialised."
            )

        def initialize(model: BoundModel) -> Variables:
            own = model.variables
            if not stage_id:
                own = overlaid(own, start_of(self.task)(model), place="Task.initialize")
            return overlaid(own, bound.variables, place=place)

        start = self.last_steps[stage_id - 1] if stage_id else 0
        end, train_steps = self.last_steps[stage_id], self.config.train_steps
        config = self.config.replace(
            optimizer_config=self.policy.get_optimizer(stage_id),
            # An evaluation may look at a stage that lies past the steps to train.
            train_steps=train_steps if start < train_steps < end else end,
        )
        return Stage(
            task=self.task,
            model=bound.model,
            initialize=initialize,
            build_train_data=lambda: self._checked_train_data(stage_id),
            build_validation_data=lambda: self.policy.get_eval_dataset(stage_id),
            config=config,
            runtime=self.runtime,
            placement=self.placement,
            model_dir=self.model_dir,
            stage_id=stage_id,
            start_step=start,
            periods=(*self._periods(config), *((self._export_interval,) if self._exports(stage_id) else ())),
        )

    def stage_extensions(self, stage: Stage) -> Sequence[Callable[[Any], Any]]:
        """Tells which stage begins, and exports its plain models."""
        start = _StageStart(stage, self._watch)
        return [start, every(self._export_interval, self._export)] if self._exports(stage.stage_id) else [start]

    def _checked_train_data(self, stage_id: int) -> Any:
        data = self.policy.get_train_dataset(stage_id)
        if data is self._train_data and not is_stream(data):
            raise ArgumentError(
                f"{type(self.policy).__name__}.get_train_dataset({stage_id}) returned the iterator of the stage "
                f"before, which a resumed run could not find again. Return a new one, or a stream (`batch(step)`)."
            )
        self._train_data = data
        return data

    @property
    def _export_interval(self) -> int:
        return self.config.export_checkpoint_interval or self.config.checkpoint_interval

    def _exports(self, stage_id: int) -> bool:
        is_last = stage_id == len(self.last_steps) - 1
        return self.config.export_checkpoint and (is_last or not self.config.export_only_final_stage_ckpt)

    @cached_property
    def _export(self) -> "_PlainModelWriter":
        keep = self.config.export_max_to_keep or self.config.max_to_keep
        return _PlainModelWriter(self.model_dir / EXPORT_DIR, keep=keep)


class _PlainModelWriter(Extension):
    """Writes checkpoint files that hold one stage's plain model: no optimizer, and averages in their place."""

    def __init__(self, output_dir: Path, *, keep: int) -> None:
        self._dir = output_dir
        self._writer = CheckpointFileWriter(output_dir, keep=keep)

    def join(self, session: Session) -> None:
        """Removes what was exported by steps that are run again, as soon as it is known which these are."""
        session.subscribe(self._remove_later_files)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        plain = dataclasses.replace(on_averages(checkpoint), optimizer_state=(), position=None)
        # Not the writer itself, which would also save when the run is stopped.
        self._writer.handle(plain)
        return checkpoint

    def _remove_later_files(self, event: Event) -> None:
        if event.kind == "initialized" and is_first_process():
            for step, path in regular_files(self._dir):
                if step > event.step:
                    remove_whole(path)


class _StageStart(Extension):
    """Tells which stage begins, and passes on to its loop a SIGTERM that came before."""

    def __init__(self, stage: Stage, watch: Session) -> None:
        self._stage = stage
        self._watch = watch

    def join(self, session: Session) -> None:
        session.stopped_by = session.stopped_by or self._watch.stopped_by
        session.emit("stage", step=self._stage.start_step, stage_id=self._stage.stage_id)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint
