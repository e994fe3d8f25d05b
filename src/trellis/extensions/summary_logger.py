"""Summaries on the screen."""

from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Summary
from trellis.runtime import print_line


class SummaryLogger(Extension):
    """Prints a report of each summary: the steps since the last one, then a line for each metric.

    A checkpoint that was not evaluated is reported with the metrics of its training steps.

    Example:
        process = serial(EvalLoop(task=task, n_steps=20), SummaryLogger())

        Step    500: Ran 500 train steps in 1.73 seconds
        Step    500: train seconds_per_step | 0.00346000
        Step    500: train             loss | 0.41270921
        Step    500: eval          accuracy | 0.87500000
    """

    def __init__(self, *, stdout: bool = True) -> None:
        self._stdout = stdout

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Prints the report, and returns the checkpoint as it came."""
        if self._stdout:
            # As one text: no other line gets between its own.
            print_line(_report(Summary.from_checkpoint(checkpoint)))
        return checkpoint


def _report(summary: Summary) -> str:
    start = f"Step {summary.step:6d}:"
    group_width = max(map(len, summary.metrics), default=0)
    name_width = max((len(name) for metrics in summary.metrics.values() for name in metrics), default=0)
    lines = [f"{start} Ran {summary.n_completed_steps} train steps in {summary.elapsed_time:.2f} seconds"]
    for group, metrics in summary.metrics.items():
        lines += [f"{start} {group:<{group_width}} {name:>{name_width}} | {metrics[name]:.8f}" for name in metrics]
    return "\n".join([*lines, ""])
