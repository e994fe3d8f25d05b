"""The reader that a loop draws batches from, whatever the user gave, and that knows where it stands."""

import base64
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import jax
import numpy as np

from trellis.aliases import JSON, Batch
from trellis.data import (
    DividedStream,
    ForeignBatches,
    SizedStream,
    StackingStream,
    StatefulIterator,
    Stream,
    as_numpy,
    foreign_batches,
    is_stream,
    rows_of,
)
from trellis.errors import ArgumentError, DataError
from trellis.loops.batch import ShapeCheck, batch_size, stacked
from trellis.runtime import Placement

OwnRows = Callable[[int], tuple[int, int]]
"""From the size of a batch to the first of its rows that are this process's, and the one after the last."""

_MOST_KEPT_BYTES = 4 << 30
"""How much of a plain iterator is kept before it is taken for one without end."""


class Feed(ABC):
    """Batches in the order of the steps, with a position that can be saved and sought."""

    n_batches: int | None = None
    """How many batches there are, where that is known."""
    is_replayed: bool = True
    """Whether the batches that were read again, to get to a saved position, ended with the one that was seen before."""

    @abstractmethod
    def peek(self) -> Batch:
        """The batch that comes next, whole, without taking it."""

    @abstractmethod
    def take(self, step: int, n: int) -> tuple[int, Batch]:
        """Takes this process's rows of the batches of `n` steps; fewer steps (and how many) if the data ends.

        Of more than one step they are stacked.
        """

    def prefetch(self, step: int, n: int) -> None:  # noqa: B027  (an iterator would be advanced by it)
        """Makes the batches of `n` steps that will be taken next, if that can be undone."""

    @abstractmethod
    def position(self) -> JSON:
        """Where the next batch is."""

    @abstractmethod
    def seek(self, step: int, position: JSON) -> int:
        """Goes to a saved position; returns how many batches had to be read and thrown away for it."""


def build_feed(data: Any, *, place: str, own_rows: OwnRows | None = None) -> Feed:
    """Turns a stream, an iterator or a data set (of Grain, PyTorch, TensorFlow, Hugging Face) into a feed.

    Args:
        place: What to call the data in an error, such as `TrainTask.data`.
        own_rows: Which rows of a batch to take, by its size, where several processes share a batch.
    """
    if is_stream(data):
        return _StreamFeed(data, place, own_rows)
    foreign = foreign_batches(data, place=place)
    if foreign is not None:
        return _IteratorFeed(foreign.epochs(), ShapeCheck(place, short_batch=foreign.short_batch), own_rows)
    if isinstance(data, StatefulIterator | Iterator):
        return _IteratorFeed(data, ShapeCheck(place), own_rows)
    if isinstance(data, Iterable):
        iterator = iter(data)
        if isinstance(iterator, StatefulIterator):
            return _IteratorFeed(iterator, ShapeCheck(place), own_rows)
    raise ArgumentError(
        f"{place} is a {type(data).__name__}: neither a stream (an object with `batch(step)`) nor an iterator. "
        f"Give `trellis.ExampleStream(arrays, batch_size=…)`, a generator, or `iter(…)` of what you have."
    )


class _StreamFeed(Feed):
    def __init__(self, stream: Stream, place: str, own_rows: OwnRows | None) -> None:
        self._stream = stream
        self._own_rows = own_rows
        self._first: Batch = None
        self._check = ShapeCheck(place)
        self._check_whole = ShapeCheck(place)
        self._ahead: tuple[tuple[int, int], tuple[int, Batch]] | None = None
        self.n_batches = stream.n_batches if isinstance(stream, SizedStream) else None

    def peek(self) -> Batch:
        if self._first is None:
            self._first = self._stream.batch(0)
        return self._first

    @cached_property
    def _own(self) -> Stream:
        """The stream of this process's rows."""
        if self._own_rows is None:
            return self._stream
        return rows_of(self._stream, *self._own_rows(batch_size(self.peek())))

    @cached_property
    def _stacking(self) -> StackingStream | None:
        # Asked once: it takes its time.
        return self._own if isinstance(self._own, StackingStream) else None

    def take(self, step: int, n: int) -> tuple[int, Batch]:
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == (step, n) else self._read(step, n)

    def prefetch(self, step: int, n: int) -> None:
        try:
            self._ahead = ((step, n), self._read(step, n))
        except Exception:  # noqa: BLE001  (it comes again, and is raised, when these steps are due)
            self._ahead = None

    def _read(self, step: int, n: int) -> tuple[int, Batch]:
        if self.n_batches is not None:
            n = min(n, self.n_batches - step)
        if n < 1:
            return 0, None
        if n == 1:
            batch = self._batch(step)
            self._check(batch, step)
            return 1, batch
        # A short last batch is left to the check below, which names it.
        if self._stacking is not None and (self.n_batches is None or step + n < self.n_batches):
            return n, self._stacking.stacked_batches(step, n)
        batches = [self._batch(step + i) for i in range(n)]
        for i, batch in enumerate(batches):
            self._check(batch, step + i)
        return n, stacked(batches)

    def _batch(self, step: int) -> Batch:
        """The rows of a step; the batch that was looked at already is not made again."""
        is_first = step == 0 and self._first is not None
        if self._own_rows is None:
            return self._first if is_first else self._stream.batch(step)
        if not is_first and step + 1 != self.n_batches:
            return self._own.batch(step)
        # A last batch may be short, which every process has to see.
        self._check_whole(self.peek(), 0)
        whole = self._first if is_first else self._stream.batch(step)
        self._check_whole(whole, step)
        return _cut(whole, self._own_rows)

    def position(self) -> JSON:
        return None

    def seek(self, step: int, position: JSON) -> int:
        return 0


class _IteratorFeed(Feed):
    def __init__(
        self, iterator: Iterator[Batch] | StatefulIterator, check: ShapeCheck, own_rows: OwnRows | None
    ) -> None:
        self._iterator = iterator
        self._own_rows = own_rows
        self._stateful = iterator if isinstance(iterator, StatefulIterator) else None
        self._check = check
        self._ahead: list[Batch] = []
        self._last: Batch = None
        self._n_taken = 0

    def peek(self) -> Batch:
        if not self._ahead:
            start = self._stateful.get_state() if self._stateful else None
            batch = self._read()
            if batch is None:
                raise DataError(f"{self._check.place} ended before its first batch.")
            if self._stateful:
                self._stateful.set_state(start)
                return batch
            self._ahead = [batch]
        return self._ahead[0]

    def take(self, step: int, n: int) -> tuple[int, Batch]:
        batches: list[Batch] = []
        while len(batches) < n:
            batch = self._read()
            if batch is None:
                break
            self._check(batch, step + len(batches))
            batches.append(batch)
        self._n_taken += len(batches)
        if not batches:
            return 0, None
        self._last = batches[-1]
        if self._own_rows is not None:
            batches = [_cut(batch, self._own_rows) for batch in batches]
        return len(batches), batches[0] if len(batches) == 1 else stacked(batches)

    def position(self) -> JSON:
        if self._stateful is None:
            return {"n_batches": self._n_taken, "last_batch": _checksum(self._last)}
        state = self._stateful.get_state()
        if isinstance(state, bytes):
            return {"bytes": base64.b64encode(state).decode()}
        return {"state": state}

    def seek(self, step: int, position: JSON) -> int:
        saved: dict[str, Any] = position if isinstance(position, dict) else {"n_batches": step}
        if self._stateful is not None and "n_batches" not in saved:
            self._stateful.set_state(base64.b64decode(saved["bytes"]) if "bytes" in saved else saved["state"])
            return 0
        n_skipped = int(saved.get("n_batches", step)) - self._n_taken
        for index in range(n_skipped):
            self._last = self._read()
            if self._last is None:
                raise DataError(
                    f"{self._check.place} ended after {index} batches, but the run resumes at batch {n_skipped}. "
                    f"Give the data that the run was started with."
                )
        self._n_taken += n_skipped
        self.is_replayed = not n_skipped or saved.get("last_batch") in (None, _checksum(self._last))
        return n_skipped

    def _read(self) -> Batch:
        """The next batch, with NumPy arrays in the place of other libraries' tensors; None at the end."""
        return self._ahead.pop() if self._ahead else as_numpy(next(self._iterator, None))


def _cut(batch: Batch, own_rows: OwnRows) -> Batch:
    rows = slice(*own_rows(batch_size(batch)))
    return jax.tree.map(lambda leaf: leaf[rows], batch)


def _checksum(batch: Batch) -> int:
    checksum = 0
    for leaf in jax.tree.leaves(batch):
        if isinstance(leaf, jax.Array):
            # To fetch it at every checkpoint would cost more than it tells.
            continue
        checksum = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), checksum)
    return checksum


class Replay:
    """The first `n_batches` batches of some data, from the start each time it is iterated.

    Args:
        data: A stream, an iterator, or anything that can be iterated anew, such as a list or a `DataLoader`.
        n_batches: The default is all of them. A plain iterator is read up to its end then, and kept.
        place: What to call the data in an error, such as `EvalTask.data`.
    """

    def __init__(self, data: Any, *, n_batches: int | None, place: str) -> None:
        if n_batches is not None and n_batches < 1:
            raise ArgumentError(f"n_steps is {n_batches}, but an evaluation takes at least one batch.")
        self._place = place
        self._stream = data if is_stream(data) else None
        foreign = None if self._stream is not None else foreign_batches(data, place=place)
        data = data if foreign is None else foreign
        self._data = data
        self._first: Batch = None
        self._kept: list[Batch] = []
        """The batches of a plain iterator so far, which cannot be read again."""
        self._n_kept_bytes = 0
        self._start = data.get_state() if isinstance(data, StatefulIterator) else None
        if self._stream is None and not isinstance(data, StatefulIterator | Iterable):
            raise ArgumentError(
                f"{place} is a {type(data).__name__}: neither a stream (an object with `batch(step)`) nor iterable."
            )
        sized = foreign if foreign is not None else self._stream
        n_known = sized.n_batches if isinstance(sized, SizedStream | ForeignBatches) else None
        is_endless = self._stream is not None or isinstance(data, StatefulIterator)
        if foreign is not None:
            is_endless = foreign.is_endless
        if n_batches is None and n_known is None and is_endless:
            raise ArgumentError(f"{place} has no known end. Say how many batches to take: EvalLoop(n_steps=…).")
        if n_batches is not None and n_known is not None and n_known < n_batches:
            raise self._too_few(n_known, n_batches)
        self._n_batches = n_known if n_batches is None else n_batches

    def peek(self) -> Batch:
        """The first batch."""
        if self._first is None:
            self._first = next(self._all(n_batches=1), None)
            if self._first is None:
                raise self._too_few(0, self._n_batches or 1)
        return self._first

    def __iter__(self) -> Iterator[Batch]:
        n_batches = 0
        for batch in islice(self._all(self._n_batches), self._n_batches):
            n_batches += 1
            yield batch
        if n_batches < (self._n_batches or 1):
            raise self._too_few(n_batches, self._n_batches or 1)

    def placed(self, placement: Placement) -> Iterator[Batch]:
        """The batches on the devices; of several processes each makes only its own rows, where the data allows that."""
        stream = self._stream
        size = batch_size(self.peek())
        if not placement.spans_processes or not isinstance(stream, DividedStream) or size % placement.n_parts:
            yield from map(placement.put_batch, self)
            return
        own = stream.rows(*placement.own_rows(size))
        n_whole = self._n_batches or 0
        if isinstance(stream, SizedStream) and n_whole == stream.n_batches:
            n_whole -= 1
        yield from (placement.put_rows(own.batch(step)) for step in range(n_whole))
        # A last batch may be short, and is not split then.
        yield from (placement.put_batch(stream.batch(step)) for step in range(n_whole, self._n_batches or 0))

    def _all(self, n_batches: int | None) -> Iterator[Batch]:
        """The batches from the first on, of which `n_batches` will be read."""
        if self._stream is not None:
            return map(self._stream_batch, range(n_batches or 0))
        if isinstance(self._data, StatefulIterator):
            self._data.set_state(self._start)
            return iter(self._data.__next__, None)
        if not isinstance(self._data, Iterator):
            return map(as_numpy, self._data)
        # All at once: if there are too few, that is known before the first is evaluated.
        self._keep(self._data, n_batches)
        if len(self._kept) < (n_batches or 1):
            raise self._too_few(len(self._kept), self._n_batches or 1)
        return iter(self._kept)

    def _keep(self, iterator: Iterator[Batch], n_batches: int | None) -> None:
        """Reads a plain iterator up to its end, or until so many batches are kept."""
        n_missing = None if n_batches is None else n_batches - len(self._kept)
        for batch in islice(iterator, n_missing):
            self._kept.append(as_numpy(batch))
            self._n_kept_bytes += sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(self._kept[-1]))
            if n_batches is None and self._n_kept_bytes > _MOST_KEPT_BYTES:
                raise ArgumentError(
                    f"{self._place} has not ended after {len(self._kept)} batches ({_MOST_KEPT_BYTES >> 30} GiB), "
                    f"which are kept for the next evaluation. Say how many to take, EvalLoop(n_steps=…), or give what "
                    f"can be read again: a stream, a list or a data set."
                )

    def _stream_batch(self, step: int) -> Batch:
        return self._first if step == 0 and self._first is not None else self._data.batch(step)

    def _too_few(self, n_known: int, n_wanted: int) -> DataError:
        return DataError(
            f"{self._place} holds {n_known} batches, but {n_wanted} are to be evaluated. "
            f"Lower n_steps, or leave it out to take all of a data set."
        )
