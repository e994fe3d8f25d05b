"""The one way to write a file or a directory whole, and what else every folder asks of a file system."""

import ctypes
import errno
import fcntl
import io
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from trellis.errors import ArgumentError, DirectoryTakenError, FileWriteError, shown

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
_LOCK = ".lock"
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_FLAT_ADDRESS = re.compile(
    r"(?:.*/)?(file|gs|gcs|s3|s3a|hdfs|viewfs|az|adl|abfs|abfss|wasb|wasbs|https?|s?ftp):/", re.IGNORECASE
)
"""What becomes of an address when it is taken for a path: one of its slashes is lost."""
_LONGEST_COMMAND = 200
_SECONDS_BETWEEN_LOOKS = 0.05


def scheme_of(path: str | os.PathLike[str]) -> str:
    """The scheme of an address, such as `gs` of `gs://bucket/run`; empty for a path of this machine."""
    return address_in(path).partition("://")[0].lower()


def address_in(path: str | os.PathLike[str]) -> str:
    """The address that a path is, also if it was taken for a path and lost a slash; empty for one of this machine."""
    try:
        text = os.fspath(path)
    except TypeError:
        raise ArgumentError(f"A path is {shown(path)}. Give text, such as 'runs/a', or a pathlib.Path.") from None
    match = _ADDRESS.match(text) or _FLAT_ADDRESS.match(text)
    if match is None or match[1].lower() == "file":
        return ""
    return f"{match[1]}://{text[match.end() :]}"


def local_path(path: str | os.PathLike[str], *, name: str) -> Path:
    """A path of this machine, also as `file:///…`; an error about any other address.

    Without it, `gs://bucket/run` would be a folder `gs:`.

    Args:
        name: What the path was given as, such as `model_dir`, for the error.
    """
    address = address_in(path)
    if address:
        raise ArgumentError(f"{name} is `{address}`. {address_advice(address)}")
    text = os.fspath(path)
    match = re.match(r"file:(?://(?:localhost)?(?=/))?(?=/)", text, re.IGNORECASE)
    return Path(unquote(text[match.end() :])) if match else Path(path)


def address_advice(address: str) -> str:
    """What to do about an address that names nothing of this machine."""
    return (
        f"Files are read and written on this machine's own file systems, and {scheme_of(address)}:// is none of them: "
        f"copy it here, or mount what holds it, and give that path."
    )


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
        # Something else may have the name of a directory of ours.
        if hidden.is_dir() and not hidden.is_symlink():
            shutil.rmtree(hidden)
        else:
            hidden.unlink()


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


def append_whole(path: Path, content: bytes) -> None:
    """Adds to a file that grows where it is; if there is room for a part of it only, nothing."""
    try:
        with path.open("ab", buffering=0) as file:
            _append(file, content)
    except OSError as error:
        raise FileWriteError(
            f"`{path}` could not be written: {error.strerror}. The checkpoint files are untouched. Make room or bring "
            f"the directory back, and start the same command again."
        ) from None


def _append(file: io.FileIO, content: bytes) -> None:
    start = file.seek(0, os.SEEK_END)
    try:
        while content:
            content = content[file.write(content) :]
    except OSError:
        # What comes next must not begin in the midst of this.
        file.truncate(start)
        raise


def sync_appended(path: Path) -> None:
    """Brings a file to the disk that grows where it is, and its name."""
    with _named(path):
        sync(path)
        sync(path.parent)


def sync_all(path: Path) -> None:
    """Brings a file, or a directory and all that is in it, to the disk."""
    for part in (*path.rglob("*"), path):
        sync(part)


def check_writable(directory: Path, *, name: str = "output_dir") -> None:
    """Makes a directory if need be, and sweeps it; an error with its name if nothing can be written there."""
    try:
        _make_directory(directory)
        sweep(directory)
        probe = hidden_path(directory)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ArgumentError(
            f"Nothing can be written to {name} `{directory}`: {error.strerror}. Choose another directory."
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
    local_path(directory, name="A directory to write to")
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    with _locks_guard:
        away = [path for path in new if path.resolve() / _LOCK in _locks]
    if away:
        # What this process owns was there: another one in its place would hide it, and be hidden when it is back.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(away[0]))
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


def set_aside(path: Path) -> Path:
    """Renames what is damaged, so that its name is free and nothing is lost; returns where it is now."""
    # A TensorBoard reads every file with `tfevents` in its name.
    name = f"{path.name.replace('tfevents', 'events')}.damaged"
    numbered = (path.with_name(f"{name}-{number}" if number > 1 else name) for number in itertools.count(1))
    aside = next(other for other in numbered if not os.path.lexists(other))
    with _named(path):
        path.rename(aside)
    return aside


class Ownership:
    """The right to write to a directory, which one process has at a time; an error names another that has it.

    It is held by a lock on `{directory}/.lock`, which the system releases when the process ends, however it ends. It is
    given up by `release`, at the end of a `with` block, or when the object is gone. A process may own a directory
    several times. Whoever only reads needs no ownership.
    """

    def __init__(self, directory: Path) -> None:
        directory = directory.absolute()
        made = [path for path in (directory, *directory.parents) if not path.exists()]
        file = directory.resolve() / _LOCK
        with _locks_guard:
            lock = _locks.pop(file, None) if directory in made else _locks.get(file)
            with _named(directory):
                _make_directory(directory)
                is_empty = not any(directory.iterdir())
            if lock is not None and lock.descriptor is not None and not _is_at(lock.descriptor, file):
                # A directory that was removed and made again is another one, and is free if nothing is there yet.
                if not is_empty:
                    check_still_owned(directory)
                os.close(lock.descriptor)
                lock = None
            if lock is None:
                lock = _locks[file] = _Lock(_acquire(file), file, made)
            lock.n_owners += 1
        self.release = weakref.finalize(self, _release, lock)

    def __enter__(self) -> "Ownership":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@contextmanager
def owned_in_turn(directory: Path) -> Iterator[None]:
    """Owns a directory within it, after whoever owns it now: for what takes moments and that several processes do."""
    while True:
        try:
            ownership = Ownership(directory)
            break
        except DirectoryTakenError:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    with ownership:
        yield


def check_still_owned(directory: Path) -> None:
    """Raises an error if another directory is in the place of one that this process owns, or that this one is in.

    So it is where a disk was away when a process began, which has made a new directory, and where the disk is back:
    what the process knows is not of that directory, and would be wrong there.
    """
    folder = directory.resolve()
    with _locks_guard:
        for place in (folder, *folder.parents):
            lock = _locks.get(place / _LOCK)
            if lock is None or lock.descriptor is None or not place.is_dir() or _is_at(lock.descriptor, lock.file):
                continue
            raise FileWriteError(
                f"`{place}` is not the directory any more in which this run has begun: it was away for a while, or "
                f"another is in its place. Nothing was changed in it. Start the same command again."
            )


def list_directory(directory: Path) -> list[Path]:
    """What is in a directory, in the order of names; nothing if it is not there.

    Raises an error if it is not there and this process owns it and has not seen it removed: then its disk is away for a
    while, and what is on it is not nothing.
    """
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        with _locks_guard:
            lock = _locks.get(directory.resolve() / _LOCK)
        # A file that was removed has no name any more.
        if lock is not None and lock.descriptor is not None and os.fstat(lock.descriptor).st_nlink:
            raise FileWriteError(
                f"`{directory}` was there when this run began, and is away. Nothing was changed in it. Bring it back, "
                f"and start the same command again."
            ) from None
        return []


def is_owned(directory: Path) -> bool:
    """Whether a process owns a directory; nothing is written to find out."""
    file = directory / _LOCK
    try:
        owner = json.loads(file.read_bytes())
        # To try the lock of a process that is gone could be in the way of one that starts just now.
        if owner["host"] == socket.gethostname():
            os.kill(owner["pid"], 0)
    except PermissionError:
        pass
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


@dataclass(eq=False)
class _Lock:
    """A file that this process has locked."""

    descriptor: int | None
    """None if the file system has no locks."""
    file: Path
    made: list[Path]
    """Directories that were made for it, and are removed again if nothing else was put there."""
    n_owners: int = 0


_locks: dict[Path, _Lock] = {}
_locks_guard = threading.RLock()


def _acquire(file: Path) -> int | None:
    """Locks a file; returns its descriptor, or None if the file system has no locks."""
    while True:
        with _named(file):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = os.pread(descriptor, 1 << 16, 0)
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DirectoryTakenError(_describe_owner(file.parent, text)) from None
            print(
                f"`{file.parent}` is on a file system without locks ({error.strerror}): nothing keeps another process "
                f"from writing to it. Start one at a time.",
                file=sys.stderr,
            )
            return None
        if _is_at(descriptor, file):
            break
        # The owner before has removed it between the two calls.
        os.close(descriptor)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    command = shlex.join(sys.argv)[:_LONGEST_COMMAND]
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "command": command}
    with _named(file):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{json.dumps(owner)}\n".encode(), 0)
    return descriptor


def _release(lock: _Lock) -> None:
    with _locks_guard:
        lock.n_owners -= 1
        # A process that was forked has given up what its parent owns.
        if lock.n_owners or _locks.get(lock.file) is not lock:
            return
        del _locks[lock.file]
        if lock.descriptor is not None:
            # While it is locked: whoever has opened it meanwhile finds that it is not there any more.
            with suppress(OSError):
                lock.file.unlink()
            os.close(lock.descriptor)
        with suppress(OSError):
            for directory in lock.made:
                directory.rmdir()


def _give_up_inherited_locks() -> None:
    """Leaves the locks of a process to itself, in one that was forked from it: they would outlive their owner."""
    for lock in _locks.values():
        if lock.descriptor is not None:
            os.close(lock.descriptor)
    _locks.clear()
    _locks_guard.release()


os.register_at_fork(
    before=_locks_guard.acquire, after_in_parent=_locks_guard.release, after_in_child=_give_up_inherited_locks
)


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether an open file is the one of a name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _describe_owner(directory: Path, text: bytes) -> str:
    try:
        owner: dict[str, Any] = json.loads(text)
        other = (
            f"process {owner['pid']} on {owner['host']}, since {owner['since']}: `{owner['command']}`. Wait until it "
            f"ends, stop it (on {owner['host']}: kill {owner['pid']})"
        )
    except (ValueError, KeyError, TypeError):
        other = "a process that has not said which it is. Wait until it ends, stop it"
    return (
        f"`{directory}` belongs to another process that writes to it, {other}, or choose another directory. "
        f"Nothing was written."
    )
