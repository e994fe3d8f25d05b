"""Guides say what the code does."""

import ast
import re
from pathlib import Path

from tests.architecture.source import PACKAGE, REPOSITORY, parsed_files


def emitted_events(package: Path) -> set[str]:
    """The kinds of events that code emits."""
    return {
        call.args[0].value
        for _, module in parsed_files(package)
        for call in ast.walk(module)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "emit"
        if isinstance(call.args[0], ast.Constant)
    }


def listed_events(guide: str) -> list[str]:
    """The first column of the table of events."""
    _, _, table = guide.partition("| kind | when |")
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_the_guide_lists_every_event_once() -> None:
    listed = listed_events((REPOSITORY / "docs/guides/write-an-extension.md").read_text())
    assert sorted(listed) == sorted(emitted_events(PACKAGE))


def test_an_event_that_is_emitted_is_found(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text('session.emit("began", step=1)\nself.session.emit("ended", step=step, text="")\n')
    assert emitted_events(tmp_path) == {"began", "ended"}
    assert listed_events("| kind | when |\n|---|---|\n| `began` | then |\n| `ended` | now |\n") == ["began", "ended"]
