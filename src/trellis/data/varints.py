"""Protocol-buffer varints, many at once."""

import numpy as np
from numpy.typing import NDArray

from trellis.errors import DataError

LONGEST_VARINT = 10


def decode_varints(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns the 64-bit integers of concatenated varints; negative ones are stored as ten bytes."""
    is_last = data < 0x80
    stops = np.flatnonzero(is_last) + 1
    if len(stops) == len(data):
        return data.astype(np.int64)
    if not is_last[-1]:
        raise DataError("a varint is cut short")
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    lengths = stops - starts
    if lengths.max() > LONGEST_VARINT:
        raise DataError(f"a varint is longer than {LONGEST_VARINT} bytes")
    values = (data[starts] & 0x7F).astype(np.uint64)
    longer = np.arange(len(starts))
    for place in range(1, int(lengths.max())):
        longer = longer[lengths[longer] > place]
        values[longer] |= (data[starts[longer] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return np.asarray(values.view(np.int64))


def encode_varints(values: NDArray[np.int64]) -> bytes:
    """Returns the integers as concatenated varints."""
    unsigned = np.ascontiguousarray(values, np.int64).view(np.uint64)
    if not (unsigned >= 0x80).any():
        return unsigned.astype(np.uint8).tobytes()
    shifted = unsigned[:, None] >> (np.arange(LONGEST_VARINT, dtype=np.uint64) * np.uint64(7))
    is_used = shifted > 0
    is_used[:, 0] = True
    digits = (shifted & np.uint64(0x7F)).astype(np.uint8)
    digits[:, :-1] |= is_used[:, 1:].astype(np.uint8) << 7
    return digits[is_used].tobytes()
