"""What every folder that writes asks of a file system."""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path


def files_in(directory: Path) -> Iterator[Path]:
    """Every file below a directory, in the order of their names."""
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def checksum(file: Path) -> dict[str, int]:
    """A file's size and CRC-32."""
    value, size = 0, 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            value, size = zlib.crc32(chunk, value), size + len(chunk)
    return {"size": size, "crc32": value}


def sync(path: Path) -> None:
    """Has a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
