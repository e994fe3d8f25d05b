"""Copying many byte spans out of one buffer."""

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | memoryview


def equal_spans(buffer: Buffer, *, starts: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    """Returns `buffer[start:start + length]` for every start as the rows of a matrix."""
    if length == 0 or len(starts) == 0:
        return np.zeros((len(starts), length), np.uint8)
    # Every position of the buffer is seen as an item of `length` bytes, so that indexing copies whole spans in C.
    items = np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer, strides=(1,))
    return items[starts].view(np.uint8).reshape(-1, length)


def joined_spans(buffer: Buffer, *, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns the bytes of all spans, one after the other."""
    if len(starts) == 0:
        return np.zeros(0, np.uint8)
    if lengths.min() == lengths.max():
        return equal_spans(buffer, starts=starts, length=int(lengths[0])).reshape(-1)
    view = memoryview(buffer)
    stops = starts + lengths
    parts = [view[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return np.frombuffer(b"".join(parts), np.uint8)
