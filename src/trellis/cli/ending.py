"""What a command prints when a run is over."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trellis.experiments import ExperimentConfig


def ending(params: ExperimentConfig, directory: Path, *, logs: dict[str, float], has_trained: bool) -> Iterator[str]:
    """Yields lines that say what the run has reached, and where it is."""
    last = _last_summary(directory / "events.jsonl") if has_trained else None
    steps = params.trainer.train_steps
    yield f"Done: step {last['step']}{f' of {steps}' if steps else ''}." if last else "Done."
    yield from (f"  {name} {value:.6g}" for name, value in (logs or _values(last)).items())
    subdir = params.trainer.best_checkpoint_export_subdir
    if subdir and (directory / subdir).is_dir():
        yield from (f"The best:   {path}" for path in sorted((directory / subdir).glob("*est_*_[0-9]*")))
    yield f"All of it:  {directory}"
    yield f"To look at: tensorboard --logdir {shlex.quote(str(directory))}"


def _values(summary: dict[str, Any] | None) -> dict[str, float]:
    """Returns the metrics of the last evaluation; for a run that does not evaluate, its loss."""
    metrics: dict[str, dict[str, float]] = summary["metrics"] if summary else {}
    if "eval" in metrics:
        return {f"eval/{name}": value for name, value in metrics["eval"].items()}
    return {f"train/{name}": value for name, value in metrics.get("train", {}).items() if name == "loss"}


def _last_summary(events: Path) -> dict[str, Any] | None:
    """Returns the last summary among the events of a run; None if there is none."""
    for line in reversed(events.read_text().splitlines()) if events.is_file() else ():
        event: dict[str, Any] = json.loads(line)
        if event["kind"] == "summary":
            return event
    return None
