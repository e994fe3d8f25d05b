"""Data files: which ones, in what format, and whether they have changed."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import numpy as np

from trellis.data.crc32c import crc32c_of_spans, masked
from trellis.data.input_paths import matching_paths
from trellis.errors import ArgumentError, DataError

Format = Literal["tfrecord", "jsonl", "tsv", "csv", "parquet", "text"]

_GZIP_MAGIC = b"\x1f\x8b"
_HEAD_BYTES = 1 << 16
_FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Opens a file for reading, through gzip if its content (not its name) says so; errors name the file."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            yield gzip.GzipFile(fileobj=file) if is_gzip else file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file. Check the path; it is taken from {Path.cwd()}.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a directory. To read the files in it, give '{path}/*'.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: gzip data cut short or damaged ({error}). Copy or write the file again.") from error


def find_files(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the files that paths and globs name: each once, sorted, all of them there and none empty."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not given:
        raise ArgumentError("The list of files is empty. Give at least one path or glob.")
    files = sorted({path for pattern in given for path in _matches(os.fspath(pattern))})
    for path in files:
        with open_file(path):
            n_bytes = path.stat().st_size
        if n_bytes == 0:
            raise DataError(f"{path} is empty. Leave it out, or write it again.")
    return files


def format_of(path: Path) -> Format:
    """Returns the format of a file: TFRecord and Parquet by content, others by name, JSONL also by its first brace."""
    with open_file(path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    length_crc = masked(crc32c_of_spans(head[:8], starts=np.zeros(1, np.int64), lengths=np.array([len(head[:8])])))
    if head[8:12] == length_crc.astype("<u4").tobytes():
        return "tfrecord"
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    if suffixes and suffixes[-1] in _FORMAT_OF_SUFFIX:
        return _FORMAT_OF_SUFFIX[suffixes[-1]]
    if head.lstrip().startswith(b"{"):
        return "jsonl"
    formats = ", ".join(get_args(Format))
    raise DataError(f"{path}: neither its content nor its name tells its format. Give format= one of {formats}.")


def fingerprint(path: Path) -> tuple[str, int, int, str]:
    """Returns what changes with a file, without reading it all: name, size, mtime, and a hash of its head and tail."""
    status = path.stat()
    with path.open("rb") as file:
        digest = hashlib.blake2b(file.read(_HEAD_BYTES), digest_size=16)
        file.seek(max(0, status.st_size - _HEAD_BYTES))
        digest.update(file.read(_HEAD_BYTES))
    return path.name, status.st_size, status.st_mtime_ns, digest.hexdigest()


def _matches(pattern: str) -> list[Path]:
    paths = matching_paths(pattern)
    if not paths:
        raise DataError(f"No file matches {pattern!r}. Check the pattern; it is taken from {Path.cwd()}.")
    return paths
