"""Checkpoint files as another process writes them."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from trellis.extensions import regular_files
from trellis.runtime import print_line

_SECONDS_BETWEEN_LOOKS = 0.2
_TAIL = 8192


def new_files(directory: Path, *, timeout: float | None, last_step: int | None) -> Iterator[Path]:
    """Yields each checkpoint file of a run that is there or appears, oldest first, once.

    Args:
        timeout: Seconds to wait for another one; None is for ever.
        last_step: The step after which no other is awaited.
    """
    seen = -1
    deadline = time.monotonic() + (timeout or 0)
    while last_step is None or seen < last_step:
        is_over = _has_stopped_early(directory)
        fresh = [(step, path) for step, path in regular_files(directory) if step > seen]
        if fresh:
            seen, path = fresh[0]
            yield path
            deadline = time.monotonic() + (timeout or 0)
        elif is_over:
            return
        elif timeout is not None and time.monotonic() >= deadline:
            print_line(f"No new checkpoint file in `{directory}` for {timeout} seconds: the evaluation ends.")
            return
        else:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _has_stopped_early(directory: Path) -> bool:
    """Whether a run has left all its files before its last step, and said so."""
    events = directory / "events.jsonl"
    tail = events.read_bytes()[-_TAIL:] if events.is_file() else b""
    kinds = re.findall(rb'^\{"kind": "(\w+)"', tail, re.MULTILINE)
    return b"stopped_early" in kinds and kinds[-1] == b"stopped"
