"""A terminal for tests: what is on it in the end is what a person would see."""

import contextlib
import fcntl
import os
import select
import struct
import sys
import termios
import threading
from collections.abc import Iterator

import pyte

N_ROWS = 100


class Terminal:
    """A pseudo terminal with a screen."""

    def __init__(self, *, n_columns: int) -> None:
        self.output = b""
        """All that was written to it, control codes included."""
        self._screen = pyte.Screen(n_columns or 80, N_ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._master: int | None
        self._master, self.file = os.openpty()
        self._set_size(n_columns)
        # A terminal takes a few kilobytes, then no more until someone reads them.
        self._is_hung_up = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def lines(self) -> list[str]:
        """The lines on the screen, without the empty ones at its end. It is complete when the terminal is closed."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip("\n").split("\n")

    def colour_of(self, text: str) -> str:
        """The colour of the first character of a text that is on the screen once."""
        (row,) = (row for row, line in enumerate(self._screen.display) if text in line)
        return str(self._screen.buffer[row][self._screen.display[row].index(text)].fg)

    def resize(self, *, n_columns: int) -> None:
        """Makes the window wider or narrower. The lines on the screen stay as they are."""
        self._set_size(n_columns)
        self._screen.resize(N_ROWS, n_columns)

    def hang_up(self) -> None:
        """Closes the window while the program goes on. Whatever it still prints is an error."""
        self._is_hung_up.set()
        self.close()

    def close(self) -> None:
        """Waits until everything is read."""
        self._reader.join()
        if self._master is not None:
            os.close(self._master)
            self._master = None

    def _set_size(self, n_columns: int) -> None:
        size = struct.pack("HHHH", N_ROWS if n_columns else 0, n_columns, 0, 0)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, size)

    def _read(self) -> None:
        assert self._master is not None
        with contextlib.suppress(OSError):  # this is how Linux says that the other end is closed
            while not self._is_hung_up.is_set():
                if select.select([self._master], [], [], 0.02)[0]:
                    data = os.read(self._master, 4096)
                    self.output += data
                    self._stream.feed(data)


@contextlib.contextmanager
def terminal(*, n_columns: int = 80, encoding: str = "utf-8") -> Iterator[Terminal]:
    """Puts a terminal in the place of stdout and stderr."""
    opened = Terminal(n_columns=n_columns)
    hook = sys.excepthook
    try:
        with (
            os.fdopen(opened.file, "w", encoding=encoding) as out,
            os.fdopen(os.dup(opened.file), "w", encoding=encoding) as err,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            yield opened
    finally:
        opened.close()
    assert sys.excepthook is hook
