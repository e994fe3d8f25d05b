"""The one way to write a file or a directory whole, and what else every folder asks of a file system."""

import ctypes
import errno
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trellis.errors import ArgumentError, FileWriteError

_MACHINE = f"{zlib.crc32(socket.gethostname().encode()):08x}"
_PROCESS = secrets.token_hex(4)  # A process of another time or container may have had the same number.
_HIDDEN = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<process>[0-9a-f]{8})-[0-9a-f]{8}\.(?P<ending>\w+)")
_SWEPT = ("writing", "removing")
"""The endings of what is of no use without its process."""
_OLDER_HIDDEN = re.compile(r"\..+(\.[0-9a-f]{32}){1,2}\.writing|\.\w+_\d+\.removed")
"""How versions before this one named the same: not by process."""
_ABANDONED_SECONDS = 24 * 60 * 60
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_THIS_DIRECTORY = -100
_EXCHANGE = 2
"""Linux's AT_FDCWD and RENAME_EXCHANGE."""


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that appears with all its content or not at all; it replaces a file of the same name."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a hidden file to write to, which gets its name when the block ends; if the block fails, nothing is left.

    Several processes may write the same file at once: the last one wins. What is there when the block has ended is
    there after a power cut, too.
    """
    with _unfinished(path) as hidden:
        with _named(path):
            file = hidden.open("xb")
        with file:
            yield file


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Gives a hidden directory to fill, which gets its name when the block ends; if the block fails, nothing is left.

    A directory that is there already has to be empty: `check_free` says so before the work is done.
    """
    check_free(path)
    with _unfinished(path) as hidden:
        with _named(path):
            hidden.mkdir()
        yield hidden


def check_free(path: Path) -> None:
    """Raises an error if a directory cannot be written anew without losing something."""
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise FileWriteError(f"output_dir `{path}` is there already and not empty. Choose another directory.")


def remove_whole(path: Path) -> None:
    """Removes a directory so that no reader ever sees half of it; one that is gone already is none of our concern."""
    hidden = hidden_path(path.parent, ending="removing")
    with suppress(FileNotFoundError):
        path.rename(hidden)
        shutil.rmtree(hidden)


def hidden_path(directory: Path, *, ending: str = "writing") -> Path:
    """A name that no other process and no other call will use, for what is not whole yet or no longer.

    The name of what it will be is not part of it: a TensorBoard reads every file with `tfevents` in its name.
    """
    return directory / f".{_MACHINE}-{os.getpid()}-{_PROCESS}-{secrets.token_hex(4)}.{ending}"


def sweep(directory: Path) -> None:
    """Removes what processes that were killed have left under a `hidden_path`.

    On this machine, that is what belongs to no living process. What another machine or an older version has left is
    removed when it has not changed for a day.
    """
    for path in left_behind(directory, *_SWEPT):
        _remove(path)


def left_behind(directory: Path, *endings: str) -> list[Path]:
    """What processes that were killed have left under a `hidden_path` with one of these endings."""
    return [path for path in directory.glob(".*") if _is_abandoned(path, endings)]


def _is_abandoned(path: Path, endings: tuple[str, ...]) -> bool:
    match = _HIDDEN.fullmatch(path.name)
    if match is None and not (endings == _SWEPT and _OLDER_HIDDEN.fullmatch(path.name)):
        return False
    if match is not None and match["ending"] not in endings:
        return False
    if match is None or match["machine"] != _MACHINE:
        return time.time() - _last_change(path) > _ABANDONED_SECONDS
    pid = int(match["pid"])
    if pid == os.getpid():
        return match["process"] != _PROCESS
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # It lives, and is another user's.
    with suppress(OSError):  # Linux tells of one that has ended, but that its parent has not asked for.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def _remove(path: Path) -> None:
    """Removes a file or a directory if it can: what cannot be removed must not hide an error that is under way."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Gives a directory among the temporary files, which is removed when the block ends.

    One whose process was killed is removed by the next process that asks for one.
    """
    place = Path(tempfile.gettempdir())
    sweep(place)
    scratch = hidden_path(place)
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        _remove(scratch)


def exchange(one: Path, other: Path) -> bool:
    """Gives each of two paths what was at the other, in one step; returns False if the file system cannot do that."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # only Linux has it
        return False
    if rename(_THIS_DIRECTORY, os.fsencode(one), _THIS_DIRECTORY, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _last_change(path: Path) -> float:
    try:
        return max(part.stat().st_mtime for part in (path, *path.rglob("*")))
    except FileNotFoundError:
        # It is being renamed or removed at this moment.
        return time.time()


def sync(path: Path) -> None:
    """Brings a file, or the names in a directory, to the disk, so that a power cut does not take them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems of a network or a bucket keep names at once, and know no such call for them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sync_appended(path: Path) -> None:
    """Brings a file to the disk that grows where it is, and its name."""
    with _named(path):
        sync(path)
        sync(path.parent)


def sync_all(path: Path) -> None:
    """Brings a file, or a directory and all that is in it, to the disk."""
    for part in (*path.rglob("*"), path):
        sync(part)


def check_writable(directory: Path) -> None:
    """Makes a directory if need be, and sweeps it; an error if nothing can be written there."""
    try:
        _make_directory(directory)
        sweep(directory)
        probe = hidden_path(directory)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ArgumentError(
            f"Nothing can be written to output_dir `{directory}`: {error.strerror}. Choose another directory."
        ) from error


def describe_failure(error: Exception) -> str:
    """What the system says of an error, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # TensorStore quotes the system at the end of a long trace.
    lines = [text for text in map(os.strerror, (*_FULL, errno.EACCES)) if text in str(error)] or str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def files_in(directory: Path) -> Iterator[Path]:
    """Every file below a directory, in the order of their names."""
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def checksum(file: Path) -> dict[str, int]:
    """A file's size and CRC-32."""
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            value = zlib.crc32(chunk, value)
        return {"size": stream.tell(), "crc32": value}


def _make_directory(directory: Path) -> None:
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in new:
            sync(path.parent)
    except FileExistsError:
        # "File exists" would be no help to someone who wants it to exist.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Gives the hidden path beside a path; what is there gets its name when the block ends, or is removed."""
    with _named(path):
        _make_directory(path.parent)
        sweep(path.parent)
    hidden = hidden_path(path.parent)
    try:
        with _named(path, only=_FULL):
            yield hidden
        with _named(path):
            sync_all(hidden)
            hidden.replace(path)
            sync(path.parent)
    finally:
        _remove(hidden)


@contextmanager
def _named(path: Path, *, only: tuple[int, ...] = ()) -> Iterator[None]:
    """Has an error of the disk say what could not be written, and the way out.

    Args:
        only: The kinds of errors; others, such as a missing file that was to be copied, are raised as they are.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or (only and error.errno not in only):
            raise
        raise FileWriteError(
            f"`{path}` could not be written: {error.strerror}. What was there before is untouched. Make room, or "
            f"choose a directory that can be written to."
        ) from error


def default_cache_dir(name: str) -> Path:
    """Returns where what can be made again is kept, unless another place is named: `~/.cache/trellis/NAME`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "trellis", name)
