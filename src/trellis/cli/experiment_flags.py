"""The flags that name an experiment and change its config."""

import argparse

from trellis.cli.words import Once, Parser
from trellis.errors import ArgumentError
from trellis.experiments import ExperimentConfig, recorded_experiment, register_experiments, resolve


def add_module_flag(parser: Parser) -> None:
    """Adds the flag for experiments of one's own."""
    text = "a module that registers experiments of your own: its dotted name, or a .py file; as often as you like"
    parser.add_argument("--module", action="append", default=[], metavar="NAME", help=text)


def add_experiment_flags(parser: Parser) -> None:
    """Adds the flags that `resolved` reads."""
    text = "a name that `trellis experiments` lists; a --config_file that is a run's params.yaml says it too"
    parser.add_argument("--experiment", action=Once, metavar="NAME", help=text)
    parser.set_defaults(way_out=parser.way_out)
    parser.add_argument(
        "--config_file",
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file that changes the config; as often as you like, later ones win",
    )
    parser.add_argument(
        "--params_override",
        action=Once,
        default="",
        metavar="TEXT",
        help="changes after all files: task.hidden_size=32,trainer.train_steps=2000",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="one change after all others, to the end of the text; as often as you like",
    )
    add_module_flag(parser)


def resolved(flags: argparse.Namespace, *, mode: str | None = None) -> ExperimentConfig:
    """Returns the config that the flags describe; `flags.experiment` is its name, also where a file has said it."""
    flags.experiment = flags.experiment or next(filter(None, map(recorded_experiment, flags.config_file)), None)
    if not flags.experiment:
        raise ArgumentError(f"--experiment is missing.\n{flags.way_out}")
    register_experiments(flags.module)
    return resolve(
        flags.experiment,
        config_file=flags.config_file,
        params_override=flags.params_override,
        settings=flags.set,
        mode=mode,
    )
