"""A bar at the bottom of a terminal or in a notebook, and a tally of long work that is shown by one."""

import atexit
import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

from trellis.runtime.console import (
    NOTEBOOK_WIDTH,
    describe_duration,
    describe_number,
    encodable,
    is_notebook,
    is_terminal,
    open_bars,
    plain_text,
    terminal_console,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Item = TypeVar("Item")

DRAW_INTERVAL = 0.1
"""Seconds between two drawings of a bar. More often does not help the eye."""

_MIN_BAR_WIDTH = 4

# Errors of a terminal that was closed while a run goes on, and of a closed stderr. A run is worth more than its bar.
_GONE = (OSError, ValueError)


def new_bar() -> "Bar | NotebookBar | None":
    """A bar for whoever watches: on a terminal or in a notebook; None if nobody does."""
    if is_notebook():
        return NotebookBar()
    return Bar() if _can_draw_on_stderr() else None


def _can_draw_on_stderr() -> bool:
    try:
        # A terminal without a size, such as that of `docker run -t`, has no room for a bar.
        return is_terminal(sys.stderr) and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError, AttributeError):
        return False  # It was closed, or never there.


class Bar:
    """One line at the bottom of a terminal, which is drawn again and again. It is on stderr.

    Lines that are printed by `print_line` appear above it. The line is as wide as the terminal, so that a `print` of
    anyone else begins on a line of its own. An error ends the bar before its traceback is printed.
    """

    def __init__(self) -> None:
        from rich.live import Live

        self._stream = sys.stderr
        self._console = terminal_console(self._stream)
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
            self._console.print(plain_text(text, self._stream), soft_wrap=True)
        except _GONE:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Leaves the line as it is; what is printed next is below it."""
        if not self._is_open:
            return
        self._is_open = False
        open_bars.remove(self)
        atexit.unregister(self.close)
        # Another hook that was set meanwhile stays. It may call ours, which then only passes the error on.
        if sys.excepthook == self._close_and_report:
            sys.excepthook = self._excepthook
        with contextlib.suppress(*_GONE):
            self._live.stop()

    def _open(self) -> None:
        self._is_open = True
        open_bars.append(self)
        # Not everyone who begins a run comes to its end.
        atexit.register(self.close)
        sys.excepthook = self._close_and_report
        self._live.start(refresh=True)
        # rich hides the cursor, and a process that is killed cannot show it again.
        self._console.show_cursor(True)

    def _close_and_report(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.close()
        self._excepthook(kind, error, trace)


class NotebookBar:
    """One line in the output of a notebook's cell, which is replaced again and again; printed lines are below it."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, *, share: float | None = None, details: str = "") -> None:
        """Draws the line: the text, a bar that is filled to the share, and the details."""
        from IPython.display import display

        nowhere = io.StringIO()
        console = terminal_console(nowhere)
        options = console.options.update_width(NOTEBOOK_WIDTH)
        line = "".join(segment.text for segment in console.render(_BarLine(text, share, details, nowhere), options))
        content = {"text/plain": line.rstrip()}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        """Leaves the line as it is."""


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
        self._bar = new_bar()

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

    def _show(self, bar: Bar | NotebookBar, seconds: float, time_text: str) -> None:
        text = f"{self._label}: {self._count}{f' of {self._total}' if self._total else ''} {self._unit}"
        share = self._count / self._total if self._total else None
        details = [] if share is None else [f"{int(100 * share)} %"]
        if self._count and seconds:
            details.append(f"{describe_number(self._count / seconds)} {self._unit}/s")
        bar.show(text, share=share, details=", ".join(filter(None, [*details, time_text])))


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

        start = encodable(f"{self._text} |", self._stream)
        end = encodable(f"| {self._details}", self._stream)
        room = options.max_width - cell_len(start) - cell_len(end)
        if self._share is None or room < _MIN_BAR_WIDTH:
            text = encodable(", ".join(filter(None, (self._text, self._details))), self._stream)
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
