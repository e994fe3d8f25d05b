"""Summaries as TensorBoard scalars."""

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

from trellis.data import RecordWriter, read_records
from trellis.disk import check_writable, describe_failure, set_aside, sync_appended
from trellis.errors import CutShortError, DataError
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Session, Summary

_PREFIX = "events.out.tfevents."
_SUFFIX = ".trellis"
_FRAME_BYTES = 16
"""What a record takes up beside its content: its length, and two checksums."""


class SummaryWriter(Extension):
    """Writes summaries for TensorBoard: a scalar `{group}/{metric}` at the step of each, such as `eval/accuracy`.

    There is one event file for each loop that the writer sees, in which a summary is whole or not at all, and is there
    when the call returns. It survives a power cut once a checkpoint file of its step is there.

    The points in a directory are those of one run: when a resumed run writes its first, those past the step it resumed
    from, which come from lost work, are taken out of the older files of this class, and a TensorBoard that is running
    is told to forget them. A directory belongs to one writer at a time. An older file that is damaged is set aside
    before the run goes on; the points before the damage are kept, and an event tells of it.

    Example:
        process = serial(EvalLoop(task=task, n_steps=20), SummaryWriter("runs/digits"))
        # tensorboard --logdir runs
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        self._dir = Path(output_dir)
        self._file = self._dir
        self._last_step: int | None = None
        check_writable(self._dir)

    def join(self, session: Session) -> None:
        """Starts a new file with the next summary, as another loop may start at an earlier step."""
        self._last_step = None
        for path in summary_files(self._dir):
            _mend(path, session)
        session.before_commit(self._sync)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Writes a summary, and returns the checkpoint as it came."""
        summary = Summary.from_checkpoint(checkpoint)
        values = [
            {"tag": f"{group}/{name}", "simple_value": float(value)}
            for group, metrics in summary.metrics.items()
            for name, value in metrics.items()
        ]
        records = [_record(step=summary.step, summary={"value": values})]
        if self._last_step is None or summary.step < self._last_step:
            records = self._start_file(summary.step - summary.n_completed_steps) + records
        self._last_step = summary.step
        # Not kept open: there is nothing to close when a run ends, however it ends.
        with self._file.open("ab") as file:
            file.write(b"".join(records))
        return checkpoint

    def _sync(self) -> None:
        if self._last_step is not None:
            sync_appended(self._file)

    def _start_file(self, start: int) -> list[bytes]:
        """Chooses the file to write to, takes points past the step `start` out of others; returns the file's head."""
        from tensorboardX.proto.event_pb2 import SessionLog

        files = summary_files(self._dir)
        n_mended = sum(_drop_points_past(start, path) for path in files)
        # TensorBoard reads files in the order of their names: that has to be the order of the runs, whatever the clock.
        newest = max((int(path.name.removeprefix(_PREFIX)[:10]) for path in files), default=0)
        number = max(int(time.time()), newest + 1)
        self._file = self._dir / f"{_PREFIX}{number:010d}.{socket.gethostname()}{_SUFFIX}"
        head = [_record(file_version="brain.Event:2")]
        if n_mended:
            # What a running TensorBoard has read is gone from the files, but not from its memory. It takes the first
            # mark of a restart for the start of the run, and forgets what comes after the step of the second.
            head += 2 * [_record(step=start + 1, session_log={"status": SessionLog.START})]
        return head


def _record(**fields: Any) -> bytes:
    """An event as a record of an event file: length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data: bytes = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    return struct.pack("<I", masked_crc32c(data))


def summary_files(directory: Path) -> list[Path]:
    """The files of a `SummaryWriter`, in the order in which TensorBoard reads them."""
    return sorted(directory.glob(f"{_PREFIX}{10 * '[0-9]'}.*{_SUFFIX}"))


def steps_with_points(directory: Path, *, group: str) -> set[int]:
    """The steps at which the files of a `SummaryWriter` have points of a group of metrics."""
    from tensorboardX.proto.event_pb2 import Event

    events = [Event.FromString(record) for path in summary_files(directory) for record in _whole_records(path)[0]]
    return {
        event.step
        for event in events
        if event.HasField("summary") and any(value.tag.startswith(f"{group}/") for value in event.summary.value)
    }


def _mend(path: Path, session: Session) -> None:
    """Sets a damaged file aside, and leaves what is whole in its place."""
    records, damage = _whole_records(path)
    if not damage:
        return
    aside = set_aside(path)
    if records:
        _rewrite(path, records)
    text = f"`{path}` is damaged: {damage} It is set aside as `{aside.name}`; what comes before the damage is kept."
    session.emit("damaged", step=0, text=text, path=str(path))


def _whole_records(path: Path) -> tuple[list[bytes], str]:
    """The records up to the first that is cut short or damaged, where TensorBoard stops reading too; and the damage.

    A process that is killed may leave a file that is empty, or whose last record is cut short, and a power cut zeros at
    its end: that is no damage. If points are missing, whoever compares the files with the run's other history tells.
    """
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    records: list[bytes] = []
    try:
        for record in read_records(path):
            Event.FromString(record)
            records.append(record)
    except CutShortError:
        return records, ""
    except DataError as error:
        return records, "" if _ends_in_zeros(path, records) else str(error)
    except DecodeError:
        return records, "it holds records of another kind."
    except OSError as error:
        return records, f"it cannot be read: {describe_failure(error)}."
    return records, ""


def _ends_in_zeros(path: Path, records: list[bytes]) -> bool:
    """Whether nothing but zeros comes after some records: room that was made for what was not written."""
    with path.open("rb") as file:
        file.seek(sum(_FRAME_BYTES + len(record) for record in records))
        return not file.read().strip(b"\0")


def _rewrite(path: Path, records: list[bytes]) -> None:
    with RecordWriter(path) as writer:
        for record in records:
            writer.write(record)


def _drop_points_past(start: int, path: Path) -> bool:
    """Removes the lost points from a file; returns whether there were any."""
    records, _ = _whole_records(path)
    remaining = [record for record in records if not _is_point_past(start, record)]
    if len(remaining) == len(records):
        return False
    _rewrite(path, remaining)
    return True


def _is_point_past(start: int, record: bytes) -> bool:
    from tensorboardX.proto.event_pb2 import Event

    event = Event.FromString(record)
    return bool(event.HasField("summary")) and event.step > start
