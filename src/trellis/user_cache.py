"""What Trellis keeps in the user's cache to be made once: how large it is, who uses it, and how it is emptied."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trellis.disk import default_cache_dir, remove_whole, sweep
from trellis.errors import ArgumentError
from trellis.json_text import parse_json

COMPILED = "compiled"
_COLUMNS = "columns"
_WHAT = {
    _COLUMNS: "examples of files, decoded",
    COMPILED: "programs, compiled for accelerators",
    "local_text": "the corpus of bert/local",
    "remote": "files of addresses, fetched",
    "tfds": "examples of tensorflow-datasets",
    "tokenizers": "tokenizers of older files, turned into today's",
    "tried_functions": "functions of served models that were tried",
}
"""The folders of the cache, each with what is in it. Nothing else is ever removed."""
_N_NAMES = 4
_held: dict[tuple[int, int], int] = {}
"""What this process uses, by device and inode, each with an open descriptor that holds its lock."""


@dataclass(frozen=True)
class CacheEntry:
    """Something in the cache that is there as a whole or not at all."""

    path: Path
    kind: str
    """The folder of the cache that it is in."""
    what: str
    size: int
    """In bytes."""
    last_use: float
    """In seconds since 1970."""
    is_used: bool
    """Whether a process uses it now."""


@dataclass(frozen=True)
class Pruned:
    """What became of the entries of a cache."""

    removed: list[CacheEntry]
    used: list[CacheEntry]
    """Those that are old enough, but used by a process at this moment, or whose file system cannot tell."""
    failed: list[tuple[CacheEntry, str]]
    """Those that could not be removed, each with what the system says."""
    n_kept: int
    """How many were used since."""


def cache_root() -> Path:
    """The directory of the cache, whether it is there or not."""
    return default_cache_dir("")


def hold(path: Path) -> bool:
    """Keeps a file or a directory from being pruned until this process ends; False if it is not there any more.

    That is a shared lock, so any number of processes may hold it. Where there are no locks, it only counts as a use.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # It may be read without being opened like this.
    key = _identity(os.fstat(descriptor))
    with suppress(OSError):  # a file system without locks
        # Whoever prunes holds it only while he removes it.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not _is_at(path, key):
        os.close(descriptor)
        return False
    with suppress(OSError):  # a cache that can only be read
        os.utime(path)
    if key in _held:
        os.close(descriptor)
    else:
        _held[key] = descriptor
    return True


def cache_entries() -> list[CacheEntry]:
    """All that is in the cache, what was used last at the end."""
    with _alone():
        return _entries()


def cache_size() -> int:
    """The bytes in the cache, without a look at who uses it."""
    return sum(_size(path) for _, path in _paths())


def prune(*, unused_for: float, is_dry: bool = False) -> Pruned:
    """Removes what was not used for so many seconds and is not used now; links are neither followed nor removed.

    Several may prune at once, and others may read and write: each entry goes as a whole.

    Args:
        is_dry: Whether only to tell what would be removed.
    """
    removed: list[CacheEntry] = []
    used: list[CacheEntry] = []
    failed: list[tuple[CacheEntry, str]] = []
    n_kept = 0
    with _alone():
        for entry in _entries():
            if time.time() - entry.last_use < unused_for:
                n_kept += 1
                continue
            try:
                is_free = not entry.is_used and _removed(entry.path, is_dry=is_dry)
            except OSError as error:
                failed.append((entry, error.strerror or str(error)))
            else:
                (removed if is_free else used).append(entry)
        if not is_dry:
            for folder in _folders():
                sweep(folder)
    return Pruned(removed, used, failed, n_kept)


def _removed(path: Path, *, is_dry: bool) -> bool:
    """Removes an entry that nobody uses; returns whether that is so."""
    with _locked(path) as is_free:
        if is_free and not is_dry:
            remove_whole(path)
        return is_free


@contextmanager
def _alone() -> Iterator[None]:
    """Has those who look at the whole cache wait for each other: they would take the other's look for a use."""
    root = cache_root()
    if root.is_symlink():
        raise ArgumentError(
            f"`{root}` is a link, and links are not followed here. Set XDG_CACHE_HOME to the directory that has the "
            f"folder it leads to, `{os.path.realpath(root)}`, as its trellis."
        )
    try:
        descriptor = os.open(root, os.O_RDONLY)
    except OSError:
        yield  # There is no cache yet.
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entries() -> list[CacheEntry]:
    entries = [_entry(kind, path) for kind, path in _paths()]
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.last_use)


def _folders() -> Iterator[Path]:
    folders = (cache_root() / kind for kind in _WHAT)
    return (folder for folder in folders if folder.is_dir() and not folder.is_symlink())


def _paths() -> Iterator[tuple[str, Path]]:
    """Yields the kind and the path of each entry; what is hidden is being written or removed."""
    for folder in _folders():
        try:
            children = sorted(folder.iterdir())
        except OSError:
            continue  # Nobody may look at it.
        yield from ((folder.name, path) for path in children if path.name[0] != "." and not path.is_symlink())


def _entry(kind: str, path: Path) -> CacheEntry | None:
    try:
        status = path.lstat()
        # JAX reads programs without a word; how that is noted depends on the file system.
        last_use = max(status.st_mtime, status.st_atime) if kind == COMPILED else status.st_mtime
        with _locked(path.parent if kind == COMPILED else path) as is_free:
            is_used = not is_free
        return CacheEntry(path, kind, _described(kind, path), _size(path), last_use, is_used)
    except OSError:
        return None  # It is gone, or nobody may look at it.


def _described(kind: str, path: Path) -> str:
    if kind == _COLUMNS:
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            manifest = parse_json((path / "columns.json").read_bytes())
            names = list(manifest["columns"])
            more = ", …" if len(names) > _N_NAMES else ""
            return f"{int(manifest['count'])} examples: {', '.join(names[:_N_NAMES])}{more}"
    return _WHAT[kind]


def _size(path: Path) -> int:
    """The bytes of a file, or of all files below a directory; links count as what they are."""
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with suppress(OSError):  # It is being removed at this moment.
            total += file.lstat().st_size
    return total


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Gives whether nobody uses what is at a path, and has nobody begin to while the block runs."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        key = _identity(os.fstat(descriptor))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_free = False  # It is used; or the file system has no such locks, and nobody knows.
        else:
            is_free = _is_at(path, key)
        yield is_free
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_at(path: Path, key: tuple[int, int]) -> bool:
    try:
        return _identity(path.stat()) == key
    except OSError:
        return False
