"""Streams: batches as a function of the step."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax
import numpy as np

from trellis.aliases import Batch
from trellis.data.foreign import is_foreign


@runtime_checkable
class Stream(Protocol):
    """Batches as a pure function of the step: any position is reached at once, by any process, in any order."""

    def batch(self, step: int) -> Batch:
        """The batch that the step after `step` completed ones trains on."""


@runtime_checkable
class SizedStream(Stream, Protocol):
    """A stream that knows how many batches it holds."""

    @property
    def n_batches(self) -> int | None:
        """How many batches there are; None if the stream is endless."""


@runtime_checkable
class CountedStream(Stream, Protocol):
    """A stream that knows how many examples it goes through, once an epoch."""

    @property
    def n_examples(self) -> int:
        """How many different examples there are."""


@runtime_checkable
class StackingStream(Stream, Protocol):
    """A stream that can gather several batches at once, cheaper than one by one."""

    def stacked_batches(self, step: int, n: int) -> Batch:
        """The batches of `n` steps from `step` on, stacked along a new first axis."""


@runtime_checkable
class DividedStream(Stream, Protocol):
    """A stream that can make some rows of its batches without the others; only its last batch may be short."""

    def rows(self, start: int, stop: int) -> Stream:
        """The stream of the rows from `start` up to `stop` of every batch, bit for bit those of the whole batch."""


@runtime_checkable
class Examples(Protocol):
    """Examples by index."""

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> Batch:
        """Gathers examples; the leading axis of each leaf is that of `indices`."""


@runtime_checkable
class StatefulIterator(Protocol):
    """An iterator that can say where it stands, such as Grain's."""

    def __next__(self) -> Batch: ...

    def get_state(self) -> Any:
        """The position, as JSON or bytes."""

    def set_state(self, state: Any) -> None:
        """Goes to a position."""


def is_stream(data: Any) -> TypeGuard[Stream]:
    """Whether data is a stream. The data sets of Grain and others have a `batch` too, which means something else."""
    if is_foreign(data):
        return False
    has_position = isinstance(data, Iterable) and isinstance(iter(data), StatefulIterator)
    return isinstance(data, Stream) and not has_position


def rows_of(stream: Stream, start: int, stop: int) -> Stream:
    """The stream of some rows of every batch; they are cut out of the whole where a stream makes nothing less."""
    return stream.rows(start, stop) if isinstance(stream, DividedStream) else _CutStream(stream, slice(start, stop))


class _CutStream:
    def __init__(self, stream: Stream, rows: slice) -> None:
        self._stream = stream
        self._rows = rows

    def batch(self, step: int) -> Batch:
        return jax.tree.map(lambda leaf: leaf[self._rows], self._stream.batch(step))
