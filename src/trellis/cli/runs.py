"""`trellis runs`: what runs have left behind, looked at without JAX."""

import argparse
import dataclasses
import json
from collections.abc import Iterator

from trellis.cli.parser import Parser
from trellis.experiments import Comparison, Difference, RunRecord, compare_runs
from trellis.runtime import print_error, print_line, table

_EPILOG = """\
A run tells the fingerprints of its state and of its last batch at every checkpoint file, and its metrics at every
report: that is where two runs can be seen to part. What tells of time is not compared.
Exit codes: 0 equal to the bit at all steps that both tell of, 1 they part, 2 bad input.

  trellis runs diff runs/a runs/b
"""
_EQUAL, _PARTED = 0, 1
_MOST_LISTED = 5


def add_diff_flags(parser: Parser) -> None:
    """Adds what `diff` compares, and in what form it tells of it."""
    parser.epilog = _EPILOG
    parser.add_argument("first", metavar="A", help="the model_dir of a run")
    parser.add_argument("second", metavar="B", help="that of another")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def diff(flags: argparse.Namespace) -> int:
    """Tells where two runs part; returns 0 if they do not, else 1."""
    runs = [RunRecord(flags.first), RunRecord(flags.second)]
    for run in runs:
        if run.damage:
            print_error(run.damage)
    comparison = compare_runs(*runs)
    if flags.json:
        print_line(json.dumps(_as_json(comparison), indent=1))
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
