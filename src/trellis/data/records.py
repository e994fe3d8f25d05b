"""TFRecord files, read and written without TensorFlow."""

import gzip
import mmap
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from trellis.data.crc32c import crc32c_of_spans, masked
from trellis.data.files import open_file
from trellis.data.spans import equal_spans
from trellis.errors import ArgumentError, DataError

# A record is framed as: length (8 bytes), masked CRC of those, data, masked CRC of the data.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_BLOCK_BYTES = 4 << 20
_read_length = struct.Struct("<Q").unpack_from


@dataclass(frozen=True)
class RecordBlock:
    """Consecutive records of a file in one buffer, their checksums not yet checked."""

    path: Path
    buffer: bytes | mmap.mmap
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """Which records of the file these are, counted from 0."""
    first_offset: int
    """The byte offset of the buffer in the file (of the content, if that is compressed)."""

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        for start, stop in zip(self.starts.tolist(), (self.starts + self.lengths).tolist(), strict=True):
            yield self.buffer[start:stop]

    def check_lengths(self) -> Self:
        """Raises DataError if the checksum of a length is wrong."""
        self._check("length", self.starts - _HEADER_BYTES, np.full(len(self), _HEADER_BYTES - 4))
        return self

    def check_data(self) -> Self:
        """Raises DataError if the checksum of a record's data is wrong."""
        self._check("data", self.starts, self.lengths)
        return self

    def _check(self, part: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        view = memoryview(self.buffer)
        stored = equal_spans(view, starts=starts + lengths, length=4).view("<u4")[:, 0]
        wrong = np.flatnonzero(stored != masked(crc32c_of_spans(view, starts=starts, lengths=lengths)))
        if len(wrong):
            offset = self.first_offset + int(self.starts[wrong[0]]) - _HEADER_BYTES
            raise DataError(
                f"{self.path}: record {self.numbers[wrong[0]]} at byte offset {offset} has a wrong {part} checksum. "
                "The file is damaged, or not a TFRecord file; copy or write it again."
            )


def read_records(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yields the records of a TFRecord file (gzip'd or not), each checked against its checksums.

    Example:
        examples = [decode_example(record) for record in read_records("train.tfrecord")]
    """
    for block in read_record_blocks(Path(path)):
        yield from block


def read_record_blocks(path: Path, *, block_bytes: int = _BLOCK_BYTES) -> Iterator[RecordBlock]:
    """Yields the checked records of a file in blocks of about `block_bytes`, a longer record in a block of its own."""
    n_records, offset, rest, n_wanted = 0, 0, b"", block_bytes
    with open_file(path) as file:
        while data := file.read(n_wanted):
            rest += data
            block, n_taken = _framed(path, rest, n_records, offset)
            if len(block):
                yield block.check_lengths().check_data()
            n_records, offset, rest = n_records + len(block), offset + n_taken, rest[n_taken:]
            n_wanted = max(block_bytes, _frame_bytes(path, rest, n_records, offset) - len(rest))
    if rest:
        raise _cut_short(path, rest, len(rest), n_records, offset)


class RecordFile(Sequence[bytes]):
    """The records of an uncompressed TFRecord file by number; the file is memory-mapped, its offsets are found once.

    Example:
        records = RecordFile("train.tfrecord")
        decode_example(records[len(records) // 2])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            if isinstance(file, gzip.GzipFile):
                raise ArgumentError(f"{path} is compressed: no record can be sought. Use read_records, or gunzip it.")
            size = self.path.stat().st_size
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._block, n_taken = _framed(self.path, content, 0, 0)
        self._block.check_lengths()
        if n_taken < size:
            header = content[n_taken : n_taken + _HEADER_BYTES]
            raise _cut_short(self.path, header, size - n_taken, len(self._block), n_taken)

    def __len__(self) -> int:
        return len(self._block)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Returns a record or several, their checksums checked; a slice is much quicker than its records one by one."""
        if isinstance(index, int):
            number = range(len(self))[index]
            return self[number : number + 1][0]
        block = self._block
        starts, lengths, numbers = block.starts[index], block.lengths[index], block.numbers[index]
        return list(RecordBlock(self.path, block.buffer, starts, lengths, numbers, 0).check_data())


class RecordWriter:
    """Writes a TFRecord file that appears whole, when the writer is left without an error, or not at all.

    Example:
        with RecordWriter("train.tfrecord.gz", compression="gzip") as writer:
            writer.write(encode_example({"label": 1}))
    """

    def __init__(self, path: str | os.PathLike[str], *, compression: Literal["none", "gzip"] = "none") -> None:
        if compression not in ("none", "gzip"):
            raise ArgumentError(f"compression is {compression!r}; it can be 'none' or 'gzip'.")
        self.path = Path(path)
        self._partial = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.partial")
        self._file: BinaryIO = self._partial.open("xb")
        # No name and no time in the header: the same records give the same bytes.
        self._gzip = gzip.GzipFile("", "wb", fileobj=self._file, mtime=0) if compression == "gzip" else None
        self._waiting: list[bytes] = []
        self._n_waiting_bytes = 0

    def write(self, record: bytes) -> None:
        """Adds a record."""
        self._waiting.append(record)
        self._n_waiting_bytes += len(record)
        if self._n_waiting_bytes >= _BLOCK_BYTES:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
            if self._gzip is not None:
                self._gzip.close()
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._partial.replace(self.path)
        finally:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def _flush(self) -> None:
        lengths = np.array([len(record) for record in self._waiting], np.int64)
        headers = np.empty(len(lengths), np.dtype([("length", "<u8"), ("crc", "<u4")]))
        headers["length"] = lengths
        length_bytes = headers["length"].tobytes()
        starts = np.arange(len(lengths)) * 8
        headers["crc"] = masked(crc32c_of_spans(length_bytes, starts=starts, lengths=np.full(len(lengths), 8)))
        data = b"".join(self._waiting)
        crcs = crc32c_of_spans(data, starts=np.cumsum(lengths) - lengths, lengths=lengths)
        header_bytes, footer_bytes = headers.tobytes(), masked(crcs).astype("<u4").tobytes()
        parts: list[bytes] = []
        for index, record in enumerate(self._waiting):
            header, footer = index * _HEADER_BYTES, index * _FOOTER_BYTES
            parts += (header_bytes[header : header + _HEADER_BYTES], record)
            parts.append(footer_bytes[footer : footer + _FOOTER_BYTES])
        (self._gzip or self._file).write(b"".join(parts))
        self._waiting, self._n_waiting_bytes = [], 0


def _framed(path: Path, buffer: bytes | mmap.mmap, first_record: int, offset: int) -> tuple[RecordBlock, int]:
    """Returns the whole records at the front of a buffer, and how many bytes they take."""
    starts: list[int] = []
    lengths: list[int] = []
    position, size = 0, len(buffer)
    while position + _HEADER_BYTES + _FOOTER_BYTES <= size:
        (length,) = _read_length(buffer, position)
        stop = position + _HEADER_BYTES + length + _FOOTER_BYTES
        if stop > size:
            break
        starts.append(position + _HEADER_BYTES)
        lengths.append(length)
        position = stop
    numbers = np.arange(first_record, first_record + len(starts))
    return RecordBlock(path, buffer, np.array(starts, np.int64), np.array(lengths, np.int64), numbers, offset), position


def _frame_bytes(path: Path, rest: bytes, n_records: int, offset: int) -> int:
    """Returns how long the frame is that begins `rest`; the length is checked, as a damaged one may be enormous."""
    if len(rest) < _HEADER_BYTES:
        return _HEADER_BYTES
    start = np.array([_HEADER_BYTES])
    RecordBlock(path, rest[:_HEADER_BYTES], start, np.zeros(1, np.int64), np.array([n_records]), offset).check_lengths()
    length: int = _read_length(rest)[0]
    return _HEADER_BYTES + length + _FOOTER_BYTES


def _cut_short(path: Path, rest: bytes, n_left: int, n_records: int, offset: int) -> DataError:
    n_bytes = _frame_bytes(path, rest, n_records, offset)
    return DataError(
        f"{path} is cut short: record {n_records} at byte offset {offset} needs at least {n_bytes} bytes, "
        f"but {n_left} are left. Copy or write the file again."
    )
