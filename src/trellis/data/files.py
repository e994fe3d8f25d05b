"""Data files: which ones, in what format, and whether they have changed."""

import glob
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, get_args

import google_crc32c

from trellis.config import Config, branches
from trellis.disk import scheme_of
from trellis.errors import ArgumentError, DataError, TrellisError, shown
from trellis.remote import fetched

Format = Literal["tfrecord", "jsonl", "tsv", "csv", "parquet", "text", "npz", "image"]

_GZIP_MAGIC = b"\x1f\x8b"
_IMAGE_MAGICS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
"""The first bytes of a PNG and of a JPEG."""
_HEAD_BYTES = 1 << 16
_PLACES = ("path", "file", "files", "dir", "checkpoint", "_url")
"""How the names of fields end that say where something is."""
_FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".npz": "npz",
    ".npy": "npz",
    ".png": "image",
    ".jpg": "image",
    ".jpeg": "image",
}


def is_image(content: bytes) -> bool:
    """Whether bytes are a PNG or a JPEG, by how they begin."""
    return content.startswith(_IMAGE_MAGICS)


def patterns_in(input_path: str | Sequence[str] | Mapping[str, str | Sequence[str]]) -> list[str]:
    """The paths and patterns of a `DataConfig.input_path`: text is parted at its commas, a list is not."""
    if isinstance(input_path, str):
        return [part.strip() for part in input_path.split(",") if part.strip()]
    if isinstance(input_path, Mapping):
        return [pattern for source in input_path.values() for pattern in patterns_in(source)]
    return list(input_path)


def places_in(config: Config) -> Iterator[tuple[str, Any]]:
    """Yields each value in a config that says where something is, with its dotted path: a text, a list or a mapping."""
    for prefix, branch in branches(config):
        for name, value in vars(branch).items():
            if not name.endswith(_PLACES) or name in branch.no_effect or not isinstance(value, str | list | dict):
                continue
            # What is on the web may be meant as that.
            if not name.endswith("_url") or scheme_of(str(value)) not in ("http", "https"):
                yield f"{prefix}.{name}".lstrip("."), value


def matching_paths(pattern: str) -> list[Path]:
    """The files that a pattern matches, or else the directories, none perhaps.

    A path that is no pattern is itself, whether it is there or not.
    """
    if scheme_of(pattern) or pattern.startswith("file:"):
        pattern = str(fetched(pattern, name="A path of data"))
    # A file that is there is meant, whatever its name: not every star is a glob.
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [Path(pattern)]
    matches = [Path(match) for match in glob.glob(pattern, recursive=True)]
    # Beside records lie folders that tell how they were made.
    return [path for path in matches if not path.is_dir()] or matches


def find_files(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the files that paths and globs name: each once, sorted, all of them there and none empty."""
    patterns = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str | os.PathLike) for pattern in patterns):
        raise ArgumentError(f"The files are {shown(paths)}. Give a path, a glob, or a list of them.")
    if not patterns:
        raise ArgumentError("The list of files is empty. Give at least one path or glob.")
    files: set[Path] = set()
    for pattern in patterns:
        matches = matching_paths(os.fspath(pattern))
        if not matches:
            raise DataError(f"No file matches {pattern!r}. Check the pattern; it is taken from {Path.cwd()}.")
        files.update(matches)
    for path in files:
        with open_file(path):
            n_bytes = path.stat().st_size
        if n_bytes == 0:
            raise DataError(f"{path} is empty. Leave it out, or write it again.")
    return sorted(files)


@contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file for reading, through gzip if its content (not its name) says so; errors name the file."""
    try:
        with path.open("rb") as file:
            is_gzip = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            # The buffer makes small reads of compressed data as cheap as those of plain data.
            yield io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file))) if is_gzip else file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file. Check the path; it is taken from {Path.cwd()}.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a directory. To read the files in it, give '{path}/*'.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: gzip data cut short or damaged ({error}). Copy or write the file again.") from error
    except OSError as error:
        if isinstance(error, TrellisError) or error.errno is None:
            raise
        raise DataError(f"{path} cannot be read: {error.strerror}. Check the path and the rights to it.") from error


def format_of(path: Path) -> Format:
    """Returns the format of a file: TFRecord, Parquet and images by content, others by name, JSONL also by a brace."""
    with open_file(path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    if is_image(head):
        return "image"
    if len(head) >= 12 and head[8:12] == masked_crc32c(head[:8]):
        return "tfrecord"
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if suffixes and suffixes[-1] in _FORMAT_OF_SUFFIX:
        return _FORMAT_OF_SUFFIX[suffixes[-1]]
    if head.lstrip().startswith(b"{"):
        return "jsonl"
    formats = ", ".join(get_args(Format))
    problem = "neither its content nor its name tells its format"
    raise DataError(f"{path}: {problem}. Give format= one of {formats}, or name the file by its format.")


def masked_crc32c(data: bytes) -> bytes:
    """Returns a CRC-32C as TFRecord stores it: changed, so that data which holds its own CRC is still protected."""
    crc: int = google_crc32c.value(data)
    rotated = crc >> 15 | crc << 17
    return (rotated + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def fingerprint(path: Path) -> tuple[str, int, int, str]:
    """Returns what changes with a file, without reading it all: name, size, mtime, and a hash of its head and tail."""
    status = path.stat()
    with path.open("rb") as file:
        digest = hashlib.blake2b(file.read(_HEAD_BYTES), digest_size=16)
        file.seek(max(0, status.st_size - _HEAD_BYTES))
        digest.update(file.read(_HEAD_BYTES))
    return path.name, status.st_size, status.st_mtime_ns, digest.hexdigest()
