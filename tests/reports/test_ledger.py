"""What runs have left behind, and the list of them."""

import json
from pathlib import Path

import pytest

from tests.experiments.test_comparison import write_run
from tests.reports.test_page import summary, write_events
from trellis.cli.main import main
from trellis.disk import Ownership
from trellis.reports import RunReader, find_runs, read_run


def event(kind: str, step: int, **values: object) -> dict[str, object]:
    return {"kind": kind, "step": step, "time": 200.0 + step, **values}


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([summary(1)], "stale"),
        ([summary(1), event("finished", 1)], "done"),
        ([summary(1), event("stopped", 1, error="ValueError()")], "failed"),
        ([summary(1), event("preempted", 1), event("stopped", 1)], "stale"),
        ([summary(1), event("stopped", 1, error="ValueError()"), event("initialized", 1)], "stale"),
        ([summary(1), event("finished", 1), event("restored", 1), summary(2)], "stale"),
        ([summary(1), event("pruned", 2), summary(2), event("stopped", 2)], "done"),
        ([summary(1), event("stopped_early", 2), summary(2), event("stopped", 2)], "done"),
        ([event("stopped_early", 2), summary(2), summary(3)], "stale"),
    ],
)
def test_the_state_of_a_run_is_that_of_its_last_attempt(
    events: list[dict[str, object]], state: str, tmp_path: Path
) -> None:
    write_events(tmp_path, *events)
    assert read_run(tmp_path).state == state
    with Ownership(tmp_path):
        assert read_run(tmp_path).state == "running"


def test_what_is_added_is_read_on_and_what_is_written_anew_is_read_again(tmp_path: Path) -> None:
    write_events(tmp_path, summary(1, loss=3.0), summary(2, loss=2.0))
    reader = RunReader(tmp_path)
    assert reader.read().step == 2
    line = json.dumps(summary(3, loss=1.0))
    with Ownership(tmp_path), (tmp_path / "events.jsonl").open("a") as file:
        file.write(line[:20])
        file.flush()
        # It is being written, and no damage.
        assert (reader.read().step, reader.read().damage) == (2, "")
        file.write(f"{line[20:]}\n")
        file.flush()
        assert [point.step for point in reader.read().curves["eval/loss"].points()] == [1, 2, 3]
    (tmp_path / "events.jsonl").unlink()
    write_events(tmp_path, summary(1, loss=3.0))
    assert [point.step for point in reader.read().curves["eval/loss"].points()] == [1]
    (tmp_path / "events.jsonl").unlink()
    assert "no events.jsonl" in reader.read().damage


def test_runs_in_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)))
    write_events(tmp_path / "sweep" / "trials" / "0000", summary(1, loss=1.0), summary(2, loss=0.5), summary(3, loss=2))
    (tmp_path / "a" / "regular_5" / "arrays").mkdir(parents=True)
    (tmp_path / "a" / "regular_5" / "manifest.json").touch()
    (tmp_path / "a" / "regular_5" / "arrays" / "params.yaml").touch()
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "sweep" / "trials" / "0000"]
    assert main(["runs", str(tmp_path), "--json"]) == 0
    [run, trial] = json.loads(capsys.readouterr().out)["runs"]
    assert (run["state"], run["step"]) == ("stale", 5)
    assert trial["best"] == {"metric": "eval/loss", "value": 0.5, "step": 2}
    assert main(["runs", str(tmp_path)]) == 0
    assert "eval/loss 0.5000 (step 2)" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "none")]) == 2


def test_the_config_says_which_way_its_metric_is_better(tmp_path: Path) -> None:
    write_events(tmp_path, summary(1, score=1.0, accuracy=0.5), summary(2, score=0.5, accuracy=0.4))
    assert read_run(tmp_path).main_metric == "eval/score"
    text = "trainer:\n  best_checkpoint_eval_metric: score\n  best_checkpoint_metric_comp: lower\n"
    (tmp_path / "params.yaml").write_text(text)
    best = read_run(tmp_path).best("eval/score")
    assert best is not None
    assert best.step == 2
