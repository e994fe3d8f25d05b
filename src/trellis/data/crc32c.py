"""CRC-32C of many byte spans at once, in NumPy: no package that Trellis depends on offers it."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from trellis.data.spans import Buffer, equal_spans

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# A register starts at all ones. These bytes bring one of zeros there, so that a span with them in front needs no
# special start; and zeros before those change nothing, so that any span can be padded on the left to whole chunks.
_START = bytes.fromhex("54641f64")
# As much as stays in a processor's cache between two steps.
_BLOCK_BYTES = 1 << 20
_SMALLEST_CHUNK, _LARGEST_CHUNK = 16, 1024


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`."""
    return int(crc32c_of_spans(data, starts=np.zeros(1, np.int64), lengths=np.array([len(data)]))[0])


def crc32c_of_spans(buffer: Buffer, *, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Returns the CRC-32C of `buffer[start:start + length]` for every pair, vectorised over the bytes of all spans."""
    crcs = np.empty(len(starts), np.uint32)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(starts):
        n_done = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, n_done + _BLOCK_BYTES, side="right")))
        crcs[first:stop] = _crc32c_of_block(memoryview(buffer), starts[first:stop], lengths[first:stop])
        first = stop
    return crcs


def masked(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns CRCs as TFRecord stores them: changed, so that data which holds its own CRC is still protected."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


def _crc32c_of_block(view: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    quarter = int(lengths.mean()) // 4 + 1
    chunk = min(max(1 << quarter.bit_length(), _SMALLEST_CHUNK), _LARGEST_CHUNK)
    n_chunks = -(-(lengths + len(_START)) // chunk)
    words = _padded(view, starts, lengths, chunk).view("<u4").reshape(-1, chunk // 4)
    while words.shape[1] > 1:
        half = words.shape[1] // 2
        words = _shifted(words[:, :half], half * 4) ^ words[:, half:]
    remainders = words[:, 0]

    # Chunk k from the end of its span has yet to be moved past k chunks: one power of two at a time.
    stops = np.cumsum(n_chunks)
    n_after = np.repeat(stops, n_chunks) - np.arange(1, stops[-1] + 1)
    for power in range(int(n_chunks.max() - 1).bit_length()):
        selected = np.flatnonzero(n_after >> power & 1)
        remainders[selected] = _shifted(remainders[selected], chunk << power)
    totals = np.bitwise_xor.reduceat(remainders, stops - n_chunks)
    return np.invert(_shifted(totals, 4))


def _padded(view: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int64], chunk: int) -> NDArray[np.uint8]:
    n_zeros = -(lengths + len(_START)) % chunk
    if lengths.min() == lengths.max():
        front, length = int(n_zeros[0]), int(lengths[0])
        rows = np.zeros((len(starts), front + len(_START) + length), np.uint8)
        rows[:, front : front + len(_START)] = np.frombuffer(_START, np.uint8)
        rows[:, front + len(_START) :] = equal_spans(view, starts=starts, length=length)
        return rows
    zeros = bytes(chunk)
    parts: list[bytes | memoryview] = []
    for n, start, stop in zip(n_zeros.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True):
        parts += (zeros[:n], _START, view[start:stop])
    return np.frombuffer(b"".join(parts), np.uint8)


def _shifted(words: NDArray[np.uint32], n_bytes: int) -> NDArray[np.uint32]:
    """Moves registers past `n_bytes` zeros (a power of two, at least 4): a linear map, looked up 16 bits at a time."""
    low, high = _tables(n_bytes)
    halves = np.ascontiguousarray(words).view("<u2")
    # Indices of 16 bits cannot leave a table of 2**16 entries; "wrap" is the mode of `take` that checks least.
    shifted = low.take(halves[..., 0::2], mode="wrap")
    shifted ^= high.take(halves[..., 1::2], mode="wrap")
    return shifted


@cache
def _tables(n_bytes: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if n_bytes == 4:
        for _ in range(32):
            bits = (bits >> np.uint32(1)) ^ (bits & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    else:
        bits = _shifted(_shifted(bits, n_bytes // 2), n_bytes // 2)
    return _table(bits[:16]), _table(bits[16:])


def _table(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    table = np.zeros(1, np.uint32)
    for bit in bits:
        table = np.concatenate([table, table ^ bit])
    return table
