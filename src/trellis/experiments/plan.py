"""What `trellis plan` prints: a run before its first step, for people."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from trellis.aliases import PyTree
from trellis.config import DEFAULT, Problem, without_effect
from trellis.data import CountedStream, is_stream
from trellis.errors import ArgumentError, DataError, TrellisError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.lengths import derive_lengths
from trellis.experiments.mode import Mode, get_mode, mode_problems
from trellis.experiments.preflight import (
    Preflight,
    adapter_problems,
    n_batches,
    n_bytes,
    size_text,
    warm_start_problems,
)
from trellis.experiments.replicas import describe_together
from trellis.experiments.reports import leaves_of
from trellis.experiments.run import build_task, build_trainer, find_checkpoint
from trellis.experiments.step_cost import short_time
from trellis.extensions import newest_file
from trellis.loops import Outline, batch_size, describe_arrays, split_batch
from trellis.optimizers import WHOLE_RUN, ParameterGroupConfig, build_schedule
from trellis.remote import working_directory
from trellis.runtime import chip_peak, describe_exactness, table
from trellis.spelling import nearest
from trellis.tasks import BoundModel, Task, TaskConfig
from trellis.trainer import Trainer, computing_model, metric_name

_LABEL_WIDTH = 11
_N_TIMED_BATCHES = 5
_MOST_SECONDS_OF_BATCHES = 2.0
_MISSPELT = 0.85
"""How alike a name is to another that was probably meant."""


@dataclass(frozen=True)
class Plan:
    """What a run would do, and what is wrong with it."""

    report: str
    """Empty if the run cannot be built."""
    problems: list[Problem]


def plan_experiment(
    params: ExperimentConfig,
    *,
    mode: str,
    model_dir: str | os.PathLike[str],
    allow_changes: bool = False,
    checkpoint: str | None = None,
) -> Plan:
    """Checks a run without running it: builds its trainer, evaluates one step abstractly, and writes nothing.

    Args:
        allow_changes: As that of `run_experiment`.
        checkpoint: The same.
    """
    run_mode = get_mode(mode)
    with working_directory(model_dir, name="model_dir", writes=False, is_outline=True) as directory:
        return _plan(params, run_mode, directory, allow_changes=allow_changes, checkpoint=checkpoint)


def measured_metrics(params: ExperimentConfig) -> list[str] | None:
    """What an evaluation measures; None if that is known when it comes. Nothing is run or written."""
    mode = get_mode("train_and_eval")
    with TemporaryDirectory(prefix="trellis-") as directory:
        task, params = build_task(params, model_dir=None)
        params = derive_lengths(params, task=task, trains=True)
        trainer = build_trainer(params, mode=mode, model_dir=Path(directory), task=task)
        outline = trainer.outline(trains=False, evaluates=True)
        run = Preflight(params=params, mode=mode, trainer=trainer, outline=outline)
        return None if outline.validation is None or run.has_host_metrics else sorted(outline.validation.metrics)


def _plan(
    params: ExperimentConfig, run_mode: Mode, model_dir: Path, *, allow_changes: bool, checkpoint: str | None
) -> Plan:
    problems = list(mode_problems(params, mode=run_mode, model_dir=model_dir))
    try:
        original = params
        # A task that is given no directory writes nothing; one that resumes has written what it writes.
        resumes = newest_file(model_dir) is not None
        task, params = build_task(params, model_dir=model_dir if resumes else None)
        params = derive_lengths(params, task=task, trains=run_mode.trains or run_mode.follows)
        trainer = build_trainer(params, mode=run_mode, model_dir=model_dir, task=task)
        outline = trainer.outline(trains=run_mode.trains, evaluates=run_mode.evaluates)
        run = Preflight(
            params=params,
            mode=run_mode,
            trainer=trainer,
            outline=outline,
            allow_changes=allow_changes,
            checkpoint=find_checkpoint(checkpoint, params=params, model_dir=model_dir) if checkpoint else None,
        )
        report = "".join(f"{line}\n" for line in _report(run, original=original))
    except TrellisError as error:
        # A wrong value or a missing file is among the problems already, with its place.
        is_known = bool(problems) and isinstance(error, ArgumentError | DataError)
        return Plan("", problems if is_known else [*problems, Problem(str(error), DEFAULT)])
    problems = list(mode_problems(params, mode=run_mode, model_dir=model_dir))
    return Plan(report, [*problems, *run.problems(), *warm_start_problems(run), *adapter_problems(run)])


def _report(run: Preflight, *, original: ExperimentConfig) -> Iterator[str]:
    sections = {
        "Model": _model(run),
        "Data": _data(run),
        "Input": _input(run) if run.mode.trains else [],
        "Steps": _steps(run) if run.mode.trains else [],
        "Every": _intervals(run) if run.mode.trains else [],
        "Metrics": _metrics(run),
        "Devices": _devices(run),
        "Memory": _memory(run),
        "Disk": _disk(run) if run.mode.trains else [],
        "Together": _together(run) if run.mode.trains else [],
        "Start": _start(run),
        "Chosen": [*_filled_in(original.task, run.params.task), *_chosen(run)],
        "Writes": _writes(run),
        "No effect": [f"{idle.path} ({idle.origin}): {idle.reason}" for idle in without_effect(run.params)],
    }
    for label, lines in sections.items():
        for index, line in enumerate(lines):
            yield f"{'' if index else label:<{_LABEL_WIDTH}}{line}"


def _model(run: Preflight) -> Iterator[str]:
    params, state = run.outline.checkpoint.model_params, run.outline.checkpoint.model_state
    adapters, kind = run.outline.adapters, type(run.outline.model).__name__
    trained = run.trained if run.mode.trains else params
    if adapters is not None:
        trained, params, state = adapters.shares(run.outline.checkpoint.variables)
    n_trained = _count(trained)
    some = f", {n_trained:,} of them trained" if n_trained < _count(params) else ""
    some += "" if adapters is None else f" ({adapters.description(params)})"
    yield f"{kind}: {_count(params):,} parameters, {size_text(n_bytes(params))}{some}"
    if run.outline.n_steps != run.params.trainer.train_steps and run.mode.trains:
        yield f"of the stage that ends at step {run.outline.n_steps:,}; later stages have models of their own"
    total = max(1, _count(params))
    trees = params.items() if isinstance(params, dict) else [("all", params)]
    rows = [
        (
            f"  {name}",
            f"{_count(tree):,}",
            f"{_count(tree) / total:.1%}",
            _dtypes(tree),
            size_text(n_bytes(tree)),
            *([_frozen_share(tree, trained.get(name) if isinstance(params, dict) else trained)] if some else []),
        )
        for name, tree in trees
    ]
    yield from table(rows, alignment="<>")
    yield from (f"  beside them {name}: {_count(tree):,} values" for name, tree in state.items())
    side = run.outline.train or run.outline.validation
    if side is not None and type(run.trainer.task).train_step is Task.train_step:
        yield f"gives {describe_arrays(_outputs(run, side))}"


def _outputs(run: Preflight, side: Outline) -> PyTree:
    """The shapes of what the model makes of a batch."""
    model = computing_model(run.outline.model, runtime=run.params.runtime, adapters=run.outline.adapters)

    def outputs(params: PyTree, model_state: PyTree) -> PyTree:
        return BoundModel(model, params=params, model_state=model_state)(split_batch(side.batch)[0])

    return jax.eval_shape(outputs, run.outline.checkpoint.model_params, run.outline.checkpoint.model_state)


def _data(run: Preflight) -> Iterator[str]:
    for name, side in (("training", run.outline.train), ("validation", run.outline.validation)):
        if side is None:
            continue
        size, n_known = batch_size(side.batch), n_batches(side)
        counted = _n_examples(side)
        of = f"; {counted:,} examples, {counted / size:,.1f} batches an epoch" if counted else ""
        ends = "" if n_known is None else f"; {n_known:,} batches"
        yield f"{name}: batches of {size}, {describe_arrays(side.batch)}{of}{ends}"
    yield from run.trainer.task.plan_notes()


def _input(run: Preflight) -> Iterator[str]:
    """Yields how long a batch takes to make, and what a step takes at least."""
    side, devices = run.outline.train, run.outline.placement.devices
    # Iterators would be advanced by it.
    if side is None or not is_stream(side.data) or n_batches(side) == 0:
        return
    seconds = _batch_seconds(side)
    yield f"a batch takes {short_time(seconds)} to make on this machine"
    peak = chip_peak(devices[0].device_kind)
    flops = f"a step is about {side.flops:.3g} FLOP"
    if peak is None:
        yield f"{flops}; the peak of {devices[0].device_kind} is not known, and so not how long it waits for input"
        return
    least = side.flops / (len(devices) * peak.flops)
    share = max(0.0, 1 - least / max(seconds, 1e-9))
    wait = f"would wait for input for {100 * share:.0f} % of the time" if share else "would not wait for input"
    yield f"{flops}, {short_time(least)} at {peak}: if it came to that peak, it {wait}"


def _batch_seconds(side: Outline) -> float:
    """How long the quickest of a few batches takes to make; the first ones may read what the others find in memory."""
    quickest = math.inf
    started = time.perf_counter()
    n_known = n_batches(side)
    for step in range(_N_TIMED_BATCHES if n_known is None else min(_N_TIMED_BATCHES, n_known)):
        began = time.perf_counter()
        side.data.batch(step)
        quickest = min(quickest, time.perf_counter() - began)
        if time.perf_counter() - started > _MOST_SECONDS_OF_BATCHES:
            break
    return quickest


def _steps(run: Preflight) -> Iterator[str]:
    config, side = run.params.trainer, run.outline.train
    n_steps, optimization = config.train_steps, config.optimizer_config
    if side is not None:
        n_seen, counted = n_steps * batch_size(side.batch), _n_examples(side)
        epochs = f", {n_seen / counted:.3g} epochs" if counted else ""
        parts = f", each batch in {config.n_microbatches} parts" if config.n_microbatches > 1 else ""
        yield f"{n_steps:,}, which see {n_seen:,} examples{epochs}{parts}"
    average = f", averaged with a decay of {optimization.ema.average_decay:g}" if optimization.ema else ""
    yield f"optimizer: {optimization.optimizer.type or 'the own one of the task'}{average}"
    rate, warmup = optimization.learning_rate, optimization.warmup
    if rate.type is None:
        return
    n_warmup = 0 if warmup.type is None else warmup.get().warmup_steps or 0
    yield f"warm-up: {f'{warmup.type}, {n_warmup:,} steps' if n_warmup else 'none'}"
    schedule = build_schedule(optimization, n_steps=n_steps)
    marks = sorted({0, min(n_warmup, n_steps), n_steps // 2, n_steps})
    values = ", ".join(f"{float(schedule(step)):.3g} at step {step:,}" for step in marks)
    yield f"learning rate: {rate.type}, {values}"
    yield from (f"  {_describe_group(group)}" for group in optimization.groups)


def _describe_group(group: ParameterGroupConfig) -> str:
    layers = "" if group.layer_decay is None else f", {group.layer_decay:g} of that in each layer before the last"
    decay = "" if group.weight_decay is None else f", weight decay {group.weight_decay:g}"
    return f"{group.title}: {group.learning_rate_factor:g} times that{layers}{decay}"


def _intervals(run: Preflight) -> Iterator[str]:
    config = run.params.trainer
    things = {"evaluation": config.validation_interval} if run.mode.evaluates_while_training else {}
    things |= {"checkpoint file": config.checkpoint_interval} if config.saves else {}
    # Whatever a loop stops for is reported with the metrics of the steps before it.
    periods = {config.steps_per_loop, config.summary_interval, *things.values()}
    for interval in sorted(periods):
        is_multiple = any(interval % period == 0 for period in periods if period < interval)
        names = [*([] if is_multiple else ["training metrics"]), *(name for name in things if things[name] == interval)]
        if names:
            yield f"{interval:,} steps: {', '.join(names)}"
    yield "and all of it at the last step"


def _metrics(run: Preflight) -> Iterator[str]:
    config, outline = run.params.trainer, run.outline
    if outline.train is not None:
        yield f"train: {', '.join(sorted(outline.train.metrics))}"
    if outline.validation is None:
        return
    more = ", and what the task adds on the host" if run.has_host_metrics else ""
    yield f"eval: {', '.join(sorted(outline.validation.metrics)) or 'none on the devices'}{more}"
    if config.keeps_best:
        metric = metric_name(config.best_checkpoint_eval_metric)
        word = "highest" if config.best_checkpoint_metric_comp == "higher" else "lowest"
        is_unknown = run.has_host_metrics and metric not in outline.validation.metrics
        close = nearest(metric, outline.validation.metrics, cutoff=_MISSPELT)
        meant = f". Did you mean {close}?" if close else ""
        hope = f" (the task has to add it on the host: this cannot be checked before{meant})" if is_unknown else ""
        yield f"best: the {word} eval/{metric}{hope}"


def _devices(run: Preflight) -> Iterator[str]:
    placement, side = run.outline.placement, run.outline.train or run.outline.validation
    used, n_parts = placement.devices, placement.n_parts
    share = f", {batch_size(side.batch) / n_parts:g} examples on each" if side and n_parts > 1 else ""
    yield f"{len(used)} of {jax.local_device_count()} {used[0].device_kind}{share}; JAX {jax.__version__}"
    yield f"steps are {describe_exactness(placement.platform, is_exact=placement.is_exact)}"
    if len(used) > 1:
        yield f"mesh: {', '.join(f'{axis} {size}' for axis, size in placement.mesh.shape.items())}"


def _memory(run: Preflight) -> Iterator[str]:
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in run.memory.items() if size)
    yield f"{size_text(sum(run.memory.values()))} on each device: {parts}"
    yield "and what the layers keep for their gradients, which is known when the step is compiled"


def _disk(run: Preflight) -> Iterator[str]:
    disk = run.disk
    if not disk.n_files:
        yield "no checkpoint files"
        return
    yield f"{size_text(disk.file)} a checkpoint file, up to {disk.n_files} more: {size_text(disk.total)}"
    yield f"{size_text(disk.free)} are free"


def _together(run: Preflight) -> Iterator[str]:
    # Runs that have stages are no replicas of each other.
    if isinstance(run.trainer, Trainer) and run.outline.train is not None and run.outline.train.flops:
        yield describe_together(run.outline)


def _start(run: Preflight) -> Iterator[str]:
    init_checkpoint = run.params.task.init_checkpoint
    if run.resumes_from is not None:
        word = "resumes from" if run.mode.trains else "evaluates"
        yield f"{word} {run.resumes_from}{', not from task.init_checkpoint' if init_checkpoint else ''}"
    elif run.mode.trains:
        source = _source(run.trainer.task)
        parts = ", ".join(run.params.task.init_parts)
        what = f"{parts} of" if parts else "parameters from"
        yield f"step 0, with {what} {source}" if source else "step 0, with new parameters"
    yield from run.notices()


def _source(task: Task) -> str:
    """Where the parameters of step 0 come from; empty if they are new."""
    names_it = type(task.task_config).starts_from is not TaskConfig.starts_from
    is_own = type(task).initialize is not Task.initialize and not names_it
    return task.starts_from or (f"{type(task).__name__}.initialize" if is_own else "")


def _chosen(run: Preflight) -> Iterator[str]:
    """What values that leave the choice to the run come to."""
    params, outline = run.params, run.outline
    rate = params.trainer.optimizer_config.learning_rate
    length = WHOLE_RUN.get(rate.type or "")
    if run.mode.trains and length and getattr(rate.get(), length) is None:
        yield f"learning_rate.{rate.type}.{length} is null: {params.trainer.train_steps:,}, the whole run"
    n_validation_batches = n_batches(outline.validation)
    if n_validation_batches is not None and params.trainer.validation_steps == -1:
        yield f"trainer.validation_steps is -1: {n_validation_batches:,}, all batches"
    for name in ("train_data", "validation_data"):
        if getattr(getattr(params.task, name), "seed", 0) is None:
            yield f"task.{name}.seed is null: {params.runtime.seed}, as runtime.seed"
    if params.runtime.mixed_precision_dtype is None:
        yield "runtime.mixed_precision_dtype is null: float32"


def _filled_in(original: TaskConfig, filled: TaskConfig) -> Iterator[str]:
    """What the task has found out by itself."""
    before = leaves_of(original)
    for path, (value, origin) in leaves_of(filled).items():
        if path not in before:
            yield f"task.{path}: {value}, {origin}"  # of a choice that was left open
        elif before[path][0] != value:
            yield f"task.{path} is {before[path][0]}: {value}, {origin}"


def _writes(run: Preflight) -> Iterator[str]:
    directory, config = run.trainer.model_dir, run.params.trainer
    if run.mode.trains:
        yield f"{directory}/params.yaml, provenance.yaml, versions.json, events.jsonl"
        files = f"regular_{{step}}, the newest {config.max_to_keep}; " if config.saves else ""
        yield f"{directory}/{files}train/ for TensorBoard"
    if run.mode.evaluates:
        yield f"{directory}/{config.validation_summary_subdir}/ for TensorBoard"
        if config.keeps_best:
            best = directory / config.best_checkpoint_export_subdir
            yield f"{best}/, the best checkpoint file, and info.json with its metrics"


def _n_examples(side: Outline) -> int | None:
    return side.data.n_examples if isinstance(side.data, CountedStream) else None


def _count(tree: PyTree) -> int:
    return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))


def _frozen_share(tree: PyTree, trained: PyTree) -> str:
    """How much of a part is frozen, in words."""
    n_frozen = _count(tree) - _count(trained)
    return f"{n_frozen:,} frozen" if _count(trained) and n_frozen else "frozen" if n_frozen else ""


def _dtypes(tree: PyTree) -> str:
    return ", ".join(sorted({str(leaf.dtype) for leaf in jax.tree.leaves(tree)}))
