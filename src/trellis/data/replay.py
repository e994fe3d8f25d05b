"""The same batches again and again, for evaluation."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from trellis.aliases import Batch
from trellis.data.stream import SizedStream, StatefulIterator, is_stream
from trellis.errors import ArgumentError, DataError


class Replay:
    """The first `n_batches` batches of some data, from the start each time it is iterated.

    Args:
        data: A stream, an iterator, or anything that can be iterated anew, such as a list.
        n_batches: The default is all of them.
        place: What to call the data in an error, such as `EvalTask.data`.
    """

    def __init__(self, data: Any, *, n_batches: int | None, place: str) -> None:
        if n_batches is not None and n_batches < 1:
            raise ArgumentError(f"n_steps is {n_batches}, but an evaluation takes at least one batch.")
        self._place = place
        self._stream = data if is_stream(data) else None
        self._data = data
        self._kept: list[Batch] | None = None
        self._start = data.get_state() if isinstance(data, StatefulIterator) else None
        if self._stream is None and not isinstance(data, StatefulIterator | Iterable):
            raise ArgumentError(
                f"{place} is a {type(data).__name__}: neither a stream (an object with `batch(step)`) nor iterable."
            )
        held = data.n_batches if self._stream and isinstance(data, SizedStream) else None
        is_endless = self._stream is not None or isinstance(data, Iterator | StatefulIterator)
        if n_batches is None and held is None and is_endless:
            raise ArgumentError(f"{place} has no known end. Say how many batches to take: EvalLoop(n_steps=…).")
        if n_batches is not None and held is not None and held < n_batches:
            raise self._too_few(held, n_batches)
        self._n_batches = held if n_batches is None else n_batches

    def __iter__(self) -> Iterator[Batch]:
        n_seen = 0
        for batch in islice(self._all(), self._n_batches):
            n_seen += 1
            yield batch
        if n_seen < (self._n_batches or 1):
            raise self._too_few(n_seen, self._n_batches or 1)

    def _all(self) -> Iterator[Batch]:
        if self._stream is not None:
            return map(self._stream.batch, range(self._n_batches or 0))
        if isinstance(self._data, StatefulIterator):
            self._data.set_state(self._start)
            return iter(self._data.__next__, None)
        if not isinstance(self._data, Iterator):
            return iter(self._data)
        if self._kept is None:
            self._kept = list(islice(self._data, self._n_batches))
            if len(self._kept) < (self._n_batches or 1):
                raise self._too_few(len(self._kept), self._n_batches or 1)
        return iter(self._kept)

    def _too_few(self, n_held: int, n_wanted: int) -> DataError:
        return DataError(
            f"{self._place} holds {n_held} batches, but {n_wanted} are to be evaluated. "
            f"Lower n_steps, or leave it out to take all of a data set."
        )
