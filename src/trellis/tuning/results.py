"""What a sweep leaves behind: its trials, best first, and the best of them for other programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trellis.config import dump
from trellis.disk import write_whole
from trellis.tuning.search import Range, Value

State = Literal["complete", "pruned", "failed", "running"]


@dataclass(frozen=True)
class TrialResult:
    """What became of one trial."""

    number: int
    state: State
    value: float | None
    """The best value of the metric; None if there is none yet."""
    step: int
    """The last step that was evaluated."""
    overrides: Mapping[str, Value]
    error: str = ""
    model_dir: str = ""


def write_results(directory: Path, *, results: Sequence[TrialResult], experiment: str, ranges: Sequence[Range]) -> None:
    """Writes `tuner_results.json`, and of the best trial `best.yaml` and `best_hyperparameters.txt`.

    Args:
        results: Best first.
    """
    complete = [result for result in results if result.state == "complete"]
    rows = [{"trial_id": f"{r.number:04d}", "score": r.value, **r.overrides} for r in complete]
    write_whole(directory / "tuner_results.json", _json(rows))
    if not complete:
        return
    best = complete[0]
    head = f"# Experiment: {experiment}\n# The best of {len(complete)} complete trials: {best.number:04d}\n"
    write_whole(directory / "best.yaml", f"{head}{dump(_nested(best.overrides))}".encode())
    hyperparameters = {"space": [_published(range_) for range_ in ranges], "values": dict(best.overrides)}
    write_whole(directory / "best_hyperparameters.txt", _json(hyperparameters))


def as_json(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Returns trials as plain data."""
    return [asdict(result) for result in results]


def _json(content: object) -> bytes:
    return f"{json.dumps(content, indent=1)}\n".encode()


def _nested(overrides: Mapping[str, Value]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in overrides.items():
        *groups, name = path.split(".")
        level = nested
        for group in groups:
            level = level.setdefault(group, {})
        level[name] = value
    return nested


def _published(range_: Range) -> dict[str, Any]:
    """Returns a range as `HyperParameters.get_config()` of KerasTuner lists it."""
    shared: dict[str, Any] = {"name": range_.path, "default": range_.values[0], "conditions": []}
    if range_.kind == "choice":
        is_ordered = all(isinstance(value, int | float) for value in range_.values)
        return {"class_name": "Choice", "config": {**shared, "values": list(range_.values), "ordered": is_ordered}}
    low, high = range_.values
    step = 1 if range_.kind == "int" and range_.step is None else range_.step
    ends = {"min_value": low, "max_value": high, "step": step}
    sampling = "log" if range_.kind == "log" else "linear"
    name = "Int" if range_.kind == "int" else "Float"
    return {"class_name": name, "config": {**shared, **ends, "sampling": sampling}}
