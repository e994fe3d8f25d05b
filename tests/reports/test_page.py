"""The page about runs, and the list of them."""

import json
from pathlib import Path

import pytest

from tests.experiments.test_comparison import write_run
from trellis.cli.main import main
from trellis.reports import Curve


def test_names_with_markup_cannot_leave_the_json_of_the_page(tmp_path: Path) -> None:
    run = tmp_path / "<script>alert(1)&'\"ü"
    write_run(run, (5, 0.5, (1, 2, 3)))
    page = tmp_path / "report.html"
    assert main(["report", str(run), "-o", str(page)]) == 0
    text = page.read_text()
    content = text.partition('id="content">')[2].partition("</script>")[0]
    assert "<" not in content
    assert json.loads(content)["runs"][0]["name"] == str(run)


def test_a_broken_file_of_events_gives_a_page_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"kind": "summ')
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.html")]) == 0
    assert "1 of its 1 lines hold no event" in capsys.readouterr().err


def test_a_long_curve_keeps_few_points_and_its_peak() -> None:
    curve = Curve()
    for step in range(100_000):
        curve.append(step, 9.0 if step == 77_777 else step % 7 / 7)
    assert len(curve.points) <= 4_001
    assert (77_777, 9.0) in curve.points


def test_runs_in_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)))
    assert main(["runs", str(tmp_path), "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert (run["state"], run["step"]) == ("stale", 5)
    assert main(["runs", str(tmp_path / "none")]) == 2
