"""The page about runs while they go on."""

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.reports.test_page import summary, write_events
from trellis.cli.main import main
from trellis.reports import LiveReport, find_runs


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveReport]:
    monkeypatch.setattr("trellis.reports.live._SECONDS_BETWEEN_READINGS", 0.0)
    write_events(tmp_path / "a", summary(1, loss=1.0))
    with LiveReport(lambda: find_runs(tmp_path), port=0) as report:
        thread = threading.Thread(target=report.serve)
        thread.start()
        yield report
        report.stop()
        thread.join()


def ask(live: LiveReport, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = HTTPConnection(live.url.removeprefix("http://").rstrip("/"), timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, answer.headers.get("ETag") or ""


def test_what_runs_add_and_runs_that_are_begun_are_told(live: LiveReport, tmp_path: Path) -> None:
    status, page, _ = ask(live, "/")
    assert status == 200
    assert 'data-live="true"' in page
    assert "connect-src 'self'" in page
    _, content, tag = ask(live, "/content.json")
    assert [run["step"] for run in json.loads(content)["runs"]] == [1]
    assert ask(live, "/content.json", **{"If-None-Match": tag})[:2] == (304, "")
    with (tmp_path / "a" / "events.jsonl").open("a") as file:
        file.write(f"{json.dumps(summary(2, loss=0.5))}\n")
    write_events(tmp_path / "b", summary(7, loss=1.0))
    status, content, _ = ask(live, "/content.json", **{"If-None-Match": tag})
    assert status == 200
    assert [run["step"] for run in json.loads(content)["runs"]] == [2, 7]


def test_only_this_machine_may_ask_and_only_for_the_page(live: LiveReport, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert ask(live, "/content.json", Host="evil.example:80")[0] == 403
    assert ask(live, "/content.json", Host="")[0] == 403
    assert ask(live, "/", Host="LocalHost:9")[0] == 200
    assert ask(live, "/../a/events.jsonl")[0] == 404
    assert ask(live, "/", method="POST")[0] == 501
    assert ask(live, "/", method="HEAD")[:2] == (200, "")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_port_that_is_taken_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["report", str(tmp_path), "--live", f"--port={port}"]) == 2
    message = f"Port {port} of 127.0.0.1 cannot be had: Address already in use. --port=0 takes a free one."
    assert message in capsys.readouterr().err
