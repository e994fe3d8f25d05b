"""Checkpoint files as another process writes them, and the events that tell of its end."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from trellis.errors import CheckpointFileError, Preempted
from trellis.extensions import checkpoint_storage, parse_event, regular_files
from trellis.runtime import agreed, is_any_stopping, print_line

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_A_LOOK = 1.0
"""After so long, processes that wait together look whether one of them is told to stop."""


def new_files(directory: Path, *, timeout: float | None, last_step: int | None) -> Iterator[Path]:
    """Yields each checkpoint file of a run that is there or appears, oldest first, once.

    What has the name of one and cannot be read is told of, once, and passed over. A run that goes on up to a known step
    is waited for, however long it takes or pauses, unless it has ended before that.

    Args:
        timeout: Seconds to wait for another one, after which it is told that none has come; None is for ever.
        last_step: The step after which no other is awaited; None is for not known, and then the time-out ends the wait.
    """
    newest_step = -1
    is_told = False
    deadline = time.monotonic() + (timeout or 0)
    end = _End(directory / "events.jsonl")
    damaged: set[Path] = set()

    def is_readable(path: Path) -> bool:
        try:
            checkpoint_storage.peek_manifest(path)
        except CheckpointFileError as error:
            if path not in damaged and os.path.lexists(path):
                print_line(f"Skipping the damaged checkpoint file `{path}`: {error}.")
                damaged.add(path)
            return False
        return True

    def look() -> str | None:
        """The next file; empty if there is none yet, and None if none is awaited any more."""
        nonlocal is_told
        end_of_look = time.monotonic() + _SECONDS_A_LOOK
        while True:
            # Before the files are listed: a run has written all of them when it tells of its end.
            is_over = end.is_reached()
            files = [path for step, path in regular_files(directory) if step > newest_step and is_readable(path)]
            if files:
                return str(files[0])
            if is_over:
                return None
            if timeout is not None and time.monotonic() >= deadline and not is_told:
                none_came = f"No new checkpoint file in `{directory}` for {timeout} seconds"
                if last_step is None or end.has_finished:
                    has_finished = ", and its training has finished" * end.has_finished
                    print_line(f"{none_came}{has_finished}: the evaluation ends.")
                    return None
                print_line(f"{none_came}: still waiting for step {last_step}, that of trainer.train_steps.")
                is_told = True
            if time.monotonic() >= end_of_look:
                return ""
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    while last_step is None or newest_step < last_step:
        # Of several processes the first one looks: another may see other files, or see them later.
        name = agreed(look)
        if name is None:
            return
        if name:
            path = Path(name)
            newest_step = int(path.name.rpartition("_")[2])
            yield path
            deadline = time.monotonic() + (timeout or 0)
            is_told = False
        if jax.process_count() > 1 and is_any_stopping():
            print_line("Stopped by SIGTERM while it waited for checkpoint files. The same command goes on from there.")
            raise Preempted


class _End:
    """Whether a run has ended: at its last step, or before that because it did not get better."""

    def __init__(self, path: Path) -> None:
        self._events = NewEvents(path)
        self._stops_early = False
        self._last_kind = ""
        self.has_finished = False
        """Whether it has reached what it took for its last step."""

    def is_reached(self) -> bool:
        """Reads the new events of the run; returns whether they tell of its early end."""
        events = self._events.read()
        if self._events.is_new:
            self._stops_early = False
            self._last_kind = ""
            self.has_finished = False
        for event in events:
            self._last_kind = event.get("kind", "")
            if self._last_kind == "stopped_early":
                self._stops_early = True
            elif self._last_kind == "finished":
                self.has_finished = True
            elif self._last_kind == "initialized":
                # The run was started again.
                self._stops_early = False
                self.has_finished = False
        return self._stops_early and self._last_kind == "stopped"


class NewEvents:
    """Reads a file of events that another process writes; each call of `read` returns what was added since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._identity = (0, 0)
        self.is_new = False
        """Whether the last call has read the file from its beginning."""

    def read(self) -> list[dict[str, Any]]:
        """The events of the lines that were added; those of all lines if the file was replaced or has shrunk.

        A last line without an end is left to the next call, and lines that hold no JSON object are passed over.
        """
        self.is_new = False
        try:
            file = self._path.open("rb")
        except OSError:
            # The next file of this name may get the same number on the disk. The run that writes it names its damage.
            self._identity = (0, 0)
            return []
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                self.is_new = True
                self._identity = identity
                self._offset = 0
            file.seek(self._offset)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
        self._offset += len(content)
        return [event for event in map(parse_event, content.splitlines()) if event]
