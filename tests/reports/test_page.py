"""The page about runs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.test_comparison import write_run
from trellis.cli.main import main
from trellis.reports import Curve, Point, build_content, read_run


def content_of(page: Path) -> Any:
    return json.loads(page.read_text().partition('id="content">')[2].partition("</script>")[0])


def write_events(model_dir: Path, *events: object) -> None:
    model_dir.mkdir(parents=True, exist_ok=True)
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    (model_dir / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


def summary(step: int, **metrics: object) -> dict[str, object]:
    return {"kind": "summary", "step": step, "time": 100.0 + step, "metrics": {"eval": metrics}}


def test_names_with_markup_cannot_leave_the_json_of_the_page(tmp_path: Path) -> None:
    run = tmp_path / "<script>alert(1)&'\"ü"
    write_run(run, (5, 0.5, (1, 2, 3)))
    write_events(run, summary(5, **{"</script><b>": 1.0}))
    page = tmp_path / "report.html"
    assert main(["report", str(run), "-o", str(page)]) == 0
    text = page.read_text()
    content = text.partition('id="content">')[2].partition("</script>")[0]
    assert "<" not in content
    assert content_of(page)["runs"][0]["name"] == str(run)
    assert content_of(page)["metrics"] == ["eval/</script><b>"]


def test_a_page_loads_nothing_and_is_small(tmp_path: Path) -> None:
    write_events(tmp_path, *(summary(step, loss=1 / step, accuracy=step) for step in range(1, 20_000)))
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "-o", str(page)]) == 0
    text = page.read_text()
    assert len(text) < 200_000
    assert "default-src 'none'" in text
    assert not [mark for mark in ("src=", "@import", "url(", "<link") if mark in text]
    assert "/*page.js*/" not in text


def test_runs_that_differ_in_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    for seed, rate, accuracy in [(0, 0.1, 0.5), (1, 0.1, 0.7), (0, 0.2, math.nan)]:
        run = tmp_path / f"{rate}-{seed}"
        write_events(run, summary(1, accuracy=0.9), summary(2, accuracy=accuracy))
        (run / "params.yaml").write_text(f"runtime:\n  seed: {seed}\ntask:\n  rate: {rate}\n")
        (run / "provenance.yaml").write_text(f"runtime:\n  seed: {seed}  # --set\ntask:\n  rate: {rate}  # a.yaml:3\n")
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "-o", str(page)]) == 0
    content = content_of(page)
    [both, alone] = content["groups"]
    assert both["seeds"] == [0, 1]
    assert both["last"]["eval/accuracy"] == [pytest.approx(0.6), pytest.approx(0.1414, abs=1e-4), 2]
    assert both["best"]["eval/accuracy"] == [0.9, 0.0, 2, [1, 1]]
    assert alone["last"]["eval/accuracy"] == ["nan", None, 1]
    assert content["config"][1] == ["task.rate", [[0.1, "a.yaml:3"], [0.1, "a.yaml:3"], [0.2, "a.yaml:3"]]]


def test_a_run_without_a_config_hides_nothing_in_which_the_others_differ(tmp_path: Path) -> None:
    for rate in (0.1, 0.2):
        run = tmp_path / f"{rate}"
        write_events(run, summary(1, accuracy=0.9))
        (run / "params.yaml").write_text(f"task:\n  path: ''\n  rate: {rate}\n")
    write_events(tmp_path / "bare", summary(1, accuracy=math.inf))
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "-o", str(page)]) == 0
    content = content_of(page)
    (differing,) = content["config"]
    assert differing[0] == "task.rate"
    assert [value for value, _ in differing[1]] == [0.1, 0.2, "not there"]
    assert content["groups"][-1]["last"]["eval/accuracy"] == ["inf", None, 1]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (b'{"kind": "summ', "1 of its 1 lines hold no event"),
        (b"\xff\xfe\x00garbage\n\n[1]\nnull\n", "3 of its 3 lines hold no event"),
        (b'{"kind": "summary", "step": -1, "time": 1}\n', "1 of its 1 lines"),
        (b'{"kind": "time", "step": 1, "time": 1e400}\n', "1 of its 1 lines"),
        (b"", ""),
        (b'{"kind": "summary", "step": 5, "metrics": {"eval": {"loss": 0.5, "odd": [1], "text": "x"}}}\n', ""),
        (b'{"kind": "summary", "step": 5, "time": 1, "metrics": {"eval": {"loss": 1%s}}}\n' % (b"0" * 400), ""),
        (b'{"kind": "time", "step": 5, "time": 1, "attempt": 0, "seconds": {"eval": "x"}, "hidden_input": 0}', ""),
    ],
)
def test_whatever_is_in_a_file_of_events_gives_a_page(
    lines: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_bytes(lines)
    (tmp_path / "samples.json").write_bytes(b"[")
    (tmp_path / "provenance.yaml").write_bytes(b"\xff: [")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.html")]) == 0
    error = capsys.readouterr().err
    assert told in error
    assert "samples.json is damaged" in error
    assert content_of(tmp_path / "report.html")["runs"][0]["state"] == "stale"


def test_no_clock_that_was_put_back_makes_a_run_end_before_it_began(tmp_path: Path) -> None:
    times = [(900.0, 900.0), (900.0, 950.0), (960.0, 500.0), (400.0, 510.0), (1e300, 520.0)]
    events = [
        {"kind": "time", "step": 5, "time": time, "attempt": attempt, "seconds": {"step": 1.0}, "hidden_input": 0.0}
        for attempt, time in times
    ]
    write_events(tmp_path, *events, {"kind": "finished", "step": 5, "time": 300.0})
    [run] = json.loads(build_content([read_run(tmp_path)]))["runs"]
    assert (run["start"], run["last_time"]) == (400.0, 960.0)
    assert run["attempts"] == [[900.0, 950.0], [960.0, 960.0], [400.0, 960.0]]


def test_a_line_without_end_is_read_in_parts(tmp_path: Path) -> None:
    with (tmp_path / "events.jsonl").open("wb") as file:
        file.write(b"x" * (40 << 20) + b"\n")
        file.write(json.dumps(summary(3, loss=1.0)).encode())
    run = read_run(tmp_path)
    assert "1 of its 2 lines" in run.damage
    assert run.curves["eval/loss"].last.step == 3


def test_a_long_curve_keeps_few_points_its_extremes_and_what_is_no_number() -> None:
    curve = Curve()
    for step in range(100_000):
        value = {77_777: 9.0, 33_333: -9.0, 55_555: math.nan}.get(step, step % 7 / 7)
        curve.append(Point(step, float(step), value))
    points = curve.points()
    assert len(points) <= 3_001
    assert {point.step for point in points} >= {33_333, 55_555, 77_777, 99_999}
    few = curve.points(n_most=60)
    assert len(few) <= 61
    assert {point.step for point in few} >= {33_333, 77_777, 99_999}
    assert [point.step for point in points] == sorted(point.step for point in points)


def test_a_step_told_again_replaces_what_came_after_it() -> None:
    curve = Curve()
    for step in [1, 2, 3, 4, 2, 3]:
        curve.append(Point(step, 0.0, float(step)))
    assert [point.step for point in curve.points()] == [1, 2, 3]


def test_an_empty_folder_gives_a_page(tmp_path: Path) -> None:
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.html")]) == 0
    assert content_of(tmp_path / "report.html")["metrics"] == []
    assert json.loads(build_content([]))["runs"] == []


def test_what_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in [
        (["report", str(tmp_path / "none")], "There is no directory"),
        (["report", str(tmp_path), "-o", str(tmp_path)], "is a directory"),
        (["report", str(tmp_path), "--port=1"], "nothing is served"),
        (["report", str(tmp_path), "--live", "-o", "a.html"], "--live writes nothing"),
        (["report", str(tmp_path), "--live", "--port=70000"], "from 1 to 65535"),
    ]:
        assert main(flags) == 2
        assert message in capsys.readouterr().err
