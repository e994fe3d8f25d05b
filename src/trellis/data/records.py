"""TFRecord files, read and written without TensorFlow."""

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple, Self

from trellis.data.files import masked_crc32c, open_file
from trellis.disk import local_path, whole_file
from trellis.errors import ArgumentError, CutShortError, DataError
from trellis.remote import fetched

# A record is framed as: length (8 bytes, the lowest first), masked CRC of those, data, masked CRC of the data.
_LENGTH_BYTES = 8
_CRC_BYTES = 4
_HEADER_BYTES = _LENGTH_BYTES + _CRC_BYTES
_CHUNK_BYTES = 1 << 24


def read_records(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yields the records of a TFRecord file (gzip'd or not), each checked against its checksums.

    Example:
        examples = [decode_example(record) for record in read_records("train.tfrecord")]
    """
    place = _Place(fetched(path, name="path"), 0, 0)
    with open_file(place.path) as file:
        while header := file.read(_HEADER_BYTES):
            place.check_size(len(header), n_needed=_HEADER_BYTES)
            # The length is checked before it is believed: a damaged one may be enormous.
            length = int.from_bytes(place.checked(header, part="length"), "little")
            n_bytes = _HEADER_BYTES + length + _CRC_BYTES
            rest = _read(file, length + _CRC_BYTES)
            place.check_size(_HEADER_BYTES + len(rest), n_needed=n_bytes)
            yield place.checked(rest, part="data")
            place = _Place(place.path, place.number + 1, place.offset + n_bytes)


def _read(file: BinaryIO, n_bytes: int) -> bytes:
    """Returns as many bytes, or all that are left: no memory is taken for bytes that are not there."""
    if n_bytes <= _CHUNK_BYTES:
        return file.read(n_bytes)
    chunks = []
    while n_bytes > 0 and (chunk := file.read(min(n_bytes, _CHUNK_BYTES))):
        chunks.append(chunk)
        n_bytes -= len(chunk)
    return b"".join(chunks)


class _Place(NamedTuple):
    """Where a record is, for errors."""

    path: Path
    number: int
    offset: int
    """The byte at which its frame starts (of the content, if that is compressed)."""

    def check_size(self, n_bytes: int, *, n_needed: int) -> None:
        """Raises an error if the file ends before the record does."""
        if n_bytes < n_needed:
            raise CutShortError(
                f"{self.path} is cut short: record {self.number} at byte offset {self.offset} needs at least "
                f"{n_needed} bytes, but {n_bytes} are left. Copy or write the file again."
            )

    def checked(self, framed: bytes, *, part: str) -> bytes:
        """Returns a part of the record without the checksum behind it, which is compared with the part."""
        content = framed[:-_CRC_BYTES]
        if framed[-_CRC_BYTES:] != masked_crc32c(content):
            raise DataError(
                f"{self.path}: record {self.number} at byte offset {self.offset} has a wrong {part} checksum. "
                "The file is damaged, or not a TFRecord file; copy or write it again."
            )
        return content


class RecordWriter:
    """Writes a TFRecord file that appears whole, when the writer is left without an error, or not at all.

    Example:
        with RecordWriter("train.tfrecord.gz", compression="gzip") as writer:
            writer.write(encode_example({"label": 1}))
    """

    def __init__(self, path: str | os.PathLike[str], *, compression: Literal["none", "gzip"] = "none") -> None:
        if compression not in ("none", "gzip"):
            raise ArgumentError(f"compression is {compression!r}; it can be 'none' or 'gzip'.")
        self.path = local_path(path, name="path")
        self._open_files = ExitStack()
        self._file: BinaryIO | gzip.GzipFile = self._open_files.enter_context(whole_file(self.path))
        if compression == "gzip":
            # No name and no time in the header: the same records give the same bytes.
            self._file = self._open_files.enter_context(gzip.GzipFile("", "wb", fileobj=self._file, mtime=0))

    def write(self, record: bytes) -> None:
        """Adds a record."""
        length = len(record).to_bytes(_LENGTH_BYTES, "little")
        self._file.write(b"".join((length, masked_crc32c(length), record, masked_crc32c(record))))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_files.__exit__(kind, error, trace)
