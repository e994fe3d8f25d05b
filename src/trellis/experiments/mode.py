"""The modes of a run: what each of them does, and what it needs of a config; known without JAX."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trellis.config import Config, Edit, Problem, origin_of
from trellis.data import DataConfig, matching_paths, patterns_in, places_in
from trellis.disk import scheme_of
from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.reports import leaves_of
from trellis.extensions import is_missing
from trellis.optimizers import optimization_problems
from trellis.remote import advice_about
from trellis.runtime import runtime_problems
from trellis.spelling import did_you_mean
from trellis.trainer import ProgressiveTrainerConfig

_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """What a run does. Everything that depends on the mode of a run asks these fields, never the name."""

    name: str
    trains: bool = False
    """Whether it changes parameters."""
    evaluates: bool = False
    """Whether it measures them on the validation data, at any time."""
    evaluates_while_training: bool = False
    """Whether it does so every `trainer.validation_interval` steps."""
    evaluates_after_training: bool = False
    """Whether it does so once, after the last step."""
    follows: bool = False
    """Whether it waits for the checkpoint files that another run writes."""

    @property
    def needs_checkpoint(self) -> bool:
        """Whether there has to be a checkpoint file before it starts: it neither writes one nor waits for one."""
        return not self.trains and not self.follows

    def __str__(self) -> str:
        return self.name


_MODES = {
    mode.name: mode
    for mode in (
        Mode(name="train", trains=True),
        Mode(name="eval", evaluates=True),
        Mode(name="train_and_eval", trains=True, evaluates=True, evaluates_while_training=True),
        Mode(name="continuous_eval", evaluates=True, follows=True),
        Mode(name="continuous_train_and_eval", trains=True, evaluates=True, follows=True),
        Mode(name="train_and_post_eval", trains=True, evaluates=True, evaluates_after_training=True),
    )
}
MODES = tuple(_MODES)
"""The names of all modes."""


def get_mode(name: str) -> Mode:
    """Returns the mode of a name; an error about a name that is none suggests the nearest.

    Example:
        >>> get_mode("train_and_eval").trains
        True
    """
    if name not in _MODES:
        suggestion = did_you_mean(name, MODES, show=str)
        raise ArgumentError(f"There is no mode {name!r}.{suggestion} Modes are: {', '.join(MODES)}.")
    return _MODES[name]


def mode_problems(params: ExperimentConfig, *, mode: Mode, model_dir: Path | None = None) -> Iterator[Problem]:
    """Yields what is wrong with a config, if it is to be run in a mode: its numbers, and the files that it names.

    Args:
        model_dir: Where it is to be run, if that is known: a run that goes on there needs nothing of a first step.
    """
    yield from _number_problems(params, trains=mode.trains)
    yield from _dropout_problems(params)
    yield from _early_stopping_problems(params)
    yield from _no_checkpoint_problems(params, mode=mode)
    if mode.trains:
        yield from _tracker_problems(params)
    yield from runtime_problems(params.runtime)
    goes_on = model_dir is not None and any(model_dir.glob("regular_*"))
    yield from _lora_problems(params, starts=mode.trains and not goes_on)
    yield from _address_problems(params)
    if mode.trains:
        yield from _optimizer_problems(params)
        yield from _microbatch_problems(params)
        yield from _data_file_problems(params, side="train_data")
    if mode.evaluates:
        yield from _data_file_problems(params, side="validation_data")
    # Beside adapters the weights that they were trained with are needed at every start.
    if (mode.trains and (mode.follows or not goes_on)) or params.trainer.lora is not None:
        yield from _init_checkpoint_problems(params, follows=mode.follows)


def problem_at(path: str, *, config: Config, message: str, advice: str = "", value: object = None) -> Problem:
    """Returns a problem with the value at a dotted path, with its place and with what to write instead.

    Args:
        message: What is wrong, after the path.
        value: What to write instead, if that is known.
    """
    origin = origin_of(config, path)
    message = f"{path} {message}"
    if value is None:
        return Problem(message, origin, path, advice)
    if origin.form == "flag":
        start = origin.column - 1
        # What a pipeline sets has no text that could be edited.
        edits = (Edit(start, start + origin.width, str(value)),) if origin.text else ()
        return Problem(message, origin, path, advice, f"{path}={value}", edits)
    fix = f"{path.rpartition('.')[2]}: {value}" if origin.form == "file" else f"--set={path}={value}"
    return Problem(message, origin, path, advice, fix)


def _number_problems(params: ExperimentConfig, *, trains: bool) -> Iterator[Problem]:
    at_least = {"max_to_keep": 1, "n_microbatches": 1, "early_stopping_steps": 0, "validation_steps": -1}
    at_least |= dict.fromkeys(("steps_per_loop", "summary_interval", "validation_interval"), 1)
    at_least |= {"checkpoint_interval": 0}
    at_least |= {"train_steps": 1} if trains and params.trainer.train_epochs <= 0 else {}
    for name in ("n_fused_steps", "export_checkpoint_interval", "export_max_to_keep"):
        at_least |= {name: 1} if getattr(params.trainer, name, None) is not None else {}
    for name, value in at_least.items():
        current = getattr(params.trainer, name)
        if current < value:
            advice = f"It has to be {value} or more."
            if name == "max_to_keep":
                advice = f"{advice} To write no checkpoint files: --set=trainer.checkpoint_interval=0"
            yield problem_at(f"trainer.{name}", config=params, message=f"is {current}.", advice=advice)
    if params.trainer.validation_steps == 0:
        advice = "Give the number of batches, or -1 for all of them."
        yield problem_at("trainer.validation_steps", config=params, message="is 0.", advice=advice)


def _dropout_problems(params: ExperimentConfig) -> Iterator[Problem]:
    for path, (value, _) in leaves_of(params).items():
        if path.endswith("dropout_rate") and isinstance(value, int | float) and not 0 <= value < 1:
            advice = "It is the share that is dropped: from 0 to below 1."
            yield problem_at(path, config=params, message=f"is {value:g}.", advice=advice)


def _tracker_problems(params: ExperimentConfig) -> Iterator[Problem]:
    for service in params.trainer.trackers:
        if is_missing(service):
            message = f"has {service}, which is not installed."
            advice = f"It comes with: pip install 'trellis-jax[{service}]'"
            yield problem_at("trainer.trackers", config=params, message=message, advice=advice)


def _no_checkpoint_problems(params: ExperimentConfig, *, mode: Mode) -> Iterator[Problem]:
    """Yields what cannot be done by a run that writes no checkpoint files."""
    if params.trainer.checkpoint_interval:
        return
    path = "trainer.checkpoint_interval"
    if mode.follows:
        message = f"is 0, so that no checkpoint file is written, but {mode} follows those of a training."
        yield problem_at(path, config=params, message=message, advice="Write some:", value=1000)
    is_export_due = getattr(params.trainer, "export_checkpoint", False)
    if is_export_due and getattr(params.trainer, "export_checkpoint_interval", None) is None:
        message = "is 0, and trainer.export_checkpoint takes its interval from it."
        advice = "Set trainer.export_checkpoint=false, or trainer.export_checkpoint_interval to a number of steps."
        yield problem_at(path, config=params, message=message, advice=advice)


def _early_stopping_problems(params: ExperimentConfig) -> Iterator[Problem]:
    if params.trainer.early_stopping_steps and not params.trainer.keeps_best:
        message = "is set, but nothing says what is best."
        advice = "Set best_checkpoint_export_subdir and best_checkpoint_eval_metric, which say what better means."
        yield problem_at("trainer.early_stopping_steps", config=params, message=message, advice=advice)


def _optimizer_problems(params: ExperimentConfig) -> Iterator[Problem]:
    config = params.trainer.optimizer_config
    # A task may build an optimizer of its own, and then the config names none.
    if config.optimizer.type is None:
        if config.groups:
            message = "is set, but the optimizer is the own one of the task, which has no groups."
            advice = "Name one: --set=trainer.optimizer_config.optimizer.type=adamw"
            yield problem_at("trainer.optimizer_config.groups", config=params, message=message, advice=advice)
        return
    # A warm-up without a length is no problem: its length follows from that of the run.
    problems = optimization_problems(config, n_steps=max(1, params.trainer.train_steps))
    yield from (problem for problem in problems if not problem.message.endswith(".warmup_steps is not set."))


def warmup_notices(params: ExperimentConfig) -> Iterator[str]:
    """Yields a line if a run ends while it warms up, as a short trial of a long training does."""
    warmup, n_steps = params.trainer.optimizer_config.warmup, params.trainer.train_steps
    n_warmup_steps = 0 if warmup.type is None else warmup.get().warmup_steps or 0
    if 0 < n_steps <= n_warmup_steps:
        path = f"trainer.optimizer_config.warmup.{warmup.type}.warmup_steps"
        yield (
            f"The run ends at step {n_steps}, while it warms up: {path} is {n_warmup_steps} "
            f"({origin_of(params, path)}). It learns little or nothing. Train for longer, or warm up for less: "
            f"--set={path}={n_steps // 10}"
        )


def _lora_problems(params: ExperimentConfig, *, starts: bool) -> Iterator[Problem]:
    """Yields what is wrong with the adapters of a run, as far as can be seen without its model.

    Args:
        starts: Whether the run takes its first step, and so may need adapters to start from.
    """
    config = params.trainer.lora
    if config is None:
        return
    wrong = {
        "rank": (config.rank < 1, "Adapters have a rank of at least 1. Write:", 8),
        "alpha": (config.alpha <= 0, "Adapters would change nothing. Write:", 16.0),
        "dropout": (not 0 <= config.dropout < 1, "It is a share, 0 or more and less than 1. Write:", 0.0),
        "targets": (not config.targets, "Nothing would have an adapter. Write:", "[query,value]"),
    }
    for name, (is_wrong, advice, value) in wrong.items():
        if is_wrong:
            message = f"is {getattr(config, name)}."
            yield problem_at(f"trainer.lora.{name}", config=params, message=message, advice=advice, value=value)
    if params.trainer.optimizer_config.frozen:
        message = f"is {params.trainer.optimizer_config.frozen} beside trainer.lora, which freezes the weights itself."
        advice = "Leave it out. What is to be trained whole is named in trainer.lora.also."
        yield problem_at("trainer.optimizer_config.frozen", config=params, message=message, advice=advice)
    if isinstance(params.trainer, ProgressiveTrainerConfig):
        message = "is set, but a progressive training changes its model from stage to stage, and adapters fit one."
        advice = "Leave it out, or train the last model with adapters in a run of its own."
        yield problem_at("trainer.lora", config=params, message=message, advice=advice)
    if starts and config.init_adapter and not os.path.isdir(config.init_adapter):
        message = f"names a directory that is not there: `{config.init_adapter}`."
        advice = _where_to_look(config.init_adapter)
        yield problem_at("trainer.lora.init_adapter", config=params, message=message, advice=advice)


def _microbatch_problems(params: ExperimentConfig) -> Iterator[Problem]:
    n_parts, size = params.trainer.n_microbatches, params.task.train_data.global_batch_size
    if n_parts > 1 and size % n_parts:
        lower = size - size % n_parts
        message = f"is {size}, which cannot be cut into trainer.n_microbatches={n_parts} equal parts."
        path = "task.train_data.global_batch_size"
        yield problem_at(path, config=params, message=message, advice="Write:", value=lower or n_parts)


def _address_problems(params: ExperimentConfig) -> Iterator[Problem]:
    """Yields each field with the address of something that cannot be reached from this machine."""
    for path, value in places_in(params):
        for address in patterns_in(value):
            if isinstance(address, str) and scheme_of(address) and (advice := advice_about(address)):
                yield problem_at(path, config=params, message=f"is `{address}`.", advice=advice)


def _data_file_problems(params: ExperimentConfig, *, side: str) -> Iterator[Problem]:
    """Yields what is wrong with the files of `task.train_data` or `task.validation_data`.

    Args:
        side: The name of the field.
    """
    data = vars(params.task)[side]
    path = f"task.{side}.input_path"
    for pattern in patterns_in(data.input_path) if isinstance(data, DataConfig) else ():
        if scheme_of(pattern):
            continue
        files = matching_paths(pattern)
        # A name that is too long for the file system is missing, too.
        missing = [file for file in files if not os.path.exists(file)]
        empty = [file for file in files if file not in missing and _is_empty(file)]
        if not files:
            message = f"matches no file: `{pattern}`."
            yield problem_at(path, config=params, message=message, advice=_where_to_look(pattern))
        for file in missing:
            message = f"names a file that is not there: `{file}`."
            yield problem_at(path, config=params, message=message, advice=_where_to_look(pattern))
        if empty:
            yield problem_at(path, config=params, message=f"names {_listed(empty)}.", advice="Write it again.")


def _init_checkpoint_problems(params: ExperimentConfig, *, follows: bool) -> Iterator[Problem]:
    """Yields what is wrong with `task.init_checkpoint`, as far as can be seen from outside."""
    path = "task.init_checkpoint"
    checkpoint = params.task.init_checkpoint
    if follows and not checkpoint:
        advice = "Give the model_dir of the pretraining, as in: --set=task.init_checkpoint=runs/pretraining"
        yield problem_at(path, config=params, message="is not set.", advice=advice)
    if params.task.init_parts and not params.task.starts_from:
        message = f"is {params.task.init_parts}, but nothing says from where to take them."
        advice = "Give a checkpoint file or the model_dir of a run: --set=task.init_checkpoint=runs/pretraining"
        yield problem_at("task.init_parts", config=params, message=message, advice=advice)
    if follows and scheme_of(checkpoint):
        advice = "Its files are followed as they appear on this machine's own file systems: mount what holds them."
        yield problem_at(path, config=params, message=f"is `{checkpoint}`.", advice=advice)
    # A pretraining that is to be followed may not have begun: that there is nothing yet is no problem.
    if checkpoint and not follows and not scheme_of(checkpoint) and not os.path.exists(checkpoint):
        message = f"names a checkpoint that is not there: `{checkpoint}`."
        yield problem_at(path, config=params, message=message, advice=_where_to_look(checkpoint))


def _is_empty(file: Path) -> bool:
    return not any(file.iterdir()) if file.is_dir() else file.stat().st_size == 0


def _where_to_look(path: str) -> str:
    """Returns advice about a path that is not there: where it was looked for, and the nearest name in that place."""
    directory = Path(path).parent
    if not directory.is_dir():
        return f"There is no directory `{directory}`; paths are taken from `{Path.cwd()}`."
    suggestion = did_you_mean(Path(path).name, os.listdir(directory), show=lambda close: f"`{directory / close}`")
    return f"{suggestion} Paths are taken from `{Path.cwd()}`.".lstrip()


def _listed(files: list[Path]) -> str:
    named = ", ".join(f"`{file}`" for file in files[:_MOST_NAMED])
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return f"{'an empty file' if len(files) == 1 else 'empty files'}: {named}{more}"
