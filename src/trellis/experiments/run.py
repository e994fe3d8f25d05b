"""A whole run of an experiment, in one of its modes."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

from trellis.bindings import bound
from trellis.config import raise_if_any, registered_name
from trellis.disk import Ownership, address_in, write_whole
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError, shown
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.lengths import derive_lengths
from trellis.experiments.mode import Mode, get_mode, mode_problems
from trellis.experiments.new_files import new_files
from trellis.experiments.preflight import Preflight, check_batch_counts
from trellis.experiments.reports import leaves_of, write_params
from trellis.extensions import best_files, checkpoint_storage, regular_files
from trellis.loops import Summary
from trellis.remote import copy_of, working_directory
from trellis.runtime import agreed, is_first_process, print_line, wait_for_processes
from trellis.tasks import BoundModel, Task, TaskConfig, get_task, with_addresses
from trellis.trainer import ProgressiveTrainer, ProgressiveTrainerConfig, StagedTrainer, Trainer, published_name


def run_experiment(
    params: ExperimentConfig,
    *,
    mode: str,
    model_dir: str | os.PathLike[str] | None = None,
    task: Task | None = None,
    trainer: StagedTrainer | None = None,
    run_post_eval: bool = False,
    save_summary: bool = True,
    extensions: Sequence[Callable[[Any], Any]] = (),
    pretrain_steps: int | None = None,
    allow_changes: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    when_ready: Callable[[], object] = lambda: None,
) -> tuple[BoundModel, dict[str, float]]:
    """Runs an experiment; returns the model as it is in the end, and the metrics of a final evaluation.

    | mode | does |
    |---|---|
    | `train` | trains up to `trainer.train_steps` |
    | `train_and_eval` | the same, evaluating every `trainer.validation_interval` steps and at the last |
    | `train_and_post_eval` | trains, then evaluates once |
    | `eval` | evaluates the newest checkpoint file, or the one that `checkpoint` names |
    | `continuous_eval` | evaluates each checkpoint file that another process writes, until its training is done |
    | `continuous_train_and_eval` | fine-tunes from each checkpoint file that appears in `task.init_checkpoint` |

    `model_dir` may be an address such as `gs://bucket/run`: see `trellis.remote`.

    The metrics are empty unless the mode is `train_and_post_eval` or `run_post_eval` is set. Started again after it was
    interrupted, a run goes on where it was.

    Args:
        model_dir: Where the run writes, and resumes from. Without it a training leaves only what is returned.
        task: The default is the one that is registered for `params.task`.
        trainer: One of your own, made with `params.trainer` and `params.runtime`; the run takes place in its
            `model_dir`. The mode says whether it evaluates.
        extensions: What else to do with every checkpoint of the training.
        pretrain_steps: The last step of the pretraining that `continuous_train_and_eval` follows; without it, files
            are awaited until none has come for `trainer.continuous_eval_timeout` seconds.
        allow_changes: Whether a run that is resumed may go on with what makes it another run: other data, another seed,
            batch size, optimizer, model or precision.
        checkpoint: What `eval` evaluates, leaving the files of the run as they are: `best`, a step, or a file.
        when_ready: Is called when all is built and checked, before the first step.
    """
    run_mode = get_mode(mode)
    if not isinstance(params, ExperimentConfig):
        raise ArgumentError(f"params is {shown(params)}. Give a config: trellis.get_exp_config('digits/classifier')")
    if trainer is not None:
        given = {"task": task, "extensions": extensions or None, "save_summary": None if save_summary else False}
        _check_trainer(trainer, params=params, mode=run_mode, model_dir=model_dir, given=given)
        model_dir, task = trainer.model_dir, trainer.task
    if checkpoint is not None and not run_mode.needs_checkpoint:
        raise ArgumentError(f"checkpoint is {str(checkpoint)!r}, but mode {mode!r} chooses its files. Set mode 'eval'.")
    with ExitStack() as stack:
        model_dir = _temporary_dir(run_mode, stack) if model_dir is None else model_dir
        check_directory(model_dir, run_mode)
        directory = stack.enter_context(
            working_directory(model_dir, name="model_dir", writes=True, takes_over=run_mode.trains)
        )
        raise_if_any(list(mode_problems(params, mode=run_mode, model_dir=directory)))
        params.validate()
        chosen = None if checkpoint is None else _agreed_checkpoint(checkpoint, params=params, model_dir=directory)
        # Of several processes that run one experiment, the first one writes.
        if run_mode.trains and is_first_process():
            stack.enter_context(Ownership(directory))
        if run_mode.trains and run_mode.follows:
            when_ready()
            return _finetune_continuously(
                params, model_dir=directory, pretrain_steps=pretrain_steps, allow_changes=allow_changes
            )
        runs_post_eval = run_post_eval or run_mode.evaluates_after_training
        if task is None:
            task, params = build_task(params, model_dir=directory)
        if trainer is None:
            params = derive_lengths(params, task=task, trains=run_mode.trains or run_mode.follows)
            trainer = build_trainer(
                params, mode=run_mode, model_dir=directory, task=task, extensions=extensions, save_summary=save_summary
            )
        else:
            params = _adopt(trainer, params=params, mode=run_mode)
        outline = trainer.outline(trains=run_mode.trains, evaluates=run_mode.evaluates or runs_post_eval)
        preflight = Preflight(
            params=params,
            mode=run_mode,
            trainer=trainer,
            outline=outline,
            allow_changes=allow_changes,
            checkpoint=chosen,
        )
        raise_if_any([*mode_problems(params, mode=run_mode, model_dir=directory), *preflight.problems()])
        for notice in preflight.notices():
            print_line(notice)
        if run_mode.trains and is_first_process():
            write_params(params, directory)
        when_ready()
        if trainer.placement.spans_processes:
            check_batch_counts(outline)
        last = _run(trainer, run_mode, chosen)
        if runs_post_eval:
            last = trainer.evaluate(last)
        final = last or trainer.read_checkpoint(trains=run_mode.trains)
        return trainer.bound_model(final), _logs(trainer, last) if runs_post_eval else {}


def run_in_turn(
    params: ExperimentConfig, *, when_ready: Callable[[], object] = lambda: None, **options: Any
) -> tuple[BoundModel, dict[str, float]]:
    """Runs an experiment; of several processes the first one makes what is kept of the data, and the others find it."""
    if not is_first_process():
        wait_for_processes("preparing the data")

    def when_all_are_ready() -> None:
        when_ready()
        if is_first_process():
            wait_for_processes("preparing the data")

    return bound(run_experiment)(params, when_ready=when_all_are_ready, **options)


def _check_trainer(
    trainer: Any,
    *,
    params: ExperimentConfig,
    mode: Mode,
    model_dir: str | os.PathLike[str] | None,
    given: Mapping[str, Any],
) -> None:
    """Raises an error if a run cannot be that of a trainer.

    Args:
        given: What else the run was given that a trainer has of its own; None for what was not.
    """
    make = "Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=…)"
    if not isinstance(trainer, StagedTrainer):
        raise ArgumentError(f"trainer is {shown(trainer)}, which is no trainer. Give one: trainer={make}")
    if mode.trains and mode.follows:
        raise ArgumentError(f"trainer is given, but mode {str(mode)!r} makes one for each file. Leave it out.")
    if model_dir is not None and Path(model_dir).absolute() != trainer.model_dir.absolute():
        raise ArgumentError(
            f"model_dir is `{os.fspath(model_dir)}`, but the trainer's is `{trainer.model_dir}`. Leave it out here."
        )
    for name, value in given.items():
        if value is not None and value is not trainer.task:
            raise ArgumentError(f"{name} is given beside trainer, which has its own. Make it with that: {make}")
    for name, config in {"trainer": trainer.config, "runtime": trainer.runtime}.items():
        theirs = leaves_of(config)
        for path, (value, _) in leaves_of(getattr(params, name)).items():
            if path not in theirs or theirs[path][0] != value:
                there = theirs[path][0] if path in theirs else "nothing"
                raise ArgumentError(
                    f"params.{name}.{path} is {value}, but the trainer was made with {there}. Make it with what is to "
                    f"be run: {make}"
                )


def _adopt(trainer: StagedTrainer, *, params: ExperimentConfig, mode: Mode) -> ExperimentConfig:
    """The config as a trainer runs it; the trainer evaluates as the mode says."""
    derived = derive_lengths(params, task=trainer.task, trains=mode.trains or mode.follows)
    if mode.trains and derived is not params:
        raise ArgumentError(
            f"The length of the run is left to its data ({derived.trainer.train_steps} steps), but a trainer that is "
            f"given is made before that is known. Set trainer.train_steps, and warmup_steps if it warms up."
        )
    trainer.evaluate_while_training(mode.evaluates_while_training)
    if trainer.task.task_config is params.task or not isinstance(trainer.task.task_config, TaskConfig):
        return params
    params = params.replace(task=trainer.task.task_config)
    params.lock()
    return params


def _temporary_dir(mode: Mode, stack: ExitStack) -> str:
    """A directory for a run that is to leave nothing, removed when the run ends."""
    if not mode.trains or jax.process_count() > 1:
        needs = "several processes share one" if mode.trains else f"mode {str(mode)!r} needs that of a run"
        raise ArgumentError(f"model_dir is not given: {needs}, as in model_dir='runs/digits'.")
    directory = stack.enter_context(TemporaryDirectory(prefix="trellis-"))
    print_line(
        f"model_dir is not given: what the run writes lies in `{directory}`, and goes when it ends. The run cannot be "
        f"resumed."
    )
    return directory


def check_directory(model_dir: str | os.PathLike[str], mode: Mode) -> None:
    """Raises an error if a mode cannot be run in a directory, or with others in a copy of it."""
    if not model_dir:
        raise ArgumentError(
            "model_dir is not given: a run needs a directory of its own, as in model_dir='runs/digits'."
        )
    copy = copy_of(Path(model_dir))
    address = address_in(model_dir) if copy is None else copy.address
    if address and (mode.follows or jax.process_count() > 1):
        what = f"mode {str(mode)!r} follows files" if mode.follows else f"{jax.process_count()} processes share files"
        raise ArgumentError(f"model_dir is `{address}`, but {what}, which takes a path. Mount what holds it.")


def build_task(params: ExperimentConfig, *, model_dir: Path | None) -> tuple[Task, ExperimentConfig]:
    """The task of a config, and the config with what the task has filled in of its own; that is locked in both.

    Args:
        model_dir: Where the task may write; None if it is to write nothing.
    """
    task = get_task(params.task, logging_dir=None if model_dir is None else str(model_dir))
    if task.task_config is not params.task:
        task.task_config.lock()
        params = params.replace(task=with_addresses(task.task_config))
        params.lock()
    return task, params


def build_trainer(
    params: ExperimentConfig,
    *,
    mode: Mode,
    model_dir: Path,
    task: Task | None = None,
    extensions: Sequence[Callable[[Any], Any]] = (),
    save_summary: bool = True,
) -> StagedTrainer:
    """The trainer of the kind that the config asks for."""
    # Defaults are not passed on, so that they can be bound from outside.
    options: dict[str, Any] = {"extensions": extensions} if extensions else {}
    options |= {} if save_summary else {"save_summary": False}
    options |= {"experiment": registered_name(params) or ""} if params.trainer.trackers else {}
    options |= {"runtime": params.runtime, "model_dir": model_dir, "evaluate": mode.evaluates_while_training}
    task = task or get_task(params.task, logging_dir=str(model_dir))
    if isinstance(params.trainer, ProgressiveTrainerConfig):
        return bound(ProgressiveTrainer)(task, config=params.trainer, **options)
    return bound(Trainer)(task, config=params.trainer, **options)


def find_checkpoint(name: str | os.PathLike[str], *, params: ExperimentConfig, model_dir: Path) -> Path:
    """The checkpoint file that a name stands for: `best`, a step of the run, or the file itself."""
    subdir = params.trainer.best_checkpoint_export_subdir
    best = best_files(model_dir / subdir) if subdir else []
    files = [*(path for _, path in regular_files(model_dir)), *best]
    text = os.fspath(name)
    if text == "best":
        found = best[-1] if best else None
    elif text.isdecimal():
        found = next((path for path in files if path.name.endswith(f"_{int(text)}")), None)
    else:
        found = Path(text) if checkpoint_storage.is_checkpoint_file(Path(text)) else None
    if found is None or not found.name.rpartition("_")[2].isdecimal():
        there = ", ".join(str(path) for path in files) or "none"
        raise ArgumentError(
            f"checkpoint is {text!r}, which is no checkpoint file of the run in `{model_dir}`. Give best, a step, or a "
            f"file. There are: {there}."
        )
    return found


def _agreed_checkpoint(name: str | os.PathLike[str], *, params: ExperimentConfig, model_dir: Path) -> Path:
    # A training may be writing its best file just now.
    return Path(agreed(lambda: str(find_checkpoint(name, params=params, model_dir=model_dir))))


def _run(trainer: StagedTrainer, mode: Mode, chosen: Path | None) -> Any:
    if chosen is not None:
        print_line(f"Evaluates `{chosen}`.")
        return _report(trainer.evaluate(trainer.read_checkpoint(chosen), writes=False))
    if mode.needs_checkpoint:
        return _report(trainer.evaluate())
    if not mode.trains:
        last = None
        for path in new_files(
            trainer.model_dir, timeout=trainer.config.continuous_eval_timeout, last_step=trainer.config.train_steps
        ):
            last = _evaluate_file(trainer, path) or last
        return last
    return trainer.train()


def _evaluate_file(trainer: StagedTrainer, path: Path) -> Summary | None:
    try:
        return _report(trainer.evaluate(trainer.read_checkpoint(path)))
    except (OSError, ValueError) as error:
        is_damaged = isinstance(error, CheckpointFileError) and not isinstance(error, CheckpointMismatchError)
        # The training keeps its newest files only, and may have moved on meanwhile.
        if not path.exists():
            print_line(f"`{path}` was removed before it could be evaluated.")
        elif is_damaged:
            print_line(f"`{path}` is damaged, and so was not evaluated: {error}.")
        else:
            raise
        return None


def _report(summary: Summary) -> Summary:
    values = "  ".join(f"eval/{name} {value:.6g}" for name, value in summary.metrics["eval"].items())
    print_line(f"Step {summary.step:6d}  {values}")
    return summary


def _logs(trainer: StagedTrainer, last: Summary) -> dict[str, float]:
    """The metrics of an evaluation under their published names."""
    logs = {published_name(name): value for name, value in last.metrics["eval"].items()}
    if trainer.best is not None:
        logs[f"best_{trainer.config.best_checkpoint_eval_metric}"] = trainer.best.best_metric
    return logs


def _finetune_continuously(
    params: ExperimentConfig, *, model_dir: Path, pretrain_steps: int | None, allow_changes: bool
) -> tuple[BoundModel, dict[str, float]]:
    """Trains and evaluates from each checkpoint file in `task.init_checkpoint`; returns the last model and its metrics.

    Each run has a directory of its own, `{model_dir}/pretrained_{step}`, and leaves `{model_dir}/metrics-{step}.json`.
    Started again, only what is not finished is run.
    """
    pretrained = Path(params.task.init_checkpoint)
    result = None
    for file in new_files(pretrained, timeout=params.trainer.continuous_eval_timeout, last_step=pretrain_steps):
        step = int(file.name.rpartition("_")[2])
        print_line(f"Fine-tuning from `{file}`.")
        task = params.task.replace(init_checkpoint=str(file))
        result = run_in_turn(
            params.replace(task=task),
            mode="train_and_eval",
            model_dir=model_dir / f"pretrained_{step}",
            run_post_eval=True,
            allow_changes=allow_changes,
        )
        if is_first_process():
            write_whole(model_dir / f"metrics-{step}.json", f"{json.dumps(result[1], indent=2)}\n".encode())
    if result is None:
        raise CheckpointFileError(
            f"task.init_checkpoint: no checkpoint file has appeared in `{pretrained}` for "
            f"{params.trainer.continuous_eval_timeout} seconds. Give the model_dir of a pretraining that is under way."
        )
    return result
