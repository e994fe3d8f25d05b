"""`trellis data show`: what a model sees."""

import argparse

from trellis import experiments
from trellis.cli.experiments import add_experiment_flags, resolve_flags
from trellis.cli.parser import Parser
from trellis.runtime import line_width, print_coloured, print_json

_EPILOG = """\
The batches are those that `trellis train` gets with the same flags, from --step on. No model is made, and nothing is
trained or written but what is kept of the data anyway (see `trellis cache`). Statistics are of the first batches: as
many as are told.

  trellis data show --experiment=digits/classifier
  trellis data show --config_file=runs/mrpc/params.yaml --split=validation --examples=10
"""
_COLOURS = (r"^(?P<bold>Example \d+)$", r"^(?P<bold>[A-Z][a-z]+)[:, ]", r"(?P<green>█+)$", r"(?P<yellow>\S+<=\S+)")


def add_flags(parser: Parser) -> None:
    """Adds the flags that make a config, and which part of its data is shown."""
    add_experiment_flags(parser)
    parser.epilog = _EPILOG
    text = "train or validation: what is shown; the default is train"
    parser.add_flag("split", "NAME", text, choices=("train", "validation"), default="train")
    parser.add_flag("examples", "N", "how many examples are shown; the default is 3", type=_count, default=3)
    parser.add_flag(
        "step", "N", "the batch that the step after so many trains on; the default is 0", type=_count, default=0
    )
    parser.add_json_flag()


def show(flags: argparse.Namespace) -> None:
    """Prints a few examples of a side's data, and what its first batches are like."""
    params = resolve_flags(flags)
    peek = experiments.peek_data(params, side=flags.split, n_examples=flags.examples, step=flags.step)
    if flags.json:
        print_json({"experiment": flags.experiment, **peek.as_json()})
        return
    lines = experiments.describe_peek(peek, width=line_width())
    print_coloured("\n".join([f"{flags.experiment}", *lines]), _COLOURS)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number: give 0 or more")
    return int(text)
