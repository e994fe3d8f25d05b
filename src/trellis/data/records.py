"""TFRecord files, read and written without TensorFlow."""

import gzip
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple, Self, overload

from trellis.data.files import is_gzip, masked_crc32c, open_file
from trellis.disk import whole_file
from trellis.errors import ArgumentError, DataError

# A record is framed as: length (8 bytes), masked CRC of those, data, masked CRC of the data.
_LENGTH = struct.Struct("<Q")
_CRC_BYTES = 4
_HEADER_BYTES = _LENGTH.size + _CRC_BYTES


class _Place(NamedTuple):
    """Where a record is, for errors."""

    path: Path
    number: int
    offset: int
    """The byte at which its frame starts (of the content, if that is compressed)."""

    def wrong_checksum(self, part: str) -> DataError:
        return DataError(
            f"{self.path}: record {self.number} at byte offset {self.offset} has a wrong {part} checksum. "
            "The file is damaged, or not a TFRecord file; copy or write it again."
        )

    def cut_short(self, *, n_needed: int, n_left: int) -> DataError:
        return DataError(
            f"{self.path} is cut short: record {self.number} at byte offset {self.offset} needs at least {n_needed} "
            f"bytes, but {n_left} are left. Copy or write the file again."
        )


def read_records(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yields the records of a TFRecord file (gzip'd or not), each checked against its checksums.

    Example:
        examples = [decode_example(record) for record in read_records("train.tfrecord")]
    """
    place = _Place(Path(path), 0, 0)
    with open_file(place.path) as file:
        while header := file.read(_HEADER_BYTES):
            length = _checked_length(header, place)
            rest = file.read(length + _CRC_BYTES)
            n_bytes = _HEADER_BYTES + length + _CRC_BYTES
            if len(rest) < length + _CRC_BYTES:
                raise place.cut_short(n_needed=n_bytes, n_left=_HEADER_BYTES + len(rest))
            yield _checked_data(rest, place)
            place = _Place(place.path, place.number + 1, place.offset + n_bytes)


class RecordFile(Sequence[bytes]):
    """The records of an uncompressed TFRecord file by number; the file is memory-mapped, its offsets are found once.

    Example:
        records = RecordFile("train.tfrecord")
        decode_example(records[len(records) // 2])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            if is_gzip(self.path):
                raise ArgumentError(f"{path} is compressed: no record can be sought. Use read_records, or gunzip it.")
            size = self.path.stat().st_size
            self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._offsets = [0]
        while (offset := self._offsets[-1]) < size:
            place = _Place(self.path, len(self), offset)
            length = _checked_length(self._content[offset : offset + _HEADER_BYTES], place)
            n_bytes = _HEADER_BYTES + length + _CRC_BYTES
            if offset + n_bytes > size:
                raise place.cut_short(n_needed=n_bytes, n_left=size - offset)
            self._offsets.append(offset + n_bytes)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Returns a record or several, their checksums checked."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        start, stop = self._offsets[number : number + 2]
        return _checked_data(self._content[start + _HEADER_BYTES : stop], _Place(self.path, number, start))


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
        self._whole_file = whole_file(self.path)
        self._file: BinaryIO = self._whole_file.__enter__()
        # No name and no time in the header: the same records give the same bytes.
        self._gzip = gzip.GzipFile("", "wb", fileobj=self._file, mtime=0) if compression == "gzip" else None

    def write(self, record: bytes) -> None:
        """Adds a record."""
        length = _LENGTH.pack(len(record))
        frame = b"".join((length, masked_crc32c(length), record, masked_crc32c(record)))
        (self._gzip or self._file).write(frame)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._gzip is not None:
            self._gzip.close()
        self._whole_file.__exit__(kind, error, trace)


def _checked_length(header: bytes, place: _Place) -> int:
    """Returns how long a record is; it is checked before it is believed, as a damaged length may be enormous."""
    if len(header) < _HEADER_BYTES:
        raise place.cut_short(n_needed=_HEADER_BYTES, n_left=len(header))
    if header[_LENGTH.size :] != masked_crc32c(header[: _LENGTH.size]):
        raise place.wrong_checksum("length")
    length: int = _LENGTH.unpack_from(header)[0]
    return length


def _checked_data(rest: bytes, place: _Place) -> bytes:
    """Returns the data of a record, given all of its frame but the header."""
    data = rest[:-_CRC_BYTES]
    if rest[-_CRC_BYTES:] != masked_crc32c(data):
        raise place.wrong_checksum("data")
    return data
