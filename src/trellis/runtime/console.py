"""What people see on the screen: lines, errors, tables, colours and a bar.

Text is plain wherever no one watches: colours and bars are for terminals, and rich, which draws them, is imported when
the first of them is drawn. So a command that lists something starts at once, and its output in a pipe or a file has
no codes, is not wrapped, and is not cut.
"""

import atexit
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO, TypeVar

from trellis.aliases import PyTree

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

Item = TypeVar("Item")

DRAW_INTERVAL = 0.1
"""Seconds between two drawings of a bar. More often does not help the eye."""

_MIN_BAR_WIDTH = 4

# There is one screen in a process, and whoever prints a line must know of the bar that is on it.
_open_bars: list["Bar"] = []

# Errors of a terminal that was closed while a run goes on, and of a closed stderr. A run is worth more than its bar.
_GONE = (OSError, ValueError)

_ERROR_COLOURS = (
    r"^(?P<red>\d+ problems in the configuration)$",
    r"^(?P<red>Caused by \w+):",
    r"^ *(?:\| *)?(?P<red>\^+)$",  # below a value that is wrong
    r"(?P<yellow>`[^`\n]+`|(?<!\w)'[^'\n]+'(?!\w))",
    r"Did you mean (?P<green>[^\n]+?)\?(?=\s|$)",
    r"^      (?P<green>(?!(?:\| *)?\^+$)\S.*)$(?!\n *(?:\| *)?\^+$)",  # what to write instead
)


def print_line(text: str) -> None:
    """Prints one line on stdout at once, above a bar if there is one."""
    # Where stdout is a pipe or a file, the line does not meet the bar, which is on the terminal of stderr.
    if _open_bars and sys.stdout.isatty():
        sys.stdout.flush()
        if _open_bars[-1].print_above(text):
            return
    _write(text, sys.stdout)
    sys.stdout.flush()


def print_coloured(text: str, colours: Sequence[str]) -> None:
    """Prints text on stdout, in colours if that is a terminal that has them.

    Args:
        colours: Patterns. A group is named by its colour, or `bold`: `r"^(?P<green>Done):"`. `^` and `$` are the ends
            of a line.
    """
    _print_coloured(text, colours, sys.stdout)


def print_error(text: str) -> None:
    """Prints what is wrong on stderr, below a bar, which ends. On a terminal, values and corrections are coloured."""
    for bar in reversed(_open_bars):
        bar.close()
    _print_coloured(text, _ERROR_COLOURS, sys.stderr)


def table(rows: Iterable[Sequence[str]], *, alignment: str = "<") -> list[str]:
    """Returns rows as lines in which the cells of a column are below each other.

    Args:
        alignment: `<` or `>` for each column: to the left or to the right. The last one counts for all columns after
            it: with `"<>"` names are on the left, and numbers on the right.
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = alignment.ljust(len(widths), alignment[-1])
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in cells
    ]


class Bar:
    """One line at the bottom of a terminal, which is drawn again and again. It is on stderr.

    Lines that are printed by `print_line` appear above it. The line is as wide as the terminal, so that a `print` of
    anyone else begins on a line of its own. An error ends the bar before its traceback is printed.
    """

    def __init__(self) -> None:
        from rich.live import Live

        self._stream = sys.stderr
        self._console = _console(self._stream)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._excepthook = sys.excepthook
        self._is_open = False

    def show(self, text: str, *, share: float | None = None, details: str = "") -> None:
        """Draws the line: the text, a bar that is filled to the share, and the details."""
        try:
            # rich asks other streams for the size, and believes COLUMNS, which does not change with the window.
            size = os.get_terminal_size(self._stream.fileno())
            if size.columns:
                self._console.size = size
            self._live.update(_BarLine(text, share, details, self._stream), refresh=self._is_open)
            if not self._is_open:
                self._open()
        except _GONE:
            self.close()

    def print_above(self, text: str) -> bool:
        """Prints lines above the bar; returns whether there is still a terminal to print them on."""
        try:
            self._console.print(_plain(text, self._stream), soft_wrap=True)
        except _GONE:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Leaves the line as it is; what is printed next is below it."""
        if not self._is_open:
            return
        self._is_open = False
        _open_bars.remove(self)
        atexit.unregister(self.close)
        # Another hook that was set meanwhile stays. It may call ours, which then only passes the error on.
        if sys.excepthook == self._close_and_report:
            sys.excepthook = self._excepthook
        with contextlib.suppress(*_GONE):
            self._live.stop()

    def _open(self) -> None:
        self._is_open = True
        _open_bars.append(self)
        # Not everyone who begins a run comes to its end.
        atexit.register(self.close)
        sys.excepthook = self._close_and_report
        self._live.start(refresh=True)
        # rich hides the cursor, and a process that is killed cannot show it again.
        self._console.show_cursor(True)

    def _close_and_report(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.close()
        self._excepthook(kind, error, trace)


class Tally:
    """Counts on the screen what a long piece of work has done. Without a terminal it counts in silence.

    Example:
        with Tally("Writing a.tfrecord", unit="examples", total=1000) as tally:
            for block in blocks:
                write(block)
                tally.add(len(block))
    """

    def __init__(self, label: str, *, unit: str, total: int | None = None) -> None:
        self._label = label
        self._unit = unit
        self._total = total
        self._count = 0
        self._start = monotonic()
        self._next_time = self._start
        self._bar = Bar() if can_show_bar() else None

    def add(self, count: int) -> None:
        """Counts what was done since the last call."""
        self._count += count
        if self._bar is None:
            return
        now = monotonic()
        if now >= self._next_time:
            self._next_time = now + DRAW_INTERVAL
            seconds = now - self._start
            rest = seconds * (self._total - self._count) / self._count if self._total and self._count else None
            self._show(self._bar, seconds, "" if rest is None else f"{describe_duration(rest)} left")

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items, and counts each."""
        with self:
            for item in items:
                yield item
                self.add(1)

    def __enter__(self) -> Self:
        """Begins to count."""
        return self

    def __exit__(self, *error: object) -> None:
        """Shows the last number, and leaves it on the screen."""
        if self._bar is not None:
            seconds = monotonic() - self._start
            self._show(self._bar, seconds, f"took {describe_duration(seconds)}")
            self._bar.close()

    def _show(self, bar: Bar, seconds: float, time_text: str) -> None:
        text = f"{self._label}: {self._count}{f' of {self._total}' if self._total else ''} {self._unit}"
        share = self._count / self._total if self._total else None
        details = [] if share is None else [f"{int(100 * share)} %"]
        if self._count and seconds:
            details.append(f"{describe_number(self._count / seconds)} {self._unit}/s")
        bar.show(text, share=share, details=", ".join(filter(None, [*details, time_text])))


def can_show_bar() -> bool:
    """Whether stderr is a terminal on which a line can be drawn again."""
    try:
        # A terminal without a size, such as that of `docker run -t`, has no room for a bar.
        return _is_terminal(sys.stderr) and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except OSError:
        return False


def describe_number(value: float) -> str:
    """A positive number for people, in three digits or more."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def describe_duration(seconds: float) -> str:
    """A time for people, in the two units that matter."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def describe_size(n_bytes: int) -> str:
    """A size for people: exact in bytes, else cut to one decimal in units of 1024."""
    size, text = float(n_bytes), f"= {n_bytes} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1024
        if size < 1:
            break
        text = f"~ {int(size * 10) / 10} {unit}"
    return text


def describe_weights(params: PyTree) -> str:
    """How many weights there are, and their size in memory."""
    import jax  # commands that need no JAX print by this module too

    leaves = jax.tree.leaves(params)
    size = describe_size(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    return f"Total number of trainable weights: {sum(leaf.size for leaf in leaves)} {size}."


class _BarLine:
    """What rich draws: a text, a bar that takes the room there is, and details, in one line as wide as the screen."""

    def __init__(self, text: str, share: float | None, details: str, stream: TextIO) -> None:
        self._text = text
        self._share = share
        self._details = details
        self._stream = stream

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.bar import Bar as Blocks
        from rich.cells import cell_len, set_cell_size
        from rich.segment import Segment

        start = _encodable(f"{self._text} |", self._stream)
        end = _encodable(f"| {self._details}", self._stream)
        room = options.max_width - cell_len(start) - cell_len(end)
        if self._share is None or room < _MIN_BAR_WIDTH:
            text = _encodable(", ".join(filter(None, (self._text, self._details))), self._stream)
            yield Segment(set_cell_size(text, options.max_width))
            return
        yield Segment(start)
        if options.ascii_only:
            yield Segment(f"{'#' * int(room * self._share):<{room}}")
        else:
            # Blocks and blanks, unlike a line in two colours, can be told apart without colours and in a copy.
            blocks, *_ = console.render(Blocks(1.0, 0.0, self._share, width=room), options)
            yield blocks
        yield Segment(end)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _has_colours(stream: TextIO) -> bool:
    # The names are agreed on by many programs: https://no-color.org, and Python's own for its tracebacks.
    is_off = os.environ.get("NO_COLOR") or os.environ.get("PYTHON_COLORS") == "0"
    return not is_off and _is_terminal(stream)


def _console(stream: TextIO) -> "Console":
    """A console of rich for a terminal. It interprets nothing in a text."""
    from rich.console import Console

    return Console(
        file=stream,
        force_terminal=True,
        force_interactive=True,
        force_jupyter=False,
        color_system="auto" if _has_colours(stream) else None,
        no_color=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _plain(text: str, stream: TextIO) -> "Text":
    """Text for rich in which nothing is interpreted, and which the stream can encode."""
    from rich.text import Text

    return Text(_encodable(text, stream), end="")


def _print_coloured(text: str, colours: Sequence[str], stream: TextIO) -> None:
    if not _has_colours(stream):
        _write(text, stream)
        return
    coloured = _plain(text, stream)
    for pattern in colours:
        coloured.highlight_regex(f"(?m){pattern}")
    _console(stream).print(coloured, soft_wrap=True)


def _write(text: str, stream: TextIO) -> None:
    try:
        stream.write(f"{text}\n")
    except UnicodeEncodeError:
        stream.write(f"{_encodable(text, stream)}\n")


def _encodable(text: str, stream: TextIO) -> str:
    """The text, with what the stream cannot encode as a Python escape: a name is not worth the end of a run."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding, stream.errors or "strict")
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text
