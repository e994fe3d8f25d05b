"""Summaries for TensorBoard."""

import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from trellis.data import RecordWriter, read_records
from trellis.disk import (
    append_whole,
    check_still_owned,
    check_writable,
    describe_failure,
    local_path,
    set_aside,
    sync_appended,
)
from trellis.errors import CutShortError, DataError
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Histogram, Image, Media, Session, Summary, Text

_PREFIX = "events.out.tfevents."
_SUFFIX = ".trellis"
_FRAME_BYTES = 16
"""What a record takes up beside its content: its length, and two checksums."""


class SummaryWriter(Extension):
    """Writes summaries for TensorBoard: a run for each group of metrics, a scalar for each metric, at its step.

    Histograms, images and text of a summary go to its pages of those kinds. Values of a histogram that are NaN or
    infinite are counted in a scalar of their own, `NAME/not_finite`.

    So `train/loss` and `eval/loss` are two lines in the chart `loss`: those of the runs `train` and `eval`, which are
    directories in `output_dir`.

    A run has one event file for each loop that the writer sees, in which a summary is whole or not at all, and is there
    when the call returns. It survives a power cut once a checkpoint file of its step is there.

    The points in a directory are those of one training: when a resumed one writes its first, those past the step it
    resumed from, which come from lost work, are taken out of the older files of this class, and a TensorBoard that is
    running is told to forget them. A directory belongs to one writer at a time. An older file that is damaged is set
    aside before the training goes on; the points before the damage are kept, and an event tells of it.

    Example:
        process = serial(EvalLoop(task=task, n_steps=20), SummaryWriter("runs/digits"))
        # tensorboard --logdir runs

    Args:
        run_dirs: Where in `output_dir` the run of a group is, `.` being the directory itself, if not under its name.
    """

    def __init__(self, output_dir: str | os.PathLike[str], *, run_dirs: Mapping[str, str] | None = None) -> None:
        self._dir = local_path(output_dir, name="output_dir")
        self._run_dirs = {"train": "train", "eval": "eval"} if run_dirs is None else dict(run_dirs)
        # An earlier version wrote all groups into the directory itself.
        self._runs = {directory: _Run(directory) for directory in (self._dir, *map(self._run_dir, self._run_dirs))}
        self._start = 0
        self._last_step: int | None = None
        check_writable(self._dir)

    def join(self, session: Session) -> None:
        """Starts new files with the next summary, as another loop may start at an earlier step."""
        self._last_step = None
        for directory in self._runs:
            for path in summary_files(directory):
                _mend(path, session)
        session.before_commit(self._sync)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Writes a summary, and returns the checkpoint as it came."""
        summary = Summary.from_checkpoint(checkpoint)
        if self._last_step is None or summary.step < self._last_step:
            check_still_owned(self._dir)
            self._start = summary.step - summary.n_completed_steps
            for run in self._runs.values():
                run.begin(self._start)
        self._last_step = summary.step
        for group in {**summary.metrics, **summary.media}:
            metrics, media = summary.metrics.get(group, {}), summary.media.get(group, {})
            values = [*map(_scalar, metrics, metrics.values()), *chain(*map(_values, media, media.values()))]
            if values:
                self._run_of(group).write(summary.step, values)
        return checkpoint

    def _run_of(self, group: str) -> "_Run":
        directory = self._run_dir(group)
        if directory not in self._runs:
            self._runs[directory] = _Run(directory)
            self._runs[directory].begin(self._start)
        return self._runs[directory]

    def _run_dir(self, group: str) -> Path:
        # A name that consists of dots would lead elsewhere.
        return self._dir / self._run_dirs.get(group, "/".join(part for part in group.split("/") if part.strip(".")))

    def _sync(self) -> None:
        for run in self._runs.values():
            run.sync()


class _Run:
    """The event files in a directory, which are one run to TensorBoard."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._file: Path | None = None
        self._restarts_at: int | None = None
        """The step after which a TensorBoard that is running has to forget what it has read."""

    def begin(self, start: int) -> None:
        """Takes points past the step `start` out of the files; what is written next is in a new one."""
        n_mended = sum(_drop_points_past(start, path) for path in summary_files(self._dir))
        self._file = None
        self._restarts_at = start + 1 if n_mended else None

    def write(self, step: int, values: Sequence[Mapping[str, Any]]) -> None:
        """Adds a point for each value."""
        records = [_record(step=step, summary={"value": values})]
        if self._file is None:
            self._file = self._new_file()
            records = [*self._head(), *records]
        # Not kept open: there is nothing to close when a run ends, however it ends.
        append_whole(self._file, b"".join(records))

    def sync(self) -> None:
        """Brings what was written to the disk."""
        if self._file is not None:
            sync_appended(self._file)

    def _new_file(self) -> Path:
        check_writable(self._dir)
        # TensorBoard reads files in the order of their names: that has to be the order of the runs, whatever the clock.
        newest = max((int(path.name.removeprefix(_PREFIX)[:10]) for path in summary_files(self._dir)), default=0)
        number = max(int(time.time()), newest + 1)
        return self._dir / f"{_PREFIX}{number:010d}.{socket.gethostname()}{_SUFFIX}"

    def _head(self) -> list[bytes]:
        from tensorboardX.proto.event_pb2 import SessionLog

        head = [_record(file_version="brain.Event:2")]
        if self._restarts_at is not None:
            # What a running TensorBoard has read is gone from the files, but not from its memory. It takes the first
            # mark of a restart for the start of the run, and forgets what comes after the step of the second.
            head += 2 * [_record(step=self._restarts_at, session_log={"status": SessionLog.START})]
        return head


def _scalar(name: str, value: float) -> dict[str, Any]:
    return {"tag": name, "simple_value": float(value)}


def _values(name: str, media: Media) -> list[dict[str, Any]]:
    """What an event file has of a histogram, an image or a text."""
    if isinstance(media, Histogram):
        told = [_scalar(f"{name}/not_finite", media.n_not_finite)] if media.n_not_finite else []
        return [{"tag": name, "histo": _histogram(media)}, *told]
    if isinstance(media, Image):
        height, width, n_channels = media.pixels.shape
        picture = {"height": height, "width": width, "colorspace": n_channels, "encoded_image_string": media.png()}
        return [{"tag": name, "image": picture}]
    if isinstance(media, Text):
        text = {"dtype": "DT_STRING", "string_val": [media.text.encode()], "tensor_shape": {"dim": [{"size": 1}]}}
        return [{"tag": name, "metadata": {"plugin_data": {"plugin_name": "text"}}, "tensor": text}]
    raise TypeError(f"no page of TensorBoard shows a {type(media).__name__}")


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {
        "min": float(histogram.edges[0]),
        "max": float(histogram.edges[-1]),
        "num": float(histogram.counts.sum()),
        "sum": histogram.sum,
        "sum_squares": histogram.sum_of_squares,
        # The first bin of TensorBoard has no lower edge, so it is an empty one.
        "bucket_limit": [*map(float, histogram.edges)],
        "bucket": [0.0, *map(float, histogram.counts)],
    }


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


def steps_with_points(directory: Path) -> set[int]:
    """The steps at which the files of a `SummaryWriter` in a directory have points."""
    from tensorboardX.proto.event_pb2 import Event

    events = [Event.FromString(record) for path in summary_files(directory) for record in _whole_records(path)[0]]
    return {event.step for event in events if event.HasField("summary")}


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
    try:
        with path.open("rb") as file:
            file.seek(sum(_FRAME_BYTES + len(record) for record in records))
            return not file.read().strip(b"\0")
    except OSError:
        # A directory, or a file that must not be read: whoever has read the records says so.
        return False


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
