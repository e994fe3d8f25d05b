"""`trellis train`: an experiment, run."""

import argparse
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trellis import experiments, extensions, loops, runtime, trainer
from trellis.cli.experiments import add_experiment_flags, resolve_flags
from trellis.cli.gin_bindings import add_gin_flags, check_gin_flags, gin_bindings
from trellis.cli.parser import Parser
from trellis.cli.runs import goodput_line
from trellis.cli.seeds import train_seeds
from trellis.config import without_effect
from trellis.disk import scheme_of
from trellis.errors import ArgumentError
from trellis.experiments import MODES, ExperimentConfig, Mode, get_mode
from trellis.remote import shown, working_directory
from trellis.runtime import print_line
from trellis.user_cache import cache_root, cache_size

_EPILOG = """\
Started again after any kind of end, the same command goes on where it was.
Flags of Model Garden's driver and of absl that mean nothing here, such as --tpu, are accepted, and the run says so.
Processes train together that JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or TF_CONFIG, tell so.
Exit codes: 0 done, 2 bad input, 75 a process was lost, 143 stopped by SIGTERM with everything saved.

  trellis train --experiment=digits/classifier --mode=train_and_eval --model_dir=runs/digits \\
    --config_file=small.yaml --params_override=task.hidden_size=32,trainer.train_steps=2000
"""
_HUB = "models from elsewhere are named by task.hub_module_url or task.init_checkpoint"
_TPU = "JAX finds the TPUs of its host itself"

_IDLE: Mapping[str, str] = {
    "tpu": _TPU,
    "tpu_platform": _TPU,
    "tf_data_service": "each process reads the data itself",
    "tfhub_handle": _HUB,
    "tfhub_cache_dir": _HUB,
    "tflex_output_uri": "all output goes to --model_dir",
    "enable_async_checkpointing": "checkpoint files are always written in the background",
    "noenable_async_checkpointing": "checkpoint files are always written in the background",
}
"""Flags of the published driver that do nothing here, each with the reason. Its command lines work as they are."""


def add_flags(parser: Parser) -> None:
    """Adds the published flags."""
    parser.epilog = _EPILOG
    modes = f"one of {', '.join(MODES)}; the default is train_and_eval"
    parser.add_flag("mode", "MODE", modes, default="train_and_eval")
    where = "where the run writes all that it leaves, and resumes from"
    parser.add_flag("model_dir", "DIR", where, address="kept", required=True)
    add_experiment_flags(parser)
    add_gin_flags(parser)
    steps = "the last step of the pretraining that continuous_train_and_eval follows; without it, until no file comes"
    parser.add_flag("pretrain_steps", "N", steps, type=int)
    which = "what --mode=eval evaluates: best, a step, or a checkpoint file; the default is the newest"
    parser.add_flag("checkpoint", "WHICH", which, address="fetched")
    steps = "trace the steps after START up to STOP into DIR/profile, and print the ten largest operations"
    parser.add_flag("profile", "START:STOP", steps)
    changes = "go on with a run although its data, seed, batch size, optimizer, model or precision have changed"
    parser.add_argument("--allow_changes", action="store_true", help=changes)
    text = "train once for each of these seeds, into DIR/seed_N, and tell the mean of their metrics: 0,1,2"
    parser.add_flag("seeds", "N,N", text)
    text = "with --seeds: train all of them at once, as one program on one device"
    parser.add_argument("--together", action="store_true", help=text)
    parser.add_idle_flags(_IDLE)


def train(flags: argparse.Namespace) -> None:
    """Runs an experiment in one of its modes; prints where it writes, its metrics and where its files are."""
    if runtime.is_parameter_server():
        print_line(runtime.NEEDS_NO_SERVER)
        return
    if flags.together and flags.seeds is None:
        raise ArgumentError("--together is for --seeds, and there are none. Give some: --seeds=0,1,2 --together")
    if flags.seeds is not None:
        train_seeds(flags, train)
        return
    loops.begin_command()
    mode = get_mode(flags.mode)
    check_checkpoint(flags)
    if scheme_of(flags.model_dir):
        resolve_flags(flags)  # names and types, before anything is fetched
    with working_directory(
        given_model_dir(flags), name="--model_dir", writes=True, takes_over=mode.trains
    ) as directory:
        lines = _train(flags, mode, directory)
    print_line("\n".join(lines))


def _train(flags: argparse.Namespace, mode: Mode, directory: Path) -> list[str]:
    """Runs an experiment in a directory; returns what there is to say in the end."""
    params = resolve_flags(flags, mode=flags.mode, model_dir=str(directory))
    check_gin_flags(flags)
    profiled = profiled_steps(flags, params)
    settings = (f"{idle.path} has no effect ({idle.origin}): {idle.reason}." for idle in without_effect(params))
    for line in (*flags.idle, *settings):
        print_line(line)
    _make_directory(directory, mode, starts_from=params.task.starts_from)
    if not mode.trains:
        print_line(f"{flags.experiment}, {flags.mode}: evaluates the checkpoint files in {shown(directory)}.")
    else:
        steps, epochs = params.trainer.train_steps, params.trainer.train_epochs
        length = f"up to step {steps}" if steps else f"{epochs:g} epochs of its data"
        print_line(f"{flags.experiment}, {flags.mode}, {length}.")
        resumes = ", and resumes from there if it is interrupted" if params.trainer.saves else ""
        print_line(f"It writes to {shown(directory)}{resumes}.")
    logs = _run(params, flags, directory, profiled)
    if not runtime.is_first_process():
        return [f"Done. The first of the processes has written to {shown(directory)}."]
    return list(_ending(params, directory, logs=logs, has_trained=mode.trains))


def _run(
    params: ExperimentConfig, flags: argparse.Namespace, directory: Path, profiled: tuple[int, int] | None
) -> dict[str, float]:
    # These load JAX, when all that can be known without it is known to be right.
    runtime.join_processes()
    with runtime.failing_together():
        runtime.keep_programs()
        size = cache_size()
        if size and runtime.is_first_process():
            shown = runtime.describe_size(size).lstrip("=~ ")
            print_line(f"Data and programs that were made before are in {cache_root()}, {shown}: see trellis cache.")
        profiler = [extensions.Profiler(directory, start=profiled[0], stop=profiled[1])] if profiled else []
        file = directory / f"operative_config.{flags.mode}.gin"
        with gin_bindings(flags) as write_operative_config:
            _, logs = experiments.run_on_processes(
                params,
                mode=flags.mode,
                model_dir=directory,
                pretrain_steps=flags.pretrain_steps,
                allow_changes=flags.allow_changes,
                checkpoint=flags.checkpoint,
                extensions=profiler,
                when_ready=lambda: write_operative_config(file) if runtime.is_first_process() else None,
                bindings=[*(Path(name).read_text() for name in flags.gin_file), *flags.gin_params],
            )
    return logs


def _ending(params: ExperimentConfig, directory: Path, *, logs: dict[str, float], has_trained: bool) -> Iterator[str]:
    """Yields lines that say what the run has reached, and where it is."""
    if has_trained:
        # A run that leaves no events tells nothing of its time.
        with suppress(ArgumentError):
            time = goodput_line(extensions.read_goodput(directory))
            yield f"Time: {time}. More: trellis runs time {shown(directory)}"
    last = _last_summary(directory, is_saved=params.trainer.saves) if has_trained else None
    steps = params.trainer.train_steps
    if last and steps and last["step"] > steps:
        yield f"Done: nothing was trained. Step {last['step']} was reached before; trainer.train_steps is {steps}."
    else:
        yield f"Done: step {last['step']}{f' of {steps}' if steps else ''}." if last else "Done."
    # Where JSON has no number, an event has its name: "nan".
    values = {_shown_name(name): value for name, value in logs.items()} or _values(last)
    yield from (f"  {name} {float(value):.6g}" for name, value in values.items())
    subdir = params.trainer.best_checkpoint_export_subdir
    if subdir:
        yield from (f"The best:   {shown(path)}" for path in extensions.best_files(directory / subdir))
    yield f"All of it:  {shown(directory)}"
    yield f"To look at: tensorboard --logdir {shlex.quote(shown(directory))}"


def _shown_name(published: str) -> str:
    """What the screen and the summaries call a metric of an evaluation."""
    if published.startswith("best_"):
        return f"best {_shown_name(published.removeprefix('best_'))}"
    return f"eval/{trainer.metric_name(published)}"


def _values(summary: dict[str, Any] | None) -> dict[str, float]:
    """Returns the metrics of the last evaluation; for a run that does not evaluate, its loss."""
    metrics: dict[str, dict[str, float]] = summary["metrics"] if summary else {}
    if "eval" in metrics:
        return {f"eval/{name}": value for name, value in metrics["eval"].items()}
    return {f"train/{name}": value for name, value in metrics.get("train", {}).items() if name == "loss"}


def _last_summary(directory: Path, *, is_saved: bool) -> dict[str, Any] | None:
    """Returns the last summary of a run that is not of lost work; None if there is none.

    Args:
        is_saved: Whether checkpoint files were written, which tell how far the run has come.
    """
    file = extensions.newest_file(directory)
    last_step = -1 if file is None else int(file.name.removesuffix(".replaced").rpartition("_")[2])
    summaries = extensions.read_summaries(directory / "events.jsonl")
    steps = [step for step in summaries if step <= last_step or not is_saved]
    return summaries[max(steps)] if steps else None


def profiled_steps(flags: argparse.Namespace, params: ExperimentConfig) -> tuple[int, int] | None:
    """Returns the last step before those to trace, and the last of them; None if none are to be traced."""
    text, mode = flags.profile, get_mode(flags.mode)
    if text is None:
        return None
    if not mode.trains or mode.follows:
        raise ArgumentError(f"--profile is for a training, but the mode is {mode}. Leave out one of them.")
    start, colon, stop = text.partition(":")
    if not colon or not start.isdecimal() or not stop.isdecimal() or int(stop) <= int(start):
        raise ArgumentError(
            f"--profile is {text!r}. Give the last step before those to trace, and the last of them: --profile=100:120"
        )
    n_steps = params.trainer.train_steps
    if 0 < n_steps <= int(start):
        raise ArgumentError(
            f"--profile={text} begins after step {start}, but the run ends at step {n_steps} (trainer.train_steps). "
            f"Give earlier steps: --profile={n_steps // 2}:{n_steps}"
        )
    return int(start), int(stop)


def check_checkpoint(flags: argparse.Namespace) -> None:
    """Raises an error if a checkpoint is chosen in a mode that chooses its files itself."""
    if flags.checkpoint is not None and not get_mode(flags.mode).needs_checkpoint:
        raise ArgumentError(f"--checkpoint is for --mode=eval, but the mode is {flags.mode}. Leave out one of them.")


def given_model_dir(flags: argparse.Namespace) -> str:
    """Returns the directory that the flags name."""
    if not flags.model_dir:
        raise ArgumentError("--model_dir is empty: a run needs a directory of its own, as in --model_dir=runs/digits.")
    return str(flags.model_dir)


def _make_directory(directory: Path, mode: Mode, *, starts_from: str) -> None:
    """Makes the directory of a run, if the run will write to it.

    Args:
        starts_from: Weights that can be evaluated without a run; empty if there are none.
    """
    if mode.needs_checkpoint and not directory.is_dir() and not starts_from:
        raise ArgumentError(f"--model_dir: there is no directory `{directory}` to evaluate. Give that of a run.")
    # Before JAX is loaded, so that an error comes at once. An evaluation that follows a run may be started first.
    make_directory(directory)


def make_directory(directory: Path) -> None:
    """Makes the directory that the flags name."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"--model_dir: `{directory}` cannot be made: {error.strerror}. Give a directory that can be written to."
        ) from None
