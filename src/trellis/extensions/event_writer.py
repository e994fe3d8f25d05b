"""Everything that happens in a run, as lines of JSON."""

import json
import os
import threading
import time

from trellis.aliases import JSON
from trellis.disk import (
    append_whole,
    check_still_owned,
    check_writable,
    describe_failure,
    local_path,
    set_aside,
    sync_appended,
    write_whole,
)
from trellis.extensions.event_lines import is_point_past, parse_event, with_checksum
from trellis.extensions.extension import Extension
from trellis.json_text import without_nan
from trellis.loops import Checkpoint, Event, Session, Summary


class EventWriter(Extension):
    """Writes `{output_dir}/events.jsonl`: one JSON object a line for each event of the session and each summary.

    Every line has `kind`, `step` and `time` (seconds since 1970). An event adds its `text` and values; a summary (kind
    `summary`) adds `n_completed_steps`, `elapsed_time` and `metrics`; `crc32`, that of the line without it, comes last.
    A line is in the file when the call returns, and survives a power cut once a checkpoint file of its step is there.
    Numbers that JSON does not have are the strings "nan", "inf" and "-inf", which `float()` turns back.

    The summaries and fingerprints in a file are those of one run: when a resumed run writes its first summary, those
    past the step it resumed from, which come from lost work, are dropped. Other events stay: that a run was resumed is
    part of its history. A directory belongs to one writer at a time. A file with damaged lines is set aside before the
    run goes on; the lines that are whole are kept, and an event tells of it.

    Example:
        process = serial(EvalLoop(task=task, n_steps=20), EventWriter("runs/digits"))
        loop.attach(process)  # or only what happens from the first checkpoint on is written

        {"kind": "summary", "step": 500, "time": 1763240000.5, "n_completed_steps": 500, "elapsed_time": 1.73,
         "metrics": {"train": {"loss": 0.41270921}, "eval": {"accuracy": 0.875}}}  # on one line
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        self._path = local_path(output_dir, name="output_dir") / "events.jsonl"
        self._is_whole = False
        self._last_step: int | None = None
        # Saves that run in the background emit events too.
        self._lock = threading.Lock()
        check_writable(self._path.parent)

    def join(self, session: Session) -> None:
        """Writes what has happened in the session so far, and what will."""
        self._last_step = None
        self._mend(session)
        session.subscribe(self._write_event)
        session.before_commit(self._sync)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Writes a summary, and returns the checkpoint as it came."""
        summary = Summary.from_checkpoint(checkpoint)
        with self._lock:
            if self._last_step is None or summary.step < self._last_step:
                check_still_owned(self._path.parent)
                self._drop_points_past(summary.step - summary.n_completed_steps)
            self._last_step = summary.step
            self._append(
                "summary",
                summary.step,
                time.time(),
                n_completed_steps=summary.n_completed_steps,
                elapsed_time=summary.elapsed_time,
                metrics={
                    group: {name: float(value) for name, value in metrics.items()}
                    for group, metrics in summary.metrics.items()
                },
            )
        return checkpoint

    def _write_event(self, event: Event) -> None:
        with self._lock:
            text: dict[str, JSON] = {"text": event.text} if event.text else {}
            self._append(event.kind, event.step, event.time, **text | dict(event.values))

    def _append(self, kind: str, step: int, time: float, **values: JSON) -> None:
        line = {"kind": kind, "step": step, "time": time} | values
        text = with_checksum(json.dumps(without_nan(line), ensure_ascii=False, allow_nan=False))
        # Opened anew for each line, so that nothing is written to a file that was replaced.
        append_whole(self._path, f"{text}\n".encode())

    def _sync(self) -> None:
        if self._path.exists():
            sync_appended(self._path)

    def _mend(self, session: Session) -> None:
        """Makes the file one that can be gone on with: every line is an event; once is enough."""
        if self._is_whole or not os.path.lexists(self._path):
            return
        self._is_whole = True
        try:
            lines = self._read_lines()
        except OSError as error:
            text = f"`{self._path}` cannot be read: {describe_failure(error)}. It is set aside"
            session.emit("damaged", step=0, text=f"{text} as `{set_aside(self._path).name}`.", path=str(self._path))
            return
        whole = [line for line in lines if parse_event(line)]
        if len(whole) == len(lines):
            if lines and not lines[-1].endswith(b"\n"):
                write_whole(self._path, b"".join(lines) + b"\n")
        elif whole == lines[:-1] and not lines[-1].endswith(b"\n"):
            # As a process leaves it that is killed in the midst of a line.
            write_whole(self._path, b"".join(whole))
            text = f"The last line of `{self._path}` was cut short: it is removed."
            session.emit("damaged", step=0, text=text, path=str(self._path))
        else:
            first = next(number for number, line in enumerate(lines, start=1) if not parse_event(line))
            aside = set_aside(self._path)
            write_whole(self._path, b"".join(line.rstrip(b"\n") + b"\n" for line in whole))
            text = (
                f"`{self._path}` is damaged: {len(lines) - len(whole)} of its {len(lines)} lines hold no event, the "
                f"first is line {first}. It is set aside as `{aside.name}`; the whole lines are kept."
            )
            session.emit("damaged", step=0, text=text, path=str(self._path))

    def _drop_points_past(self, start: int) -> None:
        """Removes summaries and fingerprints of later steps than `start`, which come from lost work."""
        lines = self._read_lines()
        remaining = [line for line in lines if not is_point_past(start, line)]
        if len(remaining) < len(lines):
            write_whole(self._path, b"".join(remaining))

    def _read_lines(self) -> list[bytes]:
        # A link to nothing is lost history, not a file that is not there yet.
        return self._path.read_bytes().splitlines(keepends=True) if os.path.lexists(self._path) else []
