"""`trellis plan`: a run, checked and described without running it."""

import argparse

from trellis.cli.experiment_flags import resolved
from trellis.cli.gin_bindings import check_gin_flags, gin_bindings
from trellis.cli.idle_flags import idle_flags
from trellis.cli.train import model_dir
from trellis.config import raise_if_any
from trellis.experiments import check_mode
from trellis.runtime import print_coloured, print_line

_COLOURS = (r"^(?P<bold>[A-Z]\w*(?: \w+)?)  ", r"^(?P<yellow>No effect)  ")


def plan(flags: argparse.Namespace) -> None:
    """Tells what a run would do, then all that is wrong with it; nothing is run or written."""
    check_mode(flags.mode)
    directory, params = model_dir(flags), resolved(flags)
    check_gin_flags(flags)
    # Names and types are right: the rest takes JAX, and is told together.
    from trellis.experiments import plan_experiment

    print_line(f"{flags.experiment}, {flags.mode}, in {directory}")
    with gin_bindings(flags):
        planned = plan_experiment(params, mode=flags.mode, model_dir=directory)
    for line in idle_flags(flags):
        print_line(line)
    if planned.report:
        print_coloured(planned.report.removesuffix("\n"), _COLOURS)
    raise_if_any(planned.problems)
    print_line("Nothing is wrong with it. `trellis train` with the same flags runs it.")
