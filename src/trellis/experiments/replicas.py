"""Several runs of one experiment as one program, each in a directory that is an ordinary run's."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

from trellis.config import Problem, origin_of, raise_if_any
from trellis.disk import Ownership
from trellis.errors import ArgumentError, FileWriteError, MissingPackageError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.lengths import derive_lengths
from trellis.experiments.mode import get_mode, mode_problems
from trellis.experiments.preflight import Preflight, device_memory
from trellis.experiments.reports import write_params
from trellis.experiments.run import build_task, build_trainer, check_directory
from trellis.runtime import describe_size, print_line
from trellis.trainer import ReplicaTrainer, StagedTrainer, StageOutline, Trainer

_TOGETHER = "Leave --together out, so that each run has a program of its own."
_BUSY_FLOPS: Mapping[str, float] = {"cpu": 2e8}
_BUSY_FLOPS_ON_ACCELERATORS = 1e12
"""From how many operations on, about, one step of one run keeps a device busy: then several take as much longer."""


@dataclass(frozen=True, kw_only=True)
class ReplicaRun:
    """One of the runs."""

    name: str
    """What to call it on the screen, such as `trial 0003`."""
    params: ExperimentConfig
    model_dir: Path
    extensions: Sequence[Callable[[Any], Any]] = ()


def run_replicas(
    runs: Sequence[ReplicaRun | None], *, mode: str = "train_and_eval", paths: Sequence[str] = ()
) -> list[Exception | None]:
    """Runs experiments as `run_experiment` would one after the other, but as one program, on one device.

    Each resumes from its own directory and leaves what a run alone leaves there. What they may differ in is what
    `ReplicaTrainer` says; all else is refused by its name before the first step.

    Args:
        runs: One for each place of the program; a place that is None computes, and nobody looks.
        paths: The fields in which they may differ, which the program follows from.

    Returns:
        For each place the error that ended it, if one did; the others have gone on.
    """
    run_mode = get_mode(mode)
    if not run_mode.trains or run_mode.follows or run_mode.evaluates_after_training:
        raise ArgumentError(f"Runs as one program train, but the mode is {mode}. Give train or train_and_eval.")
    if jax.process_count() > 1:
        raise ArgumentError(f"Runs as one program take one process, and there are {jax.process_count()}. {_TOGETHER}")
    errors: list[Exception | None] = [None] * len(runs)
    trainers: list[Trainer | None] = [None] * len(runs)
    outline: StageOutline | None = None
    with ExitStack() as stack:
        for index, run in enumerate(runs):
            if run is None:
                continue
            try:
                outline = _prepare(run, mode, stack, trainers, index, outline)
            except (FileWriteError, MissingPackageError):
                raise
            except Exception as error:  # noqa: BLE001  (whatever is wrong with one run, the others go on)
                errors[index] = error
                print_line(f"{run.name} has failed: {error}")
        if outline is None:
            return errors
        names = ["" if run is None else run.name for run in runs]
        replicas = ReplicaTrainer(trainers, paths=paths, names=names)
        params = next(run.params for run, trainer in zip(runs, trainers, strict=True) if run and trainer)
        raise_if_any([_problem(params, path, text) for path, text in replicas.problems()])
        for notice in pay_notices(outline, n_replicas=len(runs)):
            print_line(notice)
        found = replicas.train()
    return [error or other for error, other in zip(errors, found, strict=True)]


def replica_problems(runs: Sequence[ExperimentConfig], *, paths: Sequence[str]) -> list[Problem]:
    """Returns what is in the way of runs that differ in some fields being one program; nothing is run or written.

    Args:
        runs: Some of them.
        paths: The fields in which the others may differ.
    """
    mode = get_mode("train_and_eval")
    with TemporaryDirectory(prefix="trellis-") as directory:
        trainers = []
        for run in runs:
            task, params = build_task(run, model_dir=Path(directory))
            params = derive_lengths(params, task=task, trains=True)
            trainers.append(_plain(build_trainer(params, mode=mode, model_dir=Path(directory), task=task)))
        replicas = ReplicaTrainer(trainers, paths=paths)
        return [_problem(runs[0], path, text) for path, text in replicas.problems()]


def _prepare(
    run: ReplicaRun,
    mode: str,
    stack: ExitStack,
    trainers: list[Trainer | None],
    index: int,
    outline: StageOutline | None,
) -> StageOutline:
    """Builds and checks what a run needs; returns the outline of the first run, which is that of all."""
    run_mode = get_mode(mode)
    check_directory(run.model_dir, run_mode)
    params = run.params
    raise_if_any(list(mode_problems(params, mode=run_mode, model_dir=run.model_dir)))
    params.validate()
    stack.enter_context(Ownership(run.model_dir))
    task, params = build_task(params, model_dir=run.model_dir)
    params = derive_lengths(params, task=task, trains=True)
    built = build_trainer(params, mode=run_mode, model_dir=run.model_dir, task=task, extensions=run.extensions)
    trainer = _plain(built)
    trainer.is_shown = False
    if outline is None:
        outline = trainer.outline(trains=True, evaluates=run_mode.evaluates)
    preflight = Preflight(params=params, mode=run_mode, trainer=trainer, outline=outline)
    raise_if_any(list(preflight.problems()))
    write_params(params, run.model_dir)
    trainers[index] = trainer
    return outline


def _plain(trainer: StagedTrainer) -> Trainer:
    if not isinstance(trainer, Trainer):
        raise ArgumentError(f"{type(trainer).__name__} has stages, which runs as one program have not. {_TOGETHER}")
    return trainer


def describe_together(outline: StageOutline) -> str:
    """Whether it will pay to run several of such runs as one program, in a line."""
    flops, kind, is_busy = _work_of_a_step(outline)
    if is_busy:
        return f"a step of about {flops:.2g} FLOP keeps a {kind} busy by itself: runs as one program will hardly pay"
    return f"a step of about {flops:.2g} FLOP leaves a {kind} idle: several runs as one program pay (--together)"


def pay_notices(outline: StageOutline, *, n_replicas: int) -> list[str]:
    """Says if to run so many as one program will not pay, or has no room."""
    notices = []
    flops, kind, is_busy = _work_of_a_step(outline)
    if is_busy:
        notices.append(
            f"A step of one run is about {flops:.2g} FLOP, which keeps a {kind} busy by itself: "
            f"{n_replicas} of them as one program will hardly be quicker than one after the other."
        )
    checkpoint = outline.checkpoint
    leaves = jax.tree.leaves((checkpoint.model_params, checkpoint.model_state, checkpoint.optimizer_state))
    needed = n_replicas * sum(int(leaf.size) * leaf.dtype.itemsize for leaf in leaves)
    limit = device_memory()
    if limit and needed > limit / 2:
        sizes = [describe_size(size).lstrip("=~ ") for size in (needed, limit)]
        notices.append(
            f"{n_replicas} states are {sizes[0]} of {sizes[1]} on the device, beside what their layers keep for their "
            f"gradients: take fewer together."
        )
    return notices


def _work_of_a_step(outline: StageOutline) -> tuple[float, str, bool]:
    """The operations of one step, on what device they are, and whether they keep it busy."""
    device = outline.placement.devices[0]
    flops = 0.0 if outline.train is None else outline.train.flops
    return flops, device.device_kind, flops > _BUSY_FLOPS.get(device.platform, _BUSY_FLOPS_ON_ACCELERATORS)


def _problem(params: ExperimentConfig, path: str, text: str) -> Problem:
    return Problem(f"{path} {text}", origin_of(params, path), path, _TOGETHER)
