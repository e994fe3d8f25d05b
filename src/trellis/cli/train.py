"""`trellis train`: an experiment, run."""

import argparse
from pathlib import Path

from trellis.bindings import bound
from trellis.cli.ending import ending
from trellis.cli.experiment_flags import add_experiment_flags, resolved
from trellis.cli.gin_bindings import add_gin_flags, check_gin_flags, gin_bindings
from trellis.cli.idle_flags import add_idle_flags, idle_flags
from trellis.cli.words import Once, Parser
from trellis.config import without_effect
from trellis.errors import ArgumentError
from trellis.experiments import MODES, ExperimentConfig, check_mode
from trellis.runtime import print_line

_EPILOG = """\
Started again after any kind of end, the same command goes on where it was.
Flags of Model Garden's driver that mean nothing here, such as --tpu, are accepted, and the run says so.
Exit codes: 0 done, 2 bad input, 143 stopped by SIGTERM with everything saved.

  trellis train --experiment=digits/classifier --mode=train_and_eval --model_dir=runs/digits \\
    --config_file=small.yaml --params_override=task.hidden_size=32,trainer.train_steps=2000
"""


def add_flags(parser: Parser) -> None:
    """Adds the published flags."""
    parser.epilog = _EPILOG
    modes = f"one of {', '.join(MODES)}; the default is train_and_eval"
    parser.add_argument("--mode", action=Once, default="train_and_eval", metavar="MODE", help=modes)
    where = "where the run writes all that it leaves, and resumes from"
    parser.add_argument("--model_dir", action=Once, required=True, metavar="DIR", help=where)
    add_experiment_flags(parser)
    add_gin_flags(parser)
    steps = "the last step of the pretraining that continuous_train_and_eval follows; without it, until no file comes"
    parser.add_argument("--pretrain_steps", action=Once, type=int, metavar="N", help=steps)
    add_idle_flags(parser)


def train(flags: argparse.Namespace) -> None:
    """Runs an experiment in one of its modes; tells where it writes, what was achieved and where that lies."""
    check_mode(flags.mode)
    params = resolved(flags, mode=flags.mode)
    check_gin_flags(flags)
    settings = (f"{idle.path} has no effect ({idle.origin}): {idle.reason}." for idle in without_effect(params))
    for line in (*idle_flags(flags), *settings):
        print_line(line)
    is_evaluation = flags.mode in ("eval", "continuous_eval")
    directory = _directory(flags)
    if is_evaluation:
        print_line(f"{flags.experiment}, {flags.mode}: evaluates the checkpoint files in {directory}.")
    else:
        steps, epochs = params.trainer.train_steps, params.trainer.train_epochs
        length = f"up to step {steps}" if steps else f"{epochs:g} epochs of its data"
        print_line(f"{flags.experiment}, {flags.mode}, {length}.")
        print_line(f"It writes to {directory}, and resumes from there if it is interrupted.")
    logs = _run(params, flags, directory)
    print_line("\n".join(ending(params, directory, logs=logs, has_trained=not is_evaluation)))


def _run(params: ExperimentConfig, flags: argparse.Namespace, directory: Path) -> dict[str, float]:
    # JAX is loaded here, when all that can be known without it is known to be right.
    from trellis.experiments import prepare_experiment
    from trellis.runtime import keep_programs

    keep_programs()
    with gin_bindings(flags) as write_operative_config:
        run = bound(prepare_experiment)(
            params, mode=flags.mode, model_dir=directory, pretrain_steps=flags.pretrain_steps
        )
        file = directory / f"operative_config.{flags.mode}.gin"
        write_operative_config(file)
        try:
            _, logs = run()
        finally:
            write_operative_config(file)
    return logs


def model_dir(flags: argparse.Namespace) -> Path:
    """Returns the directory that the flags name."""
    if not flags.model_dir:
        raise ArgumentError("--model_dir is empty: a run needs a directory of its own, as in --model_dir=runs/digits.")
    return Path(flags.model_dir)


def _directory(flags: argparse.Namespace) -> Path:
    """Returns the directory of the run, made if the run will write to it."""
    directory = model_dir(flags)
    if flags.mode == "eval" and not directory.is_dir():
        raise ArgumentError(f"--model_dir: there is no directory `{directory}` to evaluate. Give that of a run.")
    try:
        # Before JAX is loaded, so that one that cannot be is told at once; a continuous evaluation may come first.
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"--model_dir: `{directory}` cannot be made: {error.strerror}. Give a directory that can be written to."
        ) from None
    return directory
