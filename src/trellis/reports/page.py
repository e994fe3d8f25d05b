"""One page about runs, which opens without a network."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from trellis.json_text import without_nan
from trellis.reports.ledger import RunLedger

_FOLDER = Path(__file__).parent


def build_page(runs: Sequence[RunLedger]) -> str:
    """The page as HTML: all that comes from runs is in one JSON text, and is set as text, never as HTML."""
    content = json.dumps(without_nan(_content(runs)), ensure_ascii=True, default=str)
    # Nothing in it can end the element that it stands in.
    content = content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    page = (_FOLDER / "page.html").read_text()
    for mark, name in (("/*uplot.css*/", "uplot.min.css"), ("/*uplot.js*/", "uplot.min.js")):
        page = page.replace(mark, (_FOLDER / name).read_text())
    return page.replace("/*content*/", content)


def _content(runs: Sequence[RunLedger]) -> dict[str, object]:
    metrics = list(dict.fromkeys(name for run in runs for name in run.curves))
    paths = dict.fromkeys(path for run in runs for path in run.config)
    differing = [path for path in paths if len({repr(run.config.get(path, (None,))[0]) for run in runs}) > 1]
    return {
        "metrics": metrics,
        "runs": [
            {
                "name": str(run.model_dir),
                "experiment": run.experiment,
                "state": run.state,
                "step": run.step,
                "damage": run.damage,
                "curves": {name: list(zip(*curve.points, strict=True)) for name, curve in run.curves.items()},
                "incidents": run.incidents,
                "goodput": run.goodput and run.goodput.as_json(),
            }
            for run in runs
        ],
        "config": [[path, [run.config.get(path, ("not there", "")) for run in runs]] for path in differing],
        "groups": _groups(runs, metrics),
    }


def _groups(runs: Sequence[RunLedger], metrics: Sequence[str]) -> list[dict[str, object]]:
    """The last value of each metric, with mean and deviation where runs differ only in their seed."""
    groups: dict[str, list[RunLedger]] = {}
    for run in runs:
        key = f"{run.experiment} {run.config_but_seed}" if run.config else str(run.model_dir)
        groups.setdefault(key, []).append(run)
    rows: list[dict[str, object]] = []
    for members in groups.values():
        values = {}
        for name in metrics:
            finals = [run.curves[name].last[1] for run in members if name in run.curves and run.curves[name].last]  # type: ignore[index]
            deviation = statistics.stdev(finals) if len(finals) > 1 else None
            values[name] = [statistics.fmean(finals), deviation, len(finals)] if finals else None
        rows.append(
            {"names": [str(run.model_dir) for run in members], "seeds": [run.seed for run in members], "values": values}
        )
    return rows
