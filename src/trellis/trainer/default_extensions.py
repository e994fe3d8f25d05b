"""What a run does with its checkpoints, after its config: each part with its interval."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import optax

from trellis.disk import write_whole
from trellis.extensions import (
    BestCheckpointFileWriter,
    CheckpointFileWriter,
    DivergenceCheck,
    EarlyStopping,
    EventWriter,
    Extension,
    HighestCheckpointFileWriter,
    LowestCheckpointFileWriter,
    ProgressBar,
    SummaryLogger,
    SummaryWriter,
    every,
    serial,
)
from trellis.loops import Checkpoint, EvalLoop, Session, Summary
from trellis.optimizers import average_weights
from trellis.trainer.configs import TrainerConfig


class Evaluation(Extension):
    """Evaluates a checkpoint, on the averages of its parameters if it has some.

    The checkpoint itself goes on with its own parameters; the extensions, such as a best writer, see those that were
    evaluated.
    """

    def __init__(self, evaluate: EvalLoop, *extensions: Extension) -> None:
        self._process = serial(evaluate, *extensions)

    def join(self, session: Session) -> None:
        """Has the extensions take part."""
        self._process.attach(session)

    def handle(self, checkpoint: Checkpoint) -> Summary:
        """Returns the checkpoint with the metrics."""
        summary = Summary.from_checkpoint(self._process(on_averages(checkpoint)))
        return Summary.from_checkpoint(checkpoint).with_metrics(eval=summary.metrics["eval"])


def on_averages(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the averages of its parameters in their place, if its optimizer keeps some."""
    params = average_weights(checkpoint.model_params, optimizer_state=checkpoint.optimizer_state)
    return checkpoint if params is checkpoint.model_params else dataclasses.replace(checkpoint, model_params=params)


def best_writer(config: TrainerConfig, *, model_dir: Path) -> BestCheckpointFileWriter | None:
    """The writer of the best checkpoint file; None if the config does not ask for it."""
    if not config.keeps_best:
        return None
    kind = HighestCheckpointFileWriter if config.best_checkpoint_metric_comp == "higher" else LowestCheckpointFileWriter
    metric = metric_name(config.best_checkpoint_eval_metric)
    return kind(model_dir / config.best_checkpoint_export_subdir, metric=metric, stdout=False)


def metric_name(published: str) -> str:
    """What an evaluation calls the metric that a config names as published."""
    return "loss" if published == "validation_loss" else published.replace("|", "/")


def published_name(metric: str) -> str:
    """What programs that know the published logs call a metric of an evaluation."""
    return "validation_loss" if metric == "loss" else metric


def early_stopping(config: TrainerConfig, best: BestCheckpointFileWriter | None) -> EarlyStopping | None:
    """What ends a run that does not get better; None if the config does not ask for it."""
    if not config.early_stopping_steps or best is None:
        return None
    return EarlyStopping(best, n_steps=config.early_stopping_steps)


def evaluation_extensions(
    config: TrainerConfig, *, model_dir: Path, best: BestCheckpointFileWriter | None, save_summary: bool
) -> list[Extension]:
    """What is done with an evaluation: summaries, the best checkpoint file, and beside that the metrics that it has."""
    summaries = [_OneGroup("eval", SummaryWriter(model_dir / config.validation_summary_subdir))] if save_summary else []
    if best is None:
        return [*summaries]
    info = model_dir / config.best_checkpoint_export_subdir / "info.json"
    return [best, *summaries, _BestInfo(best, info)]


def default_extensions(
    config: TrainerConfig,
    *,
    model_dir: Path,
    evaluation: Extension | None,
    stopping: Extension | None,
    schedule: optax.Schedule | None,
    extensions: Sequence[Callable[[Any], Any]] = (),
    save_summary: bool = True,
) -> list[Callable[[Any], Any]]:
    """What is done with every checkpoint of a training, in order.

    Training metrics are means since the last checkpoint, so every checkpoint is reported; the rest is done when its own
    interval divides the step.

    Args:
        schedule: The learning rate, to be reported.
        extensions: The user's own; they see all metrics, and come before anything is written.
    """
    writer = CheckpointFileWriter(model_dir, keep=config.max_to_keep)
    # The method alone takes no part in the session, so that nothing is saved when the run is stopped.
    save = writer if config.preemption_on_demand_checkpoint else writer.handle
    check = DivergenceCheck(loss_upper_bound=config.loss_upper_bound, begin_steps=config.recovery_begin_steps)
    due = [extension for extension in (evaluation, stopping) if extension is not None]
    return [
        *([check] if config.recovery_max_trials >= 0 else []),
        ProgressBar(),
        *([_learning_rate(schedule)] if schedule else []),
        *([every(config.validation_interval, *due)] if due else []),
        *extensions,
        SummaryLogger(),
        *([EventWriter(model_dir), _OneGroup("train", SummaryWriter(model_dir / "train"))] if save_summary else []),
        every(config.checkpoint_interval, save),
    ]


class _BestInfo(Extension):
    """Writes the metrics of the best checkpoint as JSON under their published names, for programs that compare runs."""

    def __init__(self, best: BestCheckpointFileWriter, file: Path) -> None:
        self._best = best
        self._file = file

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        if self._best.best_step == checkpoint.step:
            metrics = Summary.from_checkpoint(checkpoint).metrics["eval"]
            info = {published_name(name): value for name, value in metrics.items()}
            info["best_ckpt_global_step"] = float(checkpoint.step)
            write_whole(self._file, f"{json.dumps(info, indent=4)}\n".encode())
        return checkpoint


class _OneGroup(Extension):
    """Gives an extension the metrics of one group alone."""

    def __init__(self, group: str, extension: Extension) -> None:
        self._group = group
        self._extension = extension

    def join(self, session: Session) -> None:
        self._extension.attach(session)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        summary = Summary.from_checkpoint(checkpoint)
        self._extension(dataclasses.replace(summary, metrics={self._group: summary.metrics[self._group]}))
        return checkpoint


def _learning_rate(schedule: optax.Schedule) -> Callable[[Checkpoint], Summary]:
    schedule = jax.jit(schedule)  # one program instead of a dozen

    def report(checkpoint: Checkpoint) -> Summary:
        summary = Summary.from_checkpoint(checkpoint)
        # That of the next step, as published.
        return summary.with_metrics(train={**summary.metrics["train"], "learning_rate": float(schedule(summary.step))})

    return report
