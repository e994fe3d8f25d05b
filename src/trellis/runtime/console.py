"""What people see on the screen: lines, errors, tables and colours.

Text is plain wherever no one watches: colours and bars are for terminals, and rich, which draws them, is imported when
the first of them is drawn. So a command that lists something starts at once, and its output in a pipe or a file has
no codes, is not wrapped, and is not cut.
"""

import errno
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from trellis.aliases import PyTree
from trellis.json_text import without_nan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class LineAtTheBottom(Protocol):
    """A line of the screen that other lines are printed above."""

    def print_above(self, text: str) -> bool:
        """Prints lines above it; returns whether there is still a terminal to print them on."""

    def close(self) -> None:
        """Leaves the line as it is; what is printed next is below it."""


NOTEBOOK_WIDTH = 100
"""The characters of a line in a notebook, which most of them show without a break."""

# There is one screen in a process, and whoever prints a line must know of the bar that is on it.
open_bars: list[LineAtTheBottom] = []

_ERROR_COLOURS = (
    r"^(?P<red>\d+ problems in the configuration)$",
    r"^(?P<red>Caused by \w+):",
    r"^ *(?:\| *)?(?P<red>\^+)$",  # below a value that is wrong
    r"(?P<yellow>`[^`\n]+`|(?<!\w)'[^'\n]+'(?!\w))",
    r"Did you mean (?P<green>[^\n]+?)\?(?=\s|$)",
    r"^      (?P<green>(?!(?:\| *)?\^+$)\S.*)$(?!\n *(?:\| *)?\^+$)",  # what to write instead
)


# Whether a closed pipe is an error. A run is worth more than its lines, but what only tells may end with its reader.
_ends_with_reader: list[bool] = []

# Where the answers for programs go while stdout is theirs alone.
_json_streams: list[TextIO] = []

# What a write to a stream says when its reader is gone for good: a closed pipe, terminal or descriptor.
_GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET)


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """Within it, printing raises BrokenPipeError when the reader has closed the pipe, as in `… | head`."""
    _ends_with_reader.append(True)
    try:
        yield
    finally:
        _ends_with_reader.pop()


def open_missing_streams() -> None:
    """Has stdin, stdout and stderr that were closed when the process started lead nowhere.

    The first file that is opened would get the number of a closed one, and what a library prints would be in that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            os.fstat(number)
        except OSError:
            os.dup2(nowhere, number)
            os.close(nowhere)
            nowhere = number
        os.set_inheritable(nowhere, True)
        setattr(sys, name, open(nowhere, mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends


def print_line(text: str) -> None:
    """Prints one line on stdout at once, above a bar if there is one.

    Where nobody can read it any more, it is lost, and no error: a run goes on without its terminal.
    """
    with _unread_is_lost(sys.stdout) as stream:
        # Where stdout is a pipe or a file, the line does not meet the bar, which is on the terminal of stderr.
        if open_bars and stream.isatty():
            stream.flush()
            if open_bars[-1].print_above(text):
                return
        _write(text, stream)
        stream.flush()


@contextmanager
def answering_in_json() -> Iterator[None]:
    """Within it, stdout has what `print_json` prints and nothing else; what is for people goes to stderr."""
    _json_streams.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _json_streams.pop()


def print_json(content: object, *, is_one_of_many: bool = False) -> None:
    """Prints the answer for programs, in which names stand for numbers that JSON does not have.

    Args:
        is_one_of_many: It is one line of several, as answers that come one by one are.
    """
    text = json.dumps(without_nan(content), indent=None if is_one_of_many else 1, default=str)
    with _unread_is_lost(_json_streams[-1] if _json_streams else sys.stdout) as stream:
        _write(text, stream)
        stream.flush()


def flush_output() -> None:
    """Brings what was printed to its reader, if there is one."""
    with _unread_is_lost(sys.stdout) as stream:
        stream.flush()


@contextmanager
def _unread_is_lost(stream: TextIO) -> Iterator[TextIO]:
    """Lets writes to a stream fail in silence, and from then on has it lead nowhere if its reader is gone."""
    try:
        yield stream
    except (OSError, ValueError, AttributeError) as error:
        # A stream that was closed by somebody raises ValueError, and one that was never there is None.
        is_error_of_stream = isinstance(error, OSError) or stream is None or stream.closed
        if not is_error_of_stream or (_ends_with_reader and isinstance(error, BrokenPipeError)):
            raise
        if isinstance(error, OSError) and error.errno in _GONE:
            lead_nowhere(stream)


def lead_nowhere(stream: TextIO) -> None:
    """Drops what is written to a stream from now on."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def print_coloured(text: str, colours: Sequence[str]) -> None:
    """Prints text on stdout, in colours if that is a terminal that has them.

    Args:
        colours: Patterns. A group is named by its colour, or `bold`: `r"^(?P<green>Done):"`. `^` and `$` are the ends
            of a line.
    """
    _print_coloured(text, colours, sys.stdout)


def print_error(text: str) -> None:
    """Prints what is wrong on stderr, below a bar, which ends. On a terminal, values and corrections are coloured."""
    for bar in reversed(open_bars):
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


def describe_number(value: float) -> str:
    """A positive number for people, in three digits or more."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def describe_metric(value: float) -> str:
    """A number of any size for people, in four or five significant digits: mostly six characters."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    digits, exponent_text = f"{value:.3e}".split("e")
    exponent = int(exponent_text)
    if not -3 <= exponent <= 5:
        return f"{digits}e{exponent}"
    n_decimals = 4 - exponent if exponent >= 0 else 3 - exponent
    return f"{value:.{max(0, n_decimals)}f}"


def describe_rate(rate: float) -> str:
    """A positive number of steps a second, or of seconds a step if that is less than one."""
    return f"{describe_number(1 / rate)} s/step" if rate < 1 else f"{describe_number(rate)} steps/s"


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


def count_weights(params: PyTree) -> int:
    """How many numbers there are in a tree of arrays, or of their shapes."""
    import jax  # commands that need no JAX print by this module too

    return sum(math.prod(jax.numpy.shape(leaf)) for leaf in jax.tree.leaves(params))


def describe_weights(params: PyTree, *, n_frozen: int = 0) -> str:
    """How many weights are trained, and their size in memory; and how many more there are."""
    import jax  # commands that need no JAX print by this module too

    leaves = jax.tree.leaves(params)
    size = describe_size(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    more = f"; {n_frozen} more are frozen" if n_frozen else ""
    return f"Total number of trainable weights: {count_weights(params)} {size}{more}."


def is_notebook() -> bool:
    """Whether this runs in a cell of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


def line_width() -> float:
    """How many characters fit into a line on stdout: infinitely many in a pipe or a file."""
    if is_notebook():
        return NOTEBOOK_WIDTH
    try:
        is_limited = sys.stdout.isatty()
        # A terminal without a size, such as that of `docker run -t`, is as wide as it may be.
        return (os.get_terminal_size(sys.stdout.fileno()).columns if is_limited else 0) or math.inf
    except (OSError, ValueError, AttributeError):
        return math.inf  # It was closed, or never there.


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that does more than print line after line."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _has_colours(stream: TextIO) -> bool:
    # The names are agreed on by many programs: https://no-color.org, and Python's own for its tracebacks.
    is_off = os.environ.get("NO_COLOR") or os.environ.get("PYTHON_COLORS") == "0"
    return not is_off and is_terminal(stream)


def terminal_console(stream: TextIO) -> "Console":
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


def plain_text(text: str, stream: TextIO) -> "Text":
    """Text for rich in which nothing is interpreted, and which the stream can encode."""
    from rich.text import Text

    return Text(encodable(text, stream), end="")


def _print_coloured(text: str, colours: Sequence[str], stream: TextIO) -> None:
    with _unread_is_lost(stream):
        if not _has_colours(stream):
            _write(text, stream)
            stream.flush()
            return
        coloured = plain_text(text, stream)
        for pattern in colours:
            coloured.highlight_regex(f"(?m){pattern}")
        terminal_console(stream).print(coloured, soft_wrap=True)


def _write(text: str, stream: TextIO) -> None:
    try:
        stream.write(f"{text}\n")
    except UnicodeEncodeError:
        stream.write(f"{encodable(text, stream)}\n")


def encodable(text: str, stream: TextIO) -> str:
    """The text, with what the stream cannot encode as a Python escape: a name is not worth the end of a run."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding, stream.errors or "strict")
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text
