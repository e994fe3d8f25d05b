"""What a run does with its checkpoints, after its config: each part with its interval."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import optax

from trellis.aliases import JSON, Metrics
from trellis.disk import set_aside, write_whole
from trellis.extensions import (
    BestCheckpointFileWriter,
    BlowUpCheck,
    CheckpointFileWriter,
    DivergenceCheck,
    EarlyStopping,
    EventWriter,
    Extension,
    Fingerprints,
    HighestCheckpointFileWriter,
    LowestCheckpointFileWriter,
    ProgressBar,
    SummaryLogger,
    SummaryWriter,
    every,
    read_summaries,
    regular_files,
    serial,
    steps_with_points,
)
from trellis.loops import Checkpoint, EvalLoop, Media, Session, Summary, Text
from trellis.optimizers import average_weights
from trellis.remote import WorkingCopy, copy_of
from trellis.runtime import Placement, print_line
from trellis.trainer.configs import TrainerConfig

_BEST_STEP = "best_ckpt_global_step"
_MOST_LISTED = 6
_Value = TypeVar("_Value")


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
        evaluated = Summary.from_checkpoint(checkpoint).with_metrics(eval=summary.metrics["eval"])
        return evaluated.with_media(**summary.media)


class ShownModel(Extension):
    """Adds to an evaluation what its task shows of the model; texts are events, too.

    Args:
        show: Returns that, by name, for a checkpoint.
    """

    def __init__(self, show: Callable[[Checkpoint], Mapping[str, Media]]) -> None:
        self._show = show

    def handle(self, checkpoint: Checkpoint) -> Summary:
        """Returns the checkpoint with the media."""
        media = self._show(checkpoint)
        for name, value in media.items():
            if isinstance(value, Text) and checkpoint.session is not None:
                checkpoint.session.emit("shown", step=checkpoint.step, text=value.text, name=name)
        summary = Summary.from_checkpoint(checkpoint)
        return summary.with_media(eval={**summary.media.get("eval", {}), **media})


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
    """What an evaluation calls the metric that a config names as published, or as the screen does: `eval/loss`."""
    name = published.removeprefix("eval/")
    return "loss" if name == "validation_loss" else name.replace("|", "/")


def published_name(metric: str) -> str:
    """What programs that know the published logs call a metric of an evaluation."""
    return "validation_loss" if metric == "loss" else metric


def early_stopping(config: TrainerConfig, best: BestCheckpointFileWriter | None) -> EarlyStopping | None:
    """What ends a run that does not get better; None if the config does not ask for it."""
    if not config.early_stopping_steps or best is None:
        return None
    return EarlyStopping(best, n_steps=config.early_stopping_steps)


def evaluation_extensions(
    config: TrainerConfig,
    *,
    model_dir: Path,
    best: BestCheckpointFileWriter | None,
    placement: Placement,
    save_summary: bool,
) -> list[Extension]:
    """What is done with an evaluation: summaries, the best checkpoint file, and beside that the metrics that it has."""
    summaries = [_NestedSummaries("eval", model_dir / config.validation_summary_subdir)] if save_summary else []
    if best is None:
        return [*summaries]
    info = model_dir / config.best_checkpoint_export_subdir / "info.json"
    infos = [_BestInfo(best, info)] if placement.is_writer else []
    return [_SharedBest(best, placement), *summaries, *infos]


def default_extensions(
    config: TrainerConfig,
    *,
    model_dir: Path,
    evaluation: Extension | None,
    stopping: Extension | None,
    schedules: Mapping[str, optax.Schedule],
    extensions: Sequence[Callable[[Any], Any]] = (),
    trackers: Sequence[Extension] = (),
    save_summary: bool = True,
    notes: Mapping[str, JSON] | None = None,
    is_shown: bool = True,
) -> list[Callable[[Any], Any]]:
    """What is done with every checkpoint of a training, in order.

    Training metrics are means since the last checkpoint, so every checkpoint is reported; the rest is done when its own
    interval divides the step.

    Args:
        schedules: The learning rates by name, to be reported.
        extensions: The user's own; they see all metrics, and come before anything is written.
        trackers: Come after the events, from which they take what they had no time to tell.
        notes: What the checkpoint files say of the run.
        is_shown: Whether progress and summaries are told on the screen.
    """
    check = DivergenceCheck(loss_upper_bound=config.loss_upper_bound, begin_steps=config.recovery_begin_steps)
    due = [extension for extension in (evaluation, stopping) if extension is not None]
    copy = copy_of(model_dir)
    return [
        *([check] if config.recovery_max_trials >= 0 else []),
        *([BlowUpCheck(factor=config.blow_up_factor)] if config.blow_up_factor > 1 else []),
        *([ProgressBar()] if is_shown else []),
        *([_learning_rates(schedules)] if schedules else []),
        *([every(config.validation_interval, *due)] if due else []),
        *extensions,
        SummaryLogger(stdout=is_shown, details=config.report_details),
        *(_history_writers(config, model_dir) if save_summary else []),
        *(trackers if save_summary else []),
        *(_savers(config, model_dir, notes or {}) if config.saves else []),
        *([_Sending(copy)] if copy is not None else []),
    ]


def _savers(config: TrainerConfig, model_dir: Path, notes: Mapping[str, JSON]) -> list[Extension]:
    writer = CheckpointFileWriter(model_dir, keep=config.max_to_keep, notes=notes)
    # The method alone takes no part in the session, so that nothing is saved when the run is stopped.
    save = writer if config.preemption_on_demand_checkpoint else writer.handle
    # Fingerprints come after the events, so that they are told of this run, and before the file, which is committed
    # when they are there.
    return [every(config.checkpoint_interval, Fingerprints(), save)]


def _history_writers(config: TrainerConfig, model_dir: Path) -> list[Extension]:
    # The check comes last: the writers mend their files when they join.
    return [
        EventWriter(model_dir),
        _OneGroup("train", SummaryWriter(model_dir / "train", run_dirs={"train": "."})),
        _HistoryCheck(model_dir, validation_dir=model_dir / config.validation_summary_subdir),
    ]


class _Sending(Extension):
    """Sends what a run has written to the address that its directory is a copy of, after each commit."""

    def __init__(self, copy: WorkingCopy) -> None:
        self._copy = copy

    def join(self, session: Session) -> None:
        session.after_commit(self._copy.send)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint


class _HistoryCheck(Extension):
    """Tells of summaries that a resumed run ought to have and has not, because somebody has removed or cut its files.

    A checkpoint file is committed after the summary of its step was written, to the events and for TensorBoard, so what
    one of the three has, the others must have.
    """

    def __init__(self, model_dir: Path, *, validation_dir: Path) -> None:
        self._dir = model_dir
        self._validation_dir = validation_dir

    def join(self, session: Session) -> None:
        session.subscribe(lambda event: self._check(event.step, session) if event.kind == "initialized" else None)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint

    def _check(self, step: int, session: Session) -> None:
        if not step:
            return
        events = read_summaries(self._dir / "events.jsonl")
        points = {
            "train": steps_with_points(self._dir / "train"),
            "eval": {
                at
                for directory in (self._validation_dir, *filter(Path.is_dir, self._validation_dir.rglob("*")))
                for at in steps_with_points(directory)
            },
        }
        due = {
            "train": {at for at, _ in regular_files(self._dir)} | points["train"] | events.keys(),
            "eval": {at for at, event in events.items() if "eval" in event.get("metrics", {})},
        }
        files = {
            self._dir / "events.jsonl": due["train"] - events.keys(),
            self._dir / "train": due["train"] - points["train"],
            self._validation_dir: due["eval"] - points["eval"],
        }
        for path, missing in files.items():
            lost = sorted(at for at in missing if at <= step)
            if lost:
                text = (
                    f"`{path}` has no summary of {_listed(lost)}: it was removed or cut. The training itself is not "
                    f"affected, and goes on from step {step}."
                )
                session.emit("damaged", step=step, text=text, path=str(path))


def _listed(steps: Sequence[int]) -> str:
    few = ", ".join(map(str, steps[:_MOST_LISTED]))
    more = f" and {len(steps) - _MOST_LISTED} more" if len(steps) > _MOST_LISTED else ""
    return f"step {few}" if len(steps) == 1 else f"the steps {few}{more}"


class _SharedBest(Extension):
    """Has the best checkpoint file written, unless another process does: an evaluation leaves that to a training."""

    def __init__(self, best: BestCheckpointFileWriter, placement: Placement) -> None:
        self._best = best
        self._placement = placement

    def join(self, session: Session) -> None:
        self._best.attach(session)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        owner = self._placement.agreed(self._best.find_owner) if self._best.is_better(checkpoint) else ""
        if owner:
            print_line(f"This evaluation leaves the best checkpoint file alone: {owner}")
            return checkpoint
        return self._best(checkpoint)


class _BestInfo(Extension):
    """Writes the metrics of the best checkpoint as JSON under their published names, for programs that compare runs."""

    def __init__(self, best: BestCheckpointFileWriter, file: Path) -> None:
        self._best = best
        self._file = file

    def join(self, session: Session) -> None:
        """Mends the file, after the checkpoint file that it tells of."""
        step, metrics = self._best.best_step, self._best.best_metrics
        if step is None or not metrics or self._read_step() > step:
            return  # a greater step is that of lost work, which is done again
        content = _info(step, metrics)
        if not self._file.is_file() or self._file.read_bytes() not in (content, _published_info(step, metrics)):
            aside = f" It is set aside as `{set_aside(self._file).name}`." if os.path.lexists(self._file) else ""
            text = f"`{self._file}` does not tell of the best checkpoint file, that of step {step}.{aside}"
            session.emit("damaged", step=step, text=f"{text} It is written again.", path=str(self._file))
            write_whole(self._file, content)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        if self._best.best_step == checkpoint.step:
            write_whole(self._file, _info(checkpoint.step, Summary.from_checkpoint(checkpoint).metrics["eval"]))
        return checkpoint

    def _read_step(self) -> float:
        try:
            return float(json.loads(self._file.read_bytes())[_BEST_STEP])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return -1.0


def _published_info(step: int, metrics: Metrics) -> bytes:
    """What earlier versions wrote, which is as good."""
    info = {published_name(name): value for name, value in metrics.items()} | {_BEST_STEP: float(step)}
    return f"{json.dumps(info, indent=4)}\n".encode()


def _info(step: int, metrics: Metrics) -> bytes:
    # Under the names that the screen shows, and for programs that know the published ones also under theirs.
    names = {published_name(name): value for name, value in metrics.items()}
    info = {**metrics, **names, _BEST_STEP: float(step)}
    return f"{json.dumps(info, indent=4)}\n".encode()


class _OneGroup(Extension):
    """Gives an extension the metrics of one group alone."""

    def __init__(self, group: str, extension: Extension) -> None:
        self._group = group
        self._extension = extension

    def join(self, session: Session) -> None:
        self._extension.attach(session)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        self._extension(Summary.from_checkpoint(checkpoint).only(self._group))
        return checkpoint


class _NestedSummaries(Extension):
    """Writes the metrics of one group for TensorBoard, those of the groups in it to directories of their names."""

    def __init__(self, group: str, directory: Path) -> None:
        self._group = group
        self._directory = directory
        self._writers = {"": self._writer("")}

    def join(self, session: Session) -> None:
        for writer in self._writers.values():
            writer.attach(session)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        summary = Summary.from_checkpoint(checkpoint).only(self._group)
        metrics, media = _nested(summary.metrics[self._group]), _nested(summary.media[self._group])
        for subdir in {**metrics, **media}:
            if subdir not in self._writers:
                self._writers[subdir] = self._writer(subdir)
            parts = {self._group: metrics.get(subdir, {})}, {self._group: media.get(subdir, {})}
            self._writers[subdir](dataclasses.replace(summary, metrics=parts[0], media=parts[1]))
        return checkpoint

    def _writer(self, subdir: str) -> SummaryWriter:
        return SummaryWriter(self._directory / subdir, run_dirs={self._group: "."})


def _nested(values: Mapping[str, _Value]) -> dict[str, dict[str, _Value]]:
    """Values by the directory and the rest of their names, such as `{"mnli": {"accuracy": 0.8}}`."""
    nested: dict[str, dict[str, _Value]] = {}
    for path, value in values.items():
        *groups, name = path.split("/")
        subdir = "/".join(group for group in groups if group.strip("."))
        nested.setdefault(subdir, {})[name] = value
    return nested


def _learning_rates(schedules: Mapping[str, optax.Schedule]) -> Callable[[Checkpoint], Summary]:
    # One program instead of a dozen.
    compute = jax.jit(lambda step: {name: schedule(step) for name, schedule in schedules.items()})

    def report(checkpoint: Checkpoint) -> Summary:
        summary = Summary.from_checkpoint(checkpoint)
        # Those of the next step, as published.
        rates = {name: float(rate) for name, rate in compute(summary.step).items()}
        return summary.with_metrics(train={**summary.metrics["train"], **rates})

    return report
