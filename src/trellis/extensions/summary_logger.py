"""Summaries on the screen."""

import itertools
from collections.abc import Mapping

import jax

from trellis.extensions.extension import Extension
from trellis.loops import CLOCKED_METRICS, Checkpoint, Summary
from trellis.runtime import chip_peak, describe_metric, describe_number, describe_rate, line_width, print_line

_FOR_DETAILS = frozenset({*CLOCKED_METRICS, "gradients_l2norm", "weights_l2norm"})
_GAP = "  "
_LEAST_WIDTH = 6
"""That of most values: `0.4127`, `-12.35`."""
_LEAST_WIDTHS = {"loss": 8, "rate": 8, "steps/s": 12, "tokens/s": 15, "examples/s": 16}
"""Those of columns whose names end so: what gets small, `8.038e-5`, and what has a unit, `1500 steps/s`."""


class SummaryLogger(Extension):
    """Prints a line for each summary: the step, the loss, the task's metrics, the learning rate, the rate, the eval.

    Values are below those of the line before. Tokens or examples a second, and the share of a known chip's peak, are
    there if the line has room. On a terminal, evaluations that do not fit are on a line of their own,
    and metrics that do not fit are counted: `+3`. In a pipe or a file a report is one line with all of them. A
    checkpoint that was not evaluated is reported with the metrics of its training steps.

    Example:
        process = serial(EvalLoop(task=task, n_steps=20), SummaryLogger())

        Step   500 of 10000  loss 0.4127    accuracy 0.8711  289 steps/s   9248 examples/s   eval/accuracy 0.8750
        Step  1000 of 10000  loss 0.08865   accuracy 0.8805  1291 steps/s  41312 examples/s  eval/accuracy 0.8828

    Args:
        details: Whether to print a line for each metric instead, with norms and times, in eight digits.
    """

    def __init__(self, *, stdout: bool = True, details: bool = False) -> None:
        self._stdout = stdout
        self._details = details
        self._is_split = False
        """Whether evaluations have had a line of their own, where the next ones go too."""
        self._widths: dict[str, int] = {}

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Prints the report, and returns the checkpoint as it came."""
        if self._stdout:
            summary = Summary.from_checkpoint(checkpoint)
            # As one text: no other line gets between its own.
            print_line(_detailed_report(summary) if self._details else self._report(summary))
        return checkpoint

    def _report(self, summary: Summary) -> str:
        n_steps = summary.session.n_steps if summary.session else None
        # Single steps may go past the end.
        has_end = n_steps is not None and n_steps >= summary.step
        start = f"Step {summary.step:{len(str(n_steps))}d} of {n_steps}" if has_end else f"Step {summary.step:6d}"
        groups = dict(summary.metrics)
        train = dict(groups.pop("train", {}))
        seconds = train.get("seconds_per_step", 0.0)
        loss = self._cells({name: train.pop(name) for name in ("loss",) if name in train})
        learning_rate = self._cells({name: train.pop(name) for name in ("learning_rate",) if name in train})
        rate = [self._padded("steps/s", describe_rate(1 / seconds))] if seconds > 0 else []
        speeds = self._speeds(train)
        others = self._cells({name: value for name, value in train.items() if name not in _FOR_DETAILS})
        evals = [
            self._cells({f"{group}/{name}": value for name, value in metrics.items()})
            for group, metrics in groups.items()
            if metrics
        ]
        width = line_width()
        for more in (speeds, []):
            line = _GAP.join([start, *loss, *others, *learning_rate, *rate, *more, *itertools.chain(*evals)]).rstrip()
            if len(line) <= width and not (evals and self._is_split):
                return line
        self._is_split = bool(evals) or self._is_split
        lines = [
            _fitting(
                [start, *loss],
                others,
                [[*learning_rate, *rate, *speeds], learning_rate + rate, learning_rate, []],
                width,
            )
        ]
        return "\n".join([*lines, *(_fitting([" " * len(start)], cells, [[]], width) for cells in evals)])

    def _speeds(self, train: Mapping[str, float]) -> list[str]:
        """What else is told of the speed where a line has room: tokens or examples, and the share of the peak."""
        cells = []
        unit = next((unit for unit in ("tokens", "examples") if train.get(f"{unit}_per_second", 0.0) > 0), None)
        if unit:
            text = f"{describe_number(train[f'{unit}_per_second'])} {unit}/s"
            cells.append(self._padded(f"{unit}/s", text))
        utilisation, peak = train.get("flops_utilisation"), chip_peak(jax.devices()[0].device_kind)
        if utilisation is not None and peak is not None:
            cells.append(f"{100 * utilisation:2.0f} % of {peak}")
        return cells

    def _cells(self, metrics: Mapping[str, float]) -> list[str]:
        return [f"{name} {self._padded(name, describe_metric(value))}" for name, value in metrics.items()]

    def _padded(self, column: str, text: str) -> str:
        """The text in a column that never gets narrower."""
        if column not in self._widths:
            ending = next((ending for ending in _LEAST_WIDTHS if column.endswith(ending)), "")
            self._widths[column] = _LEAST_WIDTHS.get(ending, _LEAST_WIDTH)
        self._widths[column] = max(self._widths[column], len(text))
        return text.ljust(self._widths[column])


def _fitting(first: list[str], middle: list[str], endings: list[list[str]], width: float) -> str:
    """A line with as many of the cells in the middle as fit, the number of those that do not, and what else fits."""
    for n_shown in range(len(middle), -1, -1):
        n_hidden = len(middle) - n_shown
        hidden = [f"+{n_hidden}"] if n_hidden else []
        for ending in endings:
            line = _GAP.join([*first, *middle[:n_shown], *hidden, *ending]).rstrip()
            if len(line) <= width:
                return line
    return line


def _detailed_report(summary: Summary) -> str:
    start = f"Step {summary.step:6d}:"
    group_width = max(map(len, summary.metrics), default=0)
    name_width = max((len(name) for metrics in summary.metrics.values() for name in metrics), default=0)
    lines = [f"{start} Ran {summary.n_completed_steps} train steps in {summary.elapsed_time:.2f} seconds"]
    device_kind = jax.devices()[0].device_kind
    peak = chip_peak(device_kind)
    if "examples_per_second" in summary.metrics.get("train", {}):
        told = f"flops_utilisation is that of {peak}" if peak else f"The peak of {device_kind} is not known"
        lines.append(f"{start} {told}")
    for group, metrics in summary.metrics.items():
        lines += [f"{start} {group:<{group_width}} {name:>{name_width}} | {metrics[name]:.8g}" for name in metrics]
    return "\n".join([*lines, ""])
