"""Weights & Biases, MLflow and trackio themselves, offline: what they hold of a run that is killed and resumed.

`make test-trackers` installs them and runs this; each test is skipped where its package is not installed.
"""

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trellis.extensions import tracking_services

# What other packages warn of is their own.
pytestmark = pytest.mark.filterwarnings("ignore")

# The first process is killed after the fifth step, of which the third is saved; the second goes on from there.
RUN = """
import os, sys
import numpy as np
import trellis
from tests import tiny
from trellis.extensions import tracker
from trellis.loops import Session

tracker._PATIENCE = dict.fromkeys(tracker._PATIENCE, 240)  # on a busy machine, too, all is told before the kill
service, start, steps = sys.argv[1], int(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4]))
session = Session(stdout=True)
about = {"name": "n", "project": "a/b", "config": {"task.size": start}, "tags": {"t": "v"}}
process = trellis.serial(trellis.EventWriter("run"), trellis.Tracker(service, output_dir="run", **about))
process.attach(session)
session.emit("initialized", step=start, text="Compiled.")
for step in steps:
    summary = tiny.checkpoint(step, train={"loss": step / 4}, eval={"odd name[0]": float("nan")}, session=session)
    media = {
        "h": trellis.Histogram([1.0, 2.0, np.nan]),
        "none": trellis.Histogram([]),
        "i": trellis.Image(np.zeros((4, 4))),
        "t": trellis.Text("hi"),
    }
    process(summary.with_media(eval=media) if step == 2 else summary)
session.emit("diverged", step=steps[-1], text="It diverged.")
if start:
    session.emit("finished", step=steps[-1])
else:
    session.emit("stopped", step=steps[-1], error="Killed()")
    os._exit(9)
"""


def track(service: str) -> str:
    """Runs both processes in the current directory; returns what the second has said."""
    if tracking_services.is_missing(service):
        pytest.skip(f"{service} is not installed: `make test-trackers` installs it")
    own = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "sqlite:///m.db", "TRACKIO_DIR": str(Path("t").absolute())}
    environment = {**os.environ, **own, "HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true", "DO_NOT_TRACK": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    for arguments, code in ((("0", "1", "6"), 9), (("3", "4", "9"), 0)):
        command = [sys.executable, "-c", RUN, service, *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == code, ended.stderr
        assert "cannot be reached" not in ended.stdout, ended.stdout
    return ended.stdout


LOSSES = [(step, step / 4) for step in range(1, 9)]


def test_mlflow_has_each_point_of_a_resumed_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    track("mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri="sqlite:///m.db")
    (run,) = client.search_runs([client.get_experiment_by_name("a/b").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == ("n", "FINISHED", {"task.size": "0"})
    tags = run.data.tags
    assert (tags["t"], tags["changed/task.size"]) == ("v", "3")
    assert tags["event/00000008/diverged"] == "It diverged."
    assert tags["event/00000005/stopped"] == "Killed()"
    points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(points) == LOSSES
    assert len(client.get_metric_history(run.info.run_id, "eval/odd name_0_")) == 8
    files = {file.path for folder in "hit" for file in client.list_artifacts(run.info.run_id, f"eval/{folder}")}
    assert files == {"eval/h/step_00000002.json", "eval/i/step_00000002.png", "eval/t/step_00000002.md"}


def test_wandb_has_each_point_of_a_resumed_run_once() -> None:
    track("wandb")
    records = [
        record
        for file in sorted(Path("run/trackers/wandb").glob("offline-run-*/*.wandb"))
        for record in wandb_records(file)
    ]
    runs = [record.run for record in records if record.HasField("run")]
    assert {(run.run_id, run.project, run.display_name) for run in runs} == {(runs[0].run_id, "a-b", "n")}
    rows = [record.history for record in records if record.HasField("history")]
    values = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in rows]
    assert [(row.step.num, value["train/loss"]) for row, value in zip(rows, values, strict=True)] == LOSSES
    assert values[1]["eval/t"] == "hi"
    told_as = {name.partition("/_type")[0]: kind for name, kind in values[1].items() if name.endswith("/_type")}
    assert told_as.items() >= {"eval/h": "histogram", "eval/i": "image-file"}.items()
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1, 0]
    told = " ".join(str(record.summary) for record in records if record.HasField("summary"))
    assert "It diverged." in told


def wandb_records(file: Path) -> Iterator[Any]:
    """What a file of an offline run holds: blocks of 32 KiB with records that may go on in the next one."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, part = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        n_bytes, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        part += data[place + 7 : place + 7 + n_bytes]
        place += 7 + n_bytes
        if kind in (1, 4):
            yield Record.FromString(part)
            part = b""


def test_trackio_has_each_point_of_a_resumed_run_once() -> None:
    track("trackio")
    with sqlite3.connect("t/a-b.db") as database:
        rows = list(database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step"))
        alerts = list(database.execute("SELECT title, text, step FROM alerts ORDER BY id"))
    assert {name for name, _, _ in rows} == {json.loads(Path("run/trackers/trackio.json").read_text())["run"]}
    values = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert [(step, value["train/loss"]) for step, value in values] == LOSSES
    assert {values[1][1][f"eval/{name}"]["_type"] for name in "hit"} == {
        "trackio.histogram",
        "trackio.image",
        "trackio.markdown",
    }
    assert [alert for alert in alerts if alert[2] == 8] == [("diverged", "It diverged.", 8)]
