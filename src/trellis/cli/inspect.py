"""The words that show experiments and configs; none of them imports JAX."""

import argparse

from trellis.cli.experiment_flags import add_module_flag, resolved
from trellis.cli.words import Parser
from trellis.experiments import diff_configs, list_experiments, register_experiments, show_config
from trellis.runtime import print_coloured, print_line

# A field, its value in the first config, its value in the second.
_DIFF_COLOURS = (r"^(?P<bold>\S.*)\n(?P<red>  .*)\n(?P<green>  .*)$",)


def add_diff_flags(parser: Parser) -> None:
    """Adds what `diff` compares."""
    text = "the name of an experiment, or a file such as a run's params.yaml"
    parser.add_argument("first", metavar="A", help=text)
    parser.add_argument("second", metavar="B", help="the same")
    add_module_flag(parser)


def experiments(flags: argparse.Namespace) -> None:
    """Lists the registered experiments."""
    register_experiments(flags.module)
    print_line(list_experiments().removesuffix("\n"))


def show(flags: argparse.Namespace) -> None:
    """Shows a resolved config with the origin of each value."""
    print_line(show_config(resolved(flags)).removesuffix("\n"))


def diff(flags: argparse.Namespace) -> None:
    """Shows in what two configs differ."""
    register_experiments(flags.module)
    text = diff_configs(flags.first, flags.second) or "They do not differ."
    print_coloured(text.removesuffix("\n"), _DIFF_COLOURS)
