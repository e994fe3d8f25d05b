"""`trellis runs`: what runs have left behind, looked at without JAX."""

import argparse
import dataclasses
import time as clock
from collections.abc import Iterator
from pathlib import Path

from trellis.cli.parser import Parser
from trellis.errors import ArgumentError
from trellis.experiments import Comparison, Difference, RunRecord, compare_runs
from trellis.extensions import BUCKET_NAMES, Goodput, read_goodput
from trellis.reports import RunLedger, find_runs, read_run
from trellis.runtime import (
    describe_duration,
    describe_metric,
    print_coloured,
    print_error,
    print_json,
    print_line,
    table,
)

_EPILOG = """\
A run tells the fingerprints of its state and of its last batch at every checkpoint file, and its metrics at every
report: that is where two runs can be seen to part. What tells of time is not compared.
Exit codes: 0 equal to the bit at all steps that both tell of, 1 they part, 2 bad input.

  trellis runs diff runs/a runs/b
"""
_SHOW_EPILOG = """\
A run is running while a process owns its directory; it has failed if an error ended it, and is stale if nobody is at
work on it though it did not come to its end. Its best value is that of the metric that chooses its best checkpoint.
See also: trellis runs diff A B, trellis runs time DIR. A folder called diff is given as ./diff

  trellis runs runs
"""
_TIME_EPILOG = """\
Every second from the start of the first attempt to the last sign of life of the last one is in one row. Lost work is
what was done after the checkpoint that a later attempt, or a recovery, went back to; downtime lies between attempts,
and has in it what a killed process did after its last sign of life.
"""
_STATE_COLOURS = (
    r"  (?P<green>done)  ",
    r"  (?P<blue>running)  ",
    r"  (?P<red>failed)  ",
    r"  (?P<yellow>stale)  ",
)
_N_LOSSES = 3
_LEAST_LOSS = 0.01
_EQUAL, _PARTED = 0, 1
_MOST_LISTED = 5


def add_show_flags(parser: Parser) -> None:
    """Adds whose runs, and in what form."""
    parser.epilog = _SHOW_EPILOG
    parser.add_argument("folder", metavar="DIR", help="a folder with runs in it, at any depth")
    parser.add_json_flag()


def show(flags: argparse.Namespace) -> None:
    """Lists the runs in a folder."""
    runs = [read_run(directory) for directory in find_runs(flags.folder)]
    if flags.json:
        print_json({"runs": [_run_as_json(run) for run in runs]})
        return
    for run in runs:
        if run.damage and run.curves:
            print_error(f"{run.model_dir}: {run.damage}")
    if not runs:
        print_line(f"There are no runs in {flags.folder}.")
        return
    heads = ("run", "experiment", "state", "step", "best", "age")
    print_coloured("\n".join(table([heads, *map(_run_row, runs)], alignment="<<<><<")), _STATE_COLOURS)


def _run_row(run: RunLedger) -> tuple[str, ...]:
    metric = run.main_metric
    best = run.best(metric) if metric else None
    told = f"{metric} {describe_metric(best.value)} (step {best.step})" if best else "—"
    age = describe_duration(max(0.0, clock.time() - run.last_time)) if run.last_time else "—"
    return str(run.model_dir), run.experiment or "—", run.state, str(run.step), told, age


def _run_as_json(run: RunLedger) -> dict[str, object]:
    metric = run.main_metric
    best = run.best(metric) if metric else None
    return {
        "model_dir": str(run.model_dir),
        "experiment": run.experiment,
        "state": run.state,
        "step": run.step,
        "last_time": run.last_time,
        "best": best and {"metric": metric, "value": best.value, "step": best.step},
        "metrics": {name: curve.last.value for name, curve in run.curves.items()},
        "damage": run.damage,
    }


def add_diff_flags(parser: Parser) -> None:
    """Adds what `diff` compares, and in what form it tells of it."""
    parser.epilog = _EPILOG
    parser.add_argument("first", metavar="A", help="the model_dir of a run")
    parser.add_argument("second", metavar="B", help="that of another")
    parser.add_json_flag()


def diff(flags: argparse.Namespace) -> int:
    """Tells where two runs part; returns 0 if they do not, else 1."""
    runs = [RunRecord(flags.first), RunRecord(flags.second)]
    for run in runs:
        if run.damage:
            print_error(run.damage)
    comparison = compare_runs(*runs)
    if flags.json:
        print_json(_as_json(comparison))
    else:
        print_line("\n".join(_lines(comparison)))
    return _EQUAL if comparison.is_equal else _PARTED


def _as_json(comparison: Comparison) -> dict[str, object]:
    content = dataclasses.asdict(comparison)
    content["config"] = comparison.config.splitlines()
    return {"is_equal": comparison.is_equal, "parted_at": comparison.parted_at, **content}


def _lines(comparison: Comparison) -> Iterator[str]:
    if comparison.config:
        yield "Their configs differ:"
        yield from (f"  {line}" for line in comparison.config.splitlines())
    if comparison.lonely_steps:
        steps = ", ".join(map(str, comparison.lonely_steps[:_MOST_LISTED]))
        more = ", …" if len(comparison.lonely_steps) > _MOST_LISTED else ""
        yield f"Only one of them tells of step {steps}{more}: their intervals differ, or their files were cut."
    if not comparison.n_fingerprints:
        yield "They have no fingerprints in common, so that only their metrics are compared."
    yield describe_comparison(comparison)
    groups = {
        "state": [one for one in comparison.tensors if not one.name.startswith("batch")],
        "batch": [one for one in comparison.tensors if one.name.startswith("batch")],
        "metrics": comparison.metrics,
    }
    yield from table(_row(name, one) for name, group in groups.items() for one in group[:_MOST_LISTED])
    n_left_out = sum(max(0, len(group) - _MOST_LISTED) for group in groups.values())
    if n_left_out:
        yield f"  … and {n_left_out} more values at these steps: see --json."


def describe_comparison(comparison: Comparison) -> str:
    """Up to where two runs are the same, in a line."""
    n_fingerprints, n_summaries = comparison.n_fingerprints, comparison.n_summaries
    seen = f"{n_fingerprints} fingerprints and {n_summaries} reports of metrics"
    if comparison.parted_at is None:
        return f"Equal to the bit up to step {comparison.last_step}, the last that both have: {seen}."
    return f"They part: the first step that differs is {comparison.parted_at}. Compared were {seen}."


def _row(what: str, difference: Difference) -> tuple[str, str, str, str, str]:
    values = [_shown(value) for value in (difference.first, difference.second)]
    return f"  {what}", f"step {difference.step}", difference.name, values[0], values[1]


def _shown(value: str | float | None) -> str:
    return "—" if value is None else value if isinstance(value, str) else f"{value:.9g}"


def add_time_flags(parser: Parser) -> None:
    """Adds whose time, and in what form."""
    parser.epilog = _TIME_EPILOG
    parser.add_argument("model_dir", metavar="DIR", help="the model_dir of a run")
    parser.add_json_flag()


def time(flags: argparse.Namespace) -> None:
    """Prints where the time of a run went."""
    directory = Path(flags.model_dir)
    if not directory.is_dir():
        raise ArgumentError(f"There is no directory `{directory}`. Give the model_dir of a run.")
    goodput = read_goodput(directory)
    if flags.json:
        print_json(goodput.as_json())
    else:
        print_line("\n".join(_report(directory, goodput)))


def _report(directory: Path, goodput: Goodput) -> Iterator[str]:
    attempts = f"{goodput.n_attempts} attempt{'s' if goodput.n_attempts > 1 else ''}"
    yield f"{directory}: {attempts}, {describe_duration(goodput.total)}, up to step {goodput.step}."
    shares = goodput.shares
    rows = [
        (f"  {name}", describe_duration(goodput.seconds[bucket]), _percent(shares[bucket], n_decimals=1))
        for bucket, name in BUCKET_NAMES.items()
        if goodput.seconds[bucket] > 0 or bucket == "step"
    ]
    yield from table(rows, alignment="<>")
    if goodput.hidden_input:
        hidden = describe_duration(goodput.hidden_input)
        yield f"Batches were made for {hidden} more while the devices were busy, which costs nothing."
    if goodput.clock_jump:
        jump = describe_duration(abs(goodput.clock_jump))
        how = f"set back by {jump}" if goodput.clock_jump < 0 else f"set forward by {jump}, or the machine slept"
        yield f"Meanwhile the machine's clock was {how}: this is not counted."


def goodput_line(goodput: Goodput) -> str:
    """One line: the share of the time in which the run got on, and what took the most of the rest."""
    shares = goodput.shares
    losses = sorted((name for name in BUCKET_NAMES if name != "step"), key=lambda name: -shares[name])[:_N_LOSSES]
    listed = ", ".join(
        f"{BUCKET_NAMES[name]} {_percent(shares[name])}" for name in losses if shares[name] >= _LEAST_LOSS
    )
    return (
        f"{_percent(shares['step'])} of {describe_duration(goodput.total)} were steps{f'; {listed}' if listed else ''}"
    )


def _percent(share: float, *, n_decimals: int = 0) -> str:
    return f"{100 * share:.{n_decimals}f} %"
