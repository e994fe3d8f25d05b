"""What a run takes up, and what is wrong with it: found before its first step, and told at once."""

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from trellis.aliases import PyTree, Variables
from trellis.config import DEFAULT, Problem, origin_of
from trellis.data import SizedStream, is_stream
from trellis.errors import ArgumentError, CheckpointFileError, RunFailedError, TrellisError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.lengths import is_derived
from trellis.experiments.mode import Mode, problem_at, warmup_notices
from trellis.experiments.reports import leaves_of
from trellis.extensions import best_files, checkpoint_storage as storage, newest_file, regular_files
from trellis.loops import Outline, batch_size, made_parts
from trellis.optimizers import AverageState, trained_part
from trellis.runtime import describe_size, gathered, process_name
from trellis.spelling import nearest
from trellis.tasks import BoundModel, PeftTask, Task, all_metrics, parameters_by_path, uncalled_methods
from trellis.trainer import Change, StagedTrainer, StageOutline, build_task_metrics, metric_name, start_of

BEST = "trainer.best_checkpoint_eval_metric"


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A run that is about to start: its config and its trainer, and what abstract evaluation tells of them."""

    params: ExperimentConfig
    mode: Mode
    trainer: StagedTrainer
    outline: StageOutline
    allow_changes: bool = False
    """Whether a run may go on with what makes it another run."""
    checkpoint: Path | None = None
    """The checkpoint file that was chosen to be evaluated; None for the newest."""

    @cached_property
    def resumes_from(self) -> Path | None:
        """The checkpoint file that the run goes on from."""
        return self.checkpoint or newest_file(self.trainer.model_dir)

    @cached_property
    def changes(self) -> tuple[int, list[Change]]:
        """The step that the run goes on from, and what has changed since; derived lengths follow that of the run."""
        if not self.mode.trains:
            return 0, []
        step, changes = self.trainer.find_changes()
        derived = [dataclasses.replace(change, matters=False) for change in changes if self._is_derived(change.path)]
        return step, [*derived, *(change for change in changes if not self._is_derived(change.path))]

    def _is_derived(self, path: str) -> bool:
        return path in leaves_of(self.params) and is_derived(origin_of(self.params, path))

    def notices(self) -> Iterator[str]:
        """What a run says before it starts: what is shorter than meant; what has changed, if it goes on."""
        if self.mode.trains:
            yield from warmup_notices(self.params)
            yield from self._unsaved()
        n_known, n_asked = n_batches(self.outline.validation), self.params.trainer.validation_steps
        if n_known is not None and n_known < n_asked:
            origin = origin_of(self.params, "trainer.validation_steps")
            yield (
                f"trainer.validation_steps is {n_asked} ({origin}), but the validation data has {n_known} batches: "
                f"all of them are taken."
            )
        yield from uncalled_methods(self.trainer.task)
        yield from self._unmeasured()
        step, changes = self.changes
        refused = [change for change in changes if change.matters]
        harmless = [change for change in changes if not change.matters]
        if harmless:
            yield f"Changed since step {step}: {'; '.join(map(str, harmless))}."
        if refused and self.allow_changes:
            yield f"Changed since step {step}, as is allowed: {'; '.join(map(str, refused))}. It is another run now."
        last_step = self.params.trainer.train_steps
        if step > last_step:
            yield (
                f"trainer.train_steps is {last_step}, but the run in `{self.trainer.model_dir}` has reached step "
                f"{step}: nothing is trained, and nothing that it has reached is lost."
            )

    def _unsaved(self) -> Iterator[str]:
        """Yields a line about a run that writes no checkpoint files."""
        config = self.params.trainer
        if not config.saves:
            origin = origin_of(self.params, "trainer.checkpoint_interval")
            kept = (
                "of its models only the best is kept"
                if config.keeps_best and self.mode.evaluates
                else "its model is not kept"
            )
            yield (
                f"trainer.checkpoint_interval is 0 ({origin}): no checkpoint files are written. The run cannot be "
                f"resumed, and {kept} when it ends."
            )

    def _unmeasured(self) -> Iterator[str]:
        """Yields a line for a step of the task's own that leaves out metrics which the task has built."""
        task = self.trainer.task
        sides = {"train_step": self.outline.train, "validation_step": self.outline.validation}
        for step, side in sides.items():
            built = all_metrics(build_task_metrics(task, training=step == "train_step"))
            left_out = [] if side is None else [metric.name for metric in built if metric.name not in side.metrics]
            # What the host adds to an evaluation is known when it comes.
            if left_out and not (step == "validation_step" and self.has_host_metrics):
                yield (
                    f"Not measured: {', '.join(left_out)}. {type(task).__name__}.build_metrics builds it, but {step} "
                    f"does not return it. Return it too: **self.process_metrics(metrics, labels, outputs)"
                )

    @property
    def trained(self) -> PyTree:
        """The parameters that are not frozen."""
        checkpoint = self.outline.checkpoint
        return trained_part(checkpoint.model_params, optimizer_state=checkpoint.optimizer_state)

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes on each device, by what they hold, without what the model's layers keep for their gradients."""
        checkpoint = self.outline.checkpoint
        trains = self.outline.train is not None
        nodes = jax.tree.leaves(checkpoint.optimizer_state, is_leaf=lambda node: isinstance(node, AverageState))
        averages = _bytes_on_each([node.average for node in nodes if isinstance(node, AverageState)])
        frozen = _bytes_on_each([part.tree for part in made_parts(checkpoint.model_state)])
        side = self.outline.train or self.outline.validation
        return {
            "parameters": _bytes_on_each(checkpoint.model_params),
            "gradients": _bytes_on_each(self.trained) if trains else 0,
            "optimizer state": _bytes_on_each(checkpoint.optimizer_state) - averages if trains else 0,
            "averages": averages,
            "frozen weights": frozen,
            "model state": _bytes_on_each(checkpoint.model_state) - frozen,
            "batch": 0 if side is None else math.ceil(n_bytes(side.batch) / self.outline.placement.n_parts),
        }

    @cached_property
    def disk(self) -> "Disk":
        """What is written."""
        checkpoint, config = self.outline.checkpoint, self.params.trainer
        model_dir = self.trainer.model_dir.absolute()
        n_due = math.ceil(config.train_steps / config.checkpoint_interval) if config.saves else 0
        n_files = min(config.max_to_keep, n_due) + config.saves + 2 * (config.keeps_best and self.mode.evaluates)
        existing = next(path for path in (model_dir, *model_dir.parents) if path.exists())
        return Disk(
            file=n_bytes([leaf for _, leaf in storage.flatten(checkpoint)]),
            n_files=max(min(1, n_files), n_files - len(regular_files(model_dir))),
            free=shutil.disk_usage(existing).free,
        )

    @property
    def has_host_metrics(self) -> bool:
        """Whether the task adds metrics on the host, whose names are known when they come."""
        return type(self.trainer.task).reduce_aggregated_logs is not Task.reduce_aggregated_logs

    def problems(self) -> list[Problem]:
        """All that would go wrong."""
        return [problem for check in CHECKS for problem in check(self)]


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Bytes on the file system that a run writes to."""

    file: int
    """What a checkpoint file takes up."""
    n_files: int
    """The most that are added at once, one that is being written included."""
    free: int

    @property
    def total(self) -> int:
        """What the files take up at most."""
        return self.file * self.n_files


def _split_problems(run: Preflight) -> Iterator[Problem]:
    """A batch is split evenly over the devices."""
    side, n_devices = run.outline.train, run.outline.placement.n_parts
    size = 0 if side is None else batch_size(side.batch)
    if size % n_devices == 0:
        return
    path = "task.train_data.global_batch_size"
    message = f"A batch of {size} examples cannot be split over {n_devices} devices."
    # Several processes have a device each, at least.
    is_alone = not run.outline.placement.spans_processes
    one = ", or take one device: --set=runtime.distribution_strategy=one_device" if is_alone else ""
    if run.params.task.train_data.global_batch_size != size:
        yield Problem(message, DEFAULT, advice=f"Let task.train_data give batches of a multiple of {n_devices}{one}.")
        return
    unit = math.lcm(n_devices, run.params.trainer.n_microbatches)
    value = max(unit, size - size % unit)
    advice = f"Take a multiple{one}. Write:"
    yield problem_at(path, config=run.params, message=f"is {size}. {message}", advice=advice, value=value)


def _length_problems(run: Preflight) -> Iterator[Problem]:
    """The data lasts for the steps that are to be taken."""
    config = run.params.trainer
    n_known = n_batches(run.outline.train)
    if n_known is not None and n_known < run.outline.n_steps:
        message = f"is {config.train_steps}, but the training data ends after {n_known} batches."
        advice = "Train for less, or set task.train_data.is_training=true if that lets the task repeat its data. Write:"
        yield problem_at("trainer.train_steps", config=run.params, message=message, advice=advice, value=n_known)
    validation = run.outline.validation
    n_known = n_batches(validation)
    path = "trainer.validation_steps"
    if validation is not None and is_stream(validation.data) and n_known is None and config.validation_steps == -1:
        advice = "Say how many batches to take, or set task.validation_data.is_training=false if that ends them. Write:"
        message = "is -1, for all batches, but the validation data has no end."
        yield problem_at(path, config=run.params, message=message, advice=advice, value=100)


def _metric_problems(run: Preflight) -> Iterator[Problem]:
    """The metric that decides what is best is one that is measured."""
    config, validation = run.params.trainer, run.outline.validation
    metric = config.best_checkpoint_eval_metric
    if validation is None or run.has_host_metrics or not config.keeps_best:
        return
    if metric_name(metric) not in validation.metrics:
        close = nearest(metric, validation.metrics) or validation.metrics[0]
        message = f"is {metric}, which is not measured."
        advice = f"{type(run.trainer.task).__name__} measures: {', '.join(sorted(validation.metrics))}. Write:"
        yield problem_at(BEST, config=run.params, message=message, advice=advice, value=close)


def _start_problems(run: Preflight) -> Iterator[Problem]:
    """What the run starts from fits its model."""
    path = run.resumes_from
    if path is not None:
        yield from _resume_problems(run, path)
    elif run.mode.trains and not run.params.trainer.saves and run.params.trainer.keeps_best:
        yield from _earlier_best_problems(run)
    elif run.mode.needs_checkpoint and not run.trainer.task.starts_from:
        message = (
            f"There is no checkpoint file in model_dir `{run.trainer.model_dir}`, so there is nothing to evaluate."
        )
        yield Problem(message, DEFAULT, advice="Train first (--mode=train), or give the model_dir of a run.")


def _earlier_best_problems(run: Preflight) -> Iterator[Problem]:
    """A run that begins anew each time does not go on with the best of another."""
    for path in best_files(run.trainer.model_dir / run.params.trainer.best_checkpoint_export_subdir):
        message = f"`{path}` is of an earlier run, which cannot be gone on with: it has left no other checkpoint file."
        yield Problem(message, DEFAULT, advice="Remove it, or give another model_dir.")


def _change_problems(run: Preflight) -> Iterator[Problem]:
    """What the run has been so far is what it is now."""
    step, changes = run.changes
    refused = [change for change in changes if change.matters]
    if refused and not run.allow_changes:
        listed = "\n".join(f"  {change}" for change in refused)
        message = f"The run in `{run.trainer.model_dir}` would go on from step {step} as another run:\n{listed}"
        advice = "Set it back, give another model_dir, or go on all the same: --allow_changes"
        yield Problem(message, DEFAULT, advice=advice)


def _resume_problems(run: Preflight, path: Path) -> Iterator[Problem]:
    try:
        differences = storage.find_differences(storage.peek_manifest(path), run.outline.checkpoint)
    except CheckpointFileError:
        # The run skips a damaged file when it starts, and says so.
        return
    if differences:
        message = f"The run would resume from `{path}`, which holds another structure than it needs:\n{differences}"
        yield Problem(message, DEFAULT, advice="Use the model and optimizer that wrote it, or another model_dir.")


def warm_start_problems(run: Preflight) -> Iterator[Problem]:
    """Yields why the parameters at step 0 would not be what the task asks for; a run finds out when it reads them."""
    init_checkpoint = run.params.task.init_checkpoint
    # A checkpoint that does not exist is a problem of the mode, unless it is of a pretraining that has not begun.
    is_there = Path(init_checkpoint).exists() and (not run.mode.follows or newest_file(Path(init_checkpoint)))
    if not run.mode.trains or run.resumes_from is not None or not is_there:
        return
    checkpoint = run.outline.checkpoint

    def initialized(variables: Variables) -> dict[str, Any]:
        return dict(start_of(run.trainer.task)(BoundModel(run.outline.model, params={}).with_variables(variables)))

    adapters = run.outline.adapters
    variables = checkpoint.variables if adapters is None else adapters.plain(checkpoint.variables)
    try:
        jax.eval_shape(initialized, variables)
    except TrellisError as error:
        yield Problem(str(error), DEFAULT, "task.init_checkpoint")
    except jax.errors.JAXTypeError:
        # The task looks at the values of its parameters, and there are none before the run.
        return


def adapter_problems(run: Preflight) -> Iterator[Problem]:
    """Yields why the adapters that a run is to start from are none of its own; a run finds out when it reads them."""
    config, adapters, task = run.params.trainer.lora, run.outline.adapters, run.trainer.task
    if config is None or adapters is None or not run.mode.trains or run.resumes_from is not None:
        return
    # One that does not exist is a problem of the mode.
    if not config.init_adapter or not Path(config.init_adapter).is_dir() or not isinstance(task, PeftTask):
        return
    trained, _, _ = adapters.shares(run.outline.checkpoint.variables)
    try:
        task.read_peft(config.init_adapter, config=config, shapes=parameters_by_path(trained))
    except TrellisError as error:
        yield Problem(str(error), DEFAULT, "trainer.lora.init_adapter")


def _memory_problems(run: Preflight) -> Iterator[Problem]:
    """What is held between two steps has room on a device."""
    limit, needed = device_memory(), sum(run.memory.values())
    if limit is not None and needed > limit:
        message = f"The run holds {size_text(needed)} on each device, which has {size_text(limit)}."
        advice = "Share the parameters out over devices (runtime.mesh), or take a smaller model or batch."
        yield Problem(message, DEFAULT, advice=advice)


def _disk_problems(run: Preflight) -> Iterator[Problem]:
    """The checkpoint files can be read again, and have room on the disk."""
    try:
        storage.check_readable(run.trainer.model_dir)
    except ArgumentError as error:
        yield Problem(str(error), DEFAULT)
    disk = run.disk
    if run.mode.trains and disk.total > disk.free:
        message = (
            f"The checkpoint files take up to {size_text(disk.total)} ({disk.n_files} of {size_text(disk.file)}), "
            f"but where `{run.trainer.model_dir}` lies there are {size_text(disk.free)} left."
        )
        advice = "Make room, give another model_dir, or keep fewer: --set=trainer.max_to_keep=1"
        yield Problem(message, DEFAULT, advice=advice)


def n_batches(side: Outline | None) -> int | None:
    """How many batches a side has, where that is known."""
    data = None if side is None else side.data
    return data.n_batches if is_stream(data) and isinstance(data, SizedStream) else None


def n_bytes(tree: PyTree) -> int:
    """What the arrays of a tree take up."""
    return sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _bytes_on_each(shapes: PyTree) -> int:
    """What the arrays take up on each of the devices that they are shared out over."""
    leaves = jax.tree.leaves(shapes)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def size_text(n_bytes: int) -> str:
    """A size for people, such as `1.2 MB`."""
    return describe_size(n_bytes).lstrip("=~ ")


def device_memory() -> int | None:
    """The bytes of a device's memory, where its platform tells them."""
    statistics: dict[str, int] = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit")


CHECKS: tuple[Callable[[Preflight], Iterator[Problem]], ...] = (
    _split_problems,
    _length_problems,
    _metric_problems,
    _start_problems,
    _change_problems,
    _memory_problems,
    _disk_problems,
)
"""All checks that need the trainer; those that need the config alone are `mode_problems`."""


def check_batch_counts(outline: StageOutline) -> None:
    """Raises an error in all processes if their data does not have as many batches: they would wait for each other."""
    sides = {"training data": outline.train, "validation data": outline.validation}
    data = {name: side.data for name, side in sides.items() if side is not None}
    own = {name: each.n_batches for name, each in data.items() if is_stream(each) and isinstance(each, SizedStream)}
    everybody = gathered("counting the batches of the data", own)
    for name in own:
        counts = [counts.get(name) for counts in everybody]
        if len(set(counts)) > 1:
            listed = ", ".join(f"{process_name(index)} has {count}" for index, count in enumerate(counts))
            raise RunFailedError(
                f"The {name} does not have as many batches everywhere: {listed}. Give all machines the same files."
            )
