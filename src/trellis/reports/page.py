"""One page about runs, which opens without a network."""

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trellis.extensions import BUCKET_NAMES
from trellis.json_text import without_nan
from trellis.loops import CLOCKED_METRICS
from trellis.reports.curve import Curve
from trellis.reports.ledger import RunLedger
from trellis.version import __version__

BEFORE_RUNS = '"metrics":'
"""In the content, what comes before it is of the moment, and what comes after it is of the runs."""

_FOLDER = Path(__file__).parent
_PARTS = ("uplot.min.css", "page.css", "uplot.min.js", "page.js")
_MOST_POINTS = 24_000
"""Of all curves together: some 500 kB of text."""
_POINTS_OF_A_CURVE = (60, 1000)


def build_page(runs: Sequence[RunLedger], *, is_live: bool = False) -> str:
    """The page as HTML: all that comes from runs is in one JSON text, and is set as text, never as HTML.

    Args:
        is_live: Whether it asks its server for what is new.
    """
    page = (_FOLDER / "page.html").read_text(encoding="utf-8")
    for name in _PARTS:
        page = page.replace(f"/*{name}*/", (_FOLDER / name).read_text(encoding="utf-8"))
    # Nothing in it can end the element that it stands in.
    content = build_content(runs)
    for mark in "<>&":
        content = content.replace(mark, f"\\u{ord(mark):04x}")
    page = page.replace("/*connects to*/", "connect-src 'self'" if is_live else "")
    page = page.replace("/*is live*/", json.dumps(is_live))
    # Last, as anything may stand in it.
    return page.replace("/*content*/", content)


def build_content(runs: Sequence[RunLedger]) -> str:
    """What the page shows, as JSON."""
    return json.dumps(without_nan(_content(runs)), ensure_ascii=True, default=str, separators=(",", ":"))


def _content(runs: Sequence[RunLedger]) -> dict[str, object]:
    metrics = sorted(dict.fromkeys(name for run in runs for name in run.curves), key=_place_of)
    paths = dict.fromkeys(path for run in runs for path in run.config)
    # A run that has left no config does not differ in all of it.
    configs = [run.config for run in runs if run.config]
    differing = [path for path in paths if len({repr(config.get(path, (None,))[0]) for config in configs}) > 1]
    least, most = _POINTS_OF_A_CURVE
    n_curves = sum(len(run.curves) for run in runs)
    n_points = min(max(_MOST_POINTS // max(n_curves, 1), least), most)
    return {
        "version": __version__,
        "made_at": time.time(),
        "metrics": metrics,
        "clocked": [name for name in metrics if name.rpartition("/")[2] in CLOCKED_METRICS],
        "lower_is_better": [name for name in metrics if any(run.is_lower_better(name) for run in runs)],
        "buckets": list(BUCKET_NAMES.items()),
        "main_metrics": list(dict.fromkeys(run.main_metric for run in runs if run.main_metric)),
        "runs": [_run(run, title, n_points) for run, title in zip(runs, _titles(runs), strict=True)],
        "config": [[path, [run.config.get(path, ("not there", "")) for run in runs]] for path in differing],
        "groups": _groups(runs, metrics),
    }


def _place_of(metric: str) -> tuple[bool, bool, str]:
    """Evaluations come first, and what a clock measures last."""
    return metric.rpartition("/")[2] in CLOCKED_METRICS, not metric.startswith("eval/"), metric


def _titles(runs: Sequence[RunLedger]) -> list[str]:
    """What tells the directories of runs from each other."""
    paths = [str(run.model_dir.absolute()) for run in runs]
    if len(paths) == 1:
        return [os.path.basename(paths[0]) or paths[0]]
    shared = os.path.commonpath(paths) if paths else ""
    return [os.path.relpath(path, shared) if path != shared else os.path.basename(path) for path in paths]


def _run(run: RunLedger, title: str, n_points: int) -> dict[str, object]:
    starts = [attempt.start for attempt in run.attempts] or [curve.points()[0].time for curve in run.curves.values()]
    start = min(starts, default=0)
    speeds = (run.curves.get(f"train/{name}") for name in ("examples_per_second", "tokens_per_second"))
    return {
        "title": title,
        "name": str(run.model_dir),
        "experiment": run.experiment,
        "state": run.state,
        "step": run.step,
        "start": start,
        "last_time": run.last_time,
        "damage": run.damage,
        "speed": [None if curve is None else _short(curve.last.value) for curve in speeds],
        "attempts": [[attempt.start, attempt.end] for attempt in run.attempts],
        "incidents": run.incidents,
        "goodput": run.goodput and run.goodput.as_json(),
        "samples": run.samples,
        **_curves(run.curves, start=start, n_points=n_points),
    }


def _curves(curves: Mapping[str, Curve], *, start: float, n_points: int) -> dict[str, object]:
    """The curves by metric, each as the number of its steps and times and its values: most have those of others."""
    axes: dict[tuple[tuple[int, ...], tuple[float, ...]], int] = {}
    shown = {}
    for name, curve in curves.items():
        points = curve.points(n_most=n_points)
        steps = tuple(point.step for point in points)
        times = tuple(round(max(point.time - start, 0.0), 2) for point in points)
        shown[name] = [axes.setdefault((steps, times), len(axes)), [_short(point.value) for point in points]]
    return {"axes": list(axes), "curves": shown}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _groups(runs: Sequence[RunLedger], metrics: Sequence[str]) -> list[dict[str, object]]:
    """The last and the best of each metric; runs that differ only in their seed are one group."""
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        key = f"{run.experiment} {run.config_but_seed}" if run.config else str(run.model_dir)
        groups.setdefault(key, []).append(number)
    rows: list[dict[str, object]] = []
    for numbers in groups.values():
        members = [runs[number] for number in numbers]
        rows.append(
            {
                "runs": numbers,
                "seeds": [run.seed for run in members],
                "last": {name: _last(members, name) for name in metrics},
                "best": {name: _best(members, name) for name in metrics if name.startswith("eval/")},
            }
        )
    return rows


def _last(runs: Sequence[RunLedger], metric: str) -> list[Any] | None:
    return _spread([run.curves[metric].last.value for run in runs if metric in run.curves])


def _best(runs: Sequence[RunLedger], metric: str) -> list[Any] | None:
    points = [point for point in (run.best(metric) for run in runs) if point is not None]
    return [*(_spread([point.value for point in points]) or ()), [point.step for point in points]] if points else None


def _spread(values: Sequence[float]) -> list[Any] | None:
    """The mean of values and their deviation, if there are several, and how many there are; None of none."""
    if not values:
        return None
    if not all(math.isfinite(value) for value in values):
        return [sum(values), None, len(values)]
    return [statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values)]
