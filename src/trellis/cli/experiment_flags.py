"""The flags that name an experiment and change its config."""

import argparse

from trellis.cli.words import Once, Parser
from trellis.experiments import ExperimentConfig, register_experiments, resolve


def add_module_flag(parser: Parser) -> None:
    """Adds the flag for experiments of one's own."""
    text = "a module that registers experiments of your own: its dotted name, or a .py file; as often as you like"
    parser.add_argument("--module", action="append", default=[], metavar="NAME", help=text)


def add_experiment_flags(parser: Parser) -> None:
    """Adds the flags that `resolved` reads."""
    parser.add_argument(
        "--experiment", action=Once, required=True, metavar="NAME", help="a name that `trellis experiments` lists"
    )
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
    """Returns the config that the flags describe."""
    register_experiments(flags.module)
    return resolve(
        flags.experiment,
        config_file=flags.config_file,
        params_override=flags.params_override,
        settings=flags.set,
        mode=mode,
    )
