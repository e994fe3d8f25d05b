"""Columns whose examples differ in length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trellis.errors import DataError

TEXT_DTYPES = ("str", "bytes")


@dataclass(frozen=True)
class Padding:
    """How rows of differing length become one array."""

    length: int | None = None
    """The length of every row; None is that of the longest row of the column, so that all batches have one shape."""
    value: float = 0
    """What short rows are filled up with."""
    truncate: bool = False
    """Whether longer rows are cut; else they are an error."""


_TO_THE_LONGEST = Padding()


class Ragged:
    """Rows of differing length, one after the other in `values`; row i is `values[offsets[i]:offsets[i + 1]]`.

    A row of numbers is an array. A row of text is a `str` or `bytes`, and `values` holds its (UTF-8) bytes.

    Example:
        ids = Ragged.from_rows([[101, 7, 102], [101, 102]])
        ids.take(np.array([1, 0]), padding=Padding(length=4))

    Args:
        dtype: The dtype of the values by its NumPy name, or "str" or "bytes".
        longest: The length of the longest row, if it is known; else it is found when it is asked for.
    """

    def __init__(
        self,
        values: NDArray[Any],
        *,
        offsets: NDArray[np.int64],
        dtype: str | None = None,
        longest: int | None = None,
    ) -> None:
        self.values = values
        self.offsets = offsets
        self.dtype = values.dtype.name if dtype is None else dtype
        self._longest = longest

    @classmethod
    def from_rows(cls, rows: Sequence[Any], *, dtype: str | None = None) -> Self:
        """Makes rows of numbers, or of text if all rows are `str` or all are `bytes`."""
        kinds = {type(row) for row in rows} if dtype is None else set()
        if dtype in TEXT_DTYPES or kinds in ({str}, {bytes}):
            dtype = dtype or kinds.pop().__name__
            encoded = [row.encode() if isinstance(row, str) else row for row in rows]
            values: NDArray[Any] = np.frombuffer(b"".join(encoded), np.uint8)
            lengths = np.fromiter(map(len, encoded), np.int64, len(rows))
        else:
            arrays = [np.asarray(row, dtype).reshape(-1) for row in rows]
            # An empty list has no dtype of its own, and must not turn integers into floats.
            filled = [array for array in arrays if array.size] or arrays[:1] or [np.zeros(0, dtype)]
            values = np.concatenate(filled)
            lengths = np.fromiter(map(len, arrays), np.int64, len(rows))
        return cls(values, offsets=offsets_of(lengths), dtype=dtype)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[Any] | str | bytes:
        """Returns one row."""
        number = range(len(self))[index]
        row = self.values[self.offsets[number] : self.offsets[number + 1]]
        if self.dtype == "str":
            return row.tobytes().decode()
        return row.tobytes() if self.dtype == "bytes" else row

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many values (of text: bytes) each row has."""
        return np.diff(self.offsets)

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        if self._longest is None:
            self._longest = int(self.lengths.max(initial=0))
        return self._longest

    def gather(self, rows: NDArray[np.integer], *, longest: int | None = None) -> "Ragged":
        """Returns some rows as they are, one after the other.

        Example:
            >>> some = Ragged.from_rows([[1, 2], [3], [4, 5, 6]]).gather(np.array([2, 0]))
            >>> some.values.tolist(), some.offsets.tolist()
            ([4, 5, 6, 1, 2], [0, 3, 5])

        Args:
            longest: Up to how many values of a row to take; None takes all.
        """
        starts = self.offsets[:-1].take(rows)
        lengths = self.offsets[1:].take(rows) - starts
        if longest is not None:
            lengths = np.minimum(lengths, longest)
        offsets = offsets_of(lengths)
        sources = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.values.take(sources), offsets=offsets, dtype=self.dtype)

    def take(self, indices: NDArray[np.integer], *, padding: Padding = _TO_THE_LONGEST) -> NDArray[Any]:
        """Returns rows by number, padded to one length, bytes as uint8; of `str`, an array of strings."""
        # In 64 bits, since the number after the last one may not fit the dtype of the indices.
        rows = np.asarray(indices, np.int64)
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        if self.dtype == "str":
            padded = self._padded(starts, lengths, int(lengths.max(initial=1)), 0)
            return np.strings.decode(padded.view(f"S{padded.shape[-1]}")[..., 0], "utf-8")
        width = self.longest if padding.length is None else padding.length
        if not padding.truncate and (lengths > width).any():
            too_long = rows[lengths > width].flat[0]
            n_values = self.offsets[too_long + 1] - self.offsets[too_long]
            raise DataError(
                f"Row {too_long} has {n_values} values, more than the length {width} that rows are padded to. "
                "Give a greater length, or Padding(truncate=True)."
            )
        return self._padded(starts, np.minimum(lengths, width), width, padding.value)

    def _padded(self, starts: NDArray[Any], lengths: NDArray[Any], width: int, value: float) -> NDArray[Any]:
        # Every window of `width` values is one item, so that a row is copied whole, in C, with what follows it.
        values = self.values if len(self.values) >= width else np.pad(self.values, (0, width - len(self.values)))
        last_window = len(values) - width
        padded: NDArray[Any] = sliding_window_view(values, width)[np.minimum(starts, last_window)]
        at_end = starts > last_window
        if at_end.any():
            positions = np.minimum(starts[at_end, None] + np.arange(width), len(values) - 1)
            padded[at_end] = values[positions]
        np.copyto(padded, value, where=np.arange(width) >= lengths[..., None], casting="unsafe")
        return padded


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Returns where rows of these lengths start, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def row_at(offsets: NDArray[np.int64], *, place: int) -> int:
    """Returns which row a place in the values belongs to."""
    return int(np.searchsorted(offsets, place, side="right")) - 1
