"""Tokens are made once: block by block, on all cores, into a cache that later runs memory-map."""

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from trellis.data import fingerprint
from trellis.disk import local_path, write_whole
from trellis.errors import DataError, FileWriteError

Item = TypeVar("Item")
Block = TypeVar("Block")
Result = TypeVar("Result")

_BYTES_WORTH_A_PROCESS = 16 << 20


def cache_directory(files: Sequence[Path], cache_dir: str | os.PathLike[str], *, settings: Sequence[object]) -> Path:
    """The directory for what is made of files: its name follows from their content and from the settings.

    Args:
        cache_dir: The folder of all caches; if it is empty, a folder `.trellis` beside the first file.
    """
    parent = local_path(cache_dir, name="cache_dir") if cache_dir else files[0].parent / ".trellis"
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        way_out = "Name a directory that can be written to in cache_dir."
        raise DataError(f"Tokens cannot be kept in `{parent}`: {error.strerror}. {way_out}") from None
    return parent / _key([settings, _content_key(files, notes=parent)])


def _content_key(files: Sequence[Path], *, notes: Path) -> str:
    """A key that changes with the content of files. It is kept in a note, so that old files are not read again."""
    note = notes / f"{_key([fingerprint(file) for file in files])}.content"
    if note.exists():
        return note.read_text()
    content = _key([(file.suffix, _digest(file)) for file in files])
    # Where nothing can be written, files are read again the next time.
    with contextlib.suppress(FileWriteError):
        write_whole(note, content.encode())
    return content


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _key(values: Sequence[object]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def in_blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields lists of `size` items; the last one may be shorter.

    Example:
        >>> list(in_blocks("abcde", 2))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    return iter(lambda: list(itertools.islice(rest, size)), [])


def n_useful_workers(files: Iterable[Path], *, n_passes: int = 1) -> int:
    """How many processes are worth starting to work through files: each takes a second to start."""
    n_bytes = n_passes * sum(file.stat().st_size for file in files)
    # A scheduler may have given this process some of the machine's cores only.
    n_cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(n_cores, n_bytes // _BYTES_WORTH_A_PROCESS))


class OrderedMap(Protocol):
    """Has the work on blocks done: here, in other processes, or on other machines."""

    def __call__(self, function: Callable[[Block], Result], blocks: Iterable[Block], /) -> Iterator[Result]:
        """Yields the function's results in the order of the blocks, whoever does the work.

        Only a few blocks are in memory at a time.

        Args:
            function: It may go to another process with each block, so it has to be small when it is pickled; it is none
                of the script's own.
        """


def local_map(n_workers: int) -> OrderedMap:
    """Work in some processes of this machine; with one, in this process.

    The script that is run need not guard its code against being imported.

    Example:
        >>> list(local_map(1)(len, [[1], [1, 2], []]))
        [1, 2, 0]
    """
    if n_workers <= 1:
        return map

    def ordered_map(function: Callable[[Block], Result], blocks: Iterable[Block], /) -> Iterator[Result]:
        return _pool_map(function, blocks, n_workers)

    return ordered_map


def _pool_map(function: Callable[[Block], Result], blocks: Iterable[Block], n_workers: int) -> Iterator[Result]:
    with ProcessPoolExecutor(n_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: deque[Future[Result]] = deque()
        for block in blocks:
            with _hidden_script():
                waiting.append(pool.submit(function, block))
            if len(waiting) > 2 * n_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextlib.contextmanager
def _hidden_script() -> Iterator[None]:
    """Has a process that is started not import the script that is run, which would run it a second time."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
