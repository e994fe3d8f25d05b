"""`trellis replay`: a step of a run, run again and looked into."""

import argparse
import dataclasses
from collections.abc import Iterator

from trellis import experiments, runtime
from trellis.cli.experiments import add_module_flag
from trellis.cli.gin_bindings import add_gin_flags, check_gin_flags, gin_bindings
from trellis.cli.parser import Parser
from trellis.disk import local_path
from trellis.errors import ArgumentError
from trellis.experiments import read_params, register_experiments
from trellis.json_text import without_nan
from trellis.runtime import print_json, print_line, table

_EPILOG = """\
Goes on from the newest checkpoint file before the step, up to and including it, and tells of the step: its loss, what
batch it saw, the norms of its gradients, and the first array that is not finite, in the order of computing. The config
is that of the run, from its params.yaml. Nothing is written.

  trellis replay --model_dir=runs/digits --step=412
"""
_MOST_LISTED = 15


def add_flags(parser: Parser) -> None:
    """Adds which step of which run."""
    parser.epilog = _EPILOG
    parser.add_flag("model_dir", "DIR", "where the run was written", required=True)
    parser.add_flag("step", "N", "the step to run again; the first is 1", type=int, required=True)
    text = "begin at step 0 if there is no checkpoint file before the step"
    parser.add_argument("--from_start", action="store_true", help=text)
    add_module_flag(parser)
    add_gin_flags(parser)
    parser.add_json_flag()


def replay(flags: argparse.Namespace) -> None:
    """Runs a step again, and tells of it."""
    directory = local_path(flags.model_dir, name="--model_dir")
    if not directory.is_dir():
        raise ArgumentError(f"--model_dir: there is no directory `{directory}`. Give that of a run.")
    register_experiments(flags.module)
    params = read_params(directory)
    check_gin_flags(flags)
    runtime.keep_programs()
    with gin_bindings(flags):
        report = experiments.replay_step(params, model_dir=directory, step=flags.step, starts_anew=flags.from_start)
    if flags.json:
        print_json(_as_json(report))
    else:
        print_line("\n".join(_lines(report)))


def _lines(report: "experiments.StepReport") -> Iterator[str]:
    steps = "1 step was" if report.n_steps == 1 else f"{report.n_steps} steps were"
    yield f"Step {report.step}, from {report.started_from}: {steps} run again."
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in report.metrics.items())
    yield f"Loss        {report.loss:.9g}{f' ({metrics})' if metrics else ''}"
    of_run = {None: "", True: ", as the run has told", False: ", but the run has told another: its data has changed"}
    yield f"Batch       fingerprint {report.batch_digits}{of_run[report.is_batch_of_run]}"
    yield from table(
        (f"  {one.name or 'inputs'}", one.kind, f"{one.least:.6g} to {one.greatest:.6g}", _damage(one.n_not_finite))
        for one in report.batch
    )
    yield from _gradients(report)
    yield f"Not finite  {report.first_not_finite or 'nothing'}{' is the first' if report.first_not_finite else ''}"


def _gradients(report: "experiments.StepReport") -> Iterator[str]:
    if not report.gradients:
        yield "Gradients   the task's own train_step does not tell them (StepOutput.grads)"
        return
    norms = report.gradient_norms
    yield f"Gradients   norm {norms.pop(''):.6g}; by layer:"
    yield from table((f"  {name}", f"{norm:.6g}") for name, norm in norms.items())
    # What is not finite first, then what is largest.
    ordered = sorted(report.gradients, key=lambda one: (-one.n_not_finite, -one.norm if one.norm == one.norm else 0.0))
    shown = ordered[:_MOST_LISTED]
    more = f"; these are {len(shown)} of {len(ordered)}, --json has all" if len(shown) < len(ordered) else ""
    yield f"            by tensor, the largest first{more}:"
    yield from table((f"  {one.name}", one.kind, f"{one.norm:.6g}", _damage(one.n_not_finite)) for one in shown)


def _damage(n_not_finite: int) -> str:
    return f"{n_not_finite} not finite" if n_not_finite else ""


def _as_json(report: "experiments.StepReport") -> object:
    content = dataclasses.asdict(report)
    content["gradient_norms"] = {name or "all": norm for name, norm in report.gradient_norms.items()}
    return without_nan(content)
