"""What is shown on a terminal, and how plain it is everywhere else."""

import io
import sys
import threading
from pathlib import Path

import pytest

from tests.screen import terminal
from trellis.runtime import Bar, Tally, describe_number, print_coloured, print_error, print_line, table

PATH = "/" + "/".join(["a_directory_with_a_long_name"] * 8) + "/[bold]file[/bold]"
COLOURS = (r"^(?P<bold>\w+):", r"(?P<green>good)")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with colours, whatever the tests are run on."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "PYTHON_COLORS", "FORCE_COLOR", "COLORTERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_a_table_has_names_on_the_left_and_numbers_on_the_right() -> None:
    rows = [("encoder", "1,000", "9.1%"), ("head", "10", "0.1%")]
    assert table(rows, alignment="<>") == ["encoder  1,000  9.1%", "head        10  0.1%"]
    assert table(rows) == ["encoder  1,000  9.1%", "head     10     0.1%"]
    assert table([("a", ""), ("bb", "c")]) == ["a", "bb  c"]
    assert table([]) == []


def test_text_in_a_pipe_is_whole_and_has_no_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    print_line(PATH)
    print_coloured(f"Path: {PATH}\nall good", COLOURS)
    print_error(f"There is no `{PATH}`. Did you mean x?")
    out, err = capsys.readouterr()
    assert out == f"{PATH}\nPath: {PATH}\nall good\n"
    assert err == f"There is no `{PATH}`. Did you mean x?\n"


def test_plain_output_does_not_import_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.modules", {name: module for name, module in sys.modules.items() if name[:4] != "rich"})
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}", io.StringIO())
    print_line("text")
    print_coloured("good", COLOURS)
    print_error("bad")
    with Tally("Writing", unit="rows") as tally:
        tally.add(1)
    assert not any(name.startswith("rich") for name in sys.modules)


def test_a_terminal_shows_colours_and_no_markup() -> None:
    with terminal(n_columns=60) as screen:
        print_coloured(f"Path: {PATH}\nall good", COLOURS)
    assert "".join(screen.lines) == f"Path: {PATH}all good"
    assert screen.colour_of("good") == "green"
    assert screen.colour_of("all") == "default"
    # The terminal wraps the line, not we: in a copy it is one line.
    assert f"{PATH}\r\n".encode() in screen.output


def test_an_error_shows_the_value_and_what_to_write_instead() -> None:
    with terminal(n_columns=100) as screen:
        print_error(
            "2 problems in the configuration\n\n"
            "a.yaml:2:3: task.hiden_size is not a field of `DigitsConfig`.\n"
            "      2 |   hiden_size: 8\n"
            "        |   ^^^^^^^^^^\n"
            "  Did you mean task.hidden_size? Write:\n"
            "      hidden_size: 16\n\n"
            "Caused by KeyError: it's what it's"
        )
    assert screen.colour_of("2 problems") == "red"
    assert screen.colour_of("`DigitsConfig`") == "brown"  # so pyte calls yellow
    assert screen.colour_of("hiden_size: 8") == "default"
    assert screen.colour_of("^^^^") == "red"
    assert screen.colour_of("task.hidden_size") == "green"
    assert screen.colour_of("hidden_size: 16") == "green"
    assert screen.colour_of("Caused by") == "red"
    assert screen.colour_of("s what it") == "default"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("PYTHON_COLORS", "0"), ("TERM", "dumb")])
def test_colours_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with terminal() as screen:
        print_coloured("Path: good", COLOURS)
        print_error("There is no `x`.")
    assert screen.output == b"Path: good\r\nThere is no `x`.\r\n"


def test_a_bar_without_colours_is_still_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal(n_columns=30) as screen:
        bar = Bar()
        for n in range(3):
            bar.show(f"Step {n}", share=n / 2, details="done")
        bar.close()
    assert screen.lines == [f"Step 2 |{'█' * 16}| done"]
    assert b"\x1b[3" not in screen.output
    assert b"\x1b[1m" not in screen.output


def test_a_bar_gives_way_to_its_text_where_there_is_little_room() -> None:
    for n_columns, line in ((24, "Step 5 |██  | 50 %, fast"), (22, "Step 5, 50 %, fast"), (10, "Step 5, 50")):
        with terminal(n_columns=n_columns) as screen:
            bar = Bar()
            bar.show("Step 4", share=0.4, details="40 %, fast")
            bar.show("Step 5", share=0.5, details="50 %, fast")
            bar.close()
            print("next")
        assert screen.lines == [line, "next"]


def test_a_bar_follows_the_width_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    with terminal(n_columns=40) as screen:
        bar = Bar()
        bar.show("Step 1", share=0.5, details="50 %")
        screen.resize(n_columns=60)
        bar.show("Step 2", share=1, details="100 %")
        bar.close()
    assert screen.lines == [f"Step 2 |{'█' * 45}| 100 %"]


def test_long_lines_and_brackets_are_printed_above_a_bar_as_they_are() -> None:
    with terminal(n_columns=60) as screen:
        bar = Bar()
        bar.show("Step 1", share=0.5)
        print_line(PATH)
        print_line("[red]two\nlines :smile:")
        bar.close()
    *lines, last = screen.lines
    assert "".join(lines) == f"{PATH}[red]twolines :smile:"
    assert last.startswith("Step 1 |█")


def test_lines_of_several_threads_are_not_torn() -> None:
    def chat(name: str) -> None:
        for n in range(10):
            print_line(f"{name} {n}")

    with terminal() as screen:
        bar = Bar()
        bar.show("Step 0", share=0)
        threads = [threading.Thread(target=chat, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for n in range(20):
            bar.show(f"Step {n}", share=n / 19)
        for thread in threads:
            thread.join()
        bar.close()
    *lines, last = screen.lines
    assert sorted(lines) == sorted(f"{name} {n}" for name in "ab" for n in range(10))
    assert last.startswith("Step 19 |█")


def test_a_line_in_a_pipe_does_not_meet_the_bar_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal() as screen, (tmp_path / "log").open("w") as log:
        monkeypatch.setattr("sys.stdout", log)
        bar = Bar()
        bar.show("Step 1", share=1)
        print_line("Saved.")
        bar.close()
    assert (tmp_path / "log").read_text() == "Saved.\n"
    assert [line.split(" |")[0] for line in screen.lines] == ["Step 1"]


def test_an_error_ends_a_bar() -> None:
    with terminal() as screen:
        bar = Bar()
        bar.show("Step 1", share=0.5)
        print_error("It failed.")
        bar.close()
    assert [line.split(" |")[0] for line in screen.lines] == ["Step 1", "It failed."]


def test_the_cursor_is_visible_while_there_is_a_bar() -> None:
    with terminal() as screen:
        bar = Bar()
        bar.show("Step 1", share=0.5)
        bar.show("Step 2", share=1)
        bar.close()
    before, _, _ = screen.output.partition(b"Step 2")
    assert before.endswith(b"\x1b[?25h\r\x1b[2K")


def test_what_a_terminal_cannot_encode_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal(encoding="ascii") as screen:
        print_line("Saved to Müller.")
        bar = Bar()
        bar.show("Step 1 of Müller", share=0.5, details="50 %")
        print_line("Saved to Märchen.")
        print_error("There is no `ß`.")
    assert screen.lines == [
        "Saved to M\\xfcller.",
        "Saved to M\\xe4rchen.",
        f"Step 1 of M\\xfcller |{'#' * 26}{' ' * 27}| 50 %",
        "There is no `\\xdf`.",
    ]


def test_a_tally_counts_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100))
    monkeypatch.setattr("trellis.runtime.bar.monotonic", lambda: next(times) / 2)
    with terminal() as screen:
        with Tally("Writing a.tfrecord", unit="examples", total=10) as tally:
            tally.add(5)
            tally.add(5)
        assert list(Tally("Reading", unit="lines").over("abc")) == ["a", "b", "c"]
    assert screen.lines == [
        f"Writing a.tfrecord: 10 of 10 examples |{'█' * 5}| 100 %, 6.67 examples/s, took 1.5 s",
        "Reading: 3 lines, 1.50 lines/s, took 2.0 s",
    ]
    assert b" 50 %, 10.0 examples/s, 0.5 s left" in screen.output


def test_a_tally_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(Tally("Reading", unit="lines", total=3).over("abc")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_a_number_has_three_digits() -> None:
    assert [describe_number(value) for value in (0.5, 9.999, 85.34, 99.99, 12345.6)] == [
        "0.50",
        "10.0",
        "85.3",
        "100",
        "12346",
    ]
