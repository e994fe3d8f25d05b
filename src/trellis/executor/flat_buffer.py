"""The root table of a flat buffer, read without its schema."""

import struct
from mmap import mmap

from trellis.errors import DataError

_ALIGNMENT = 4


def root_vector(data: bytes | mmap, slot: int) -> tuple[int, int]:
    """Returns where the text or the bytes in a slot of the root table begin and end; DataError if they are not there.

    A flat buffer is written from its end, so the part that was written first is the one that a cut takes away.
    """
    if len(data) % _ALIGNMENT:
        raise DataError(f"its {len(data):,} bytes are not a multiple of {_ALIGNMENT}")
    root = _number(data, 0, "<I")
    slots = root - _number(data, root, "<i")
    place = 4 + 2 * slot
    offset = _number(data, slots + place, "<H") if place < _number(data, slots, "<H") else 0
    if not offset:
        raise DataError(f"its table has nothing in slot {slot}")
    start = root + offset + _number(data, root + offset, "<I")
    end = start + 4 + _number(data, start, "<I")
    if end > len(data):
        raise DataError(f"it needs {end:,} bytes, but has {len(data):,}")
    return start + 4, end


def _number(data: bytes | mmap, position: int, format: str) -> int:
    if not 0 <= position <= len(data) - struct.calcsize(format):
        raise DataError(f"it refers to byte {position:,} of {len(data):,}")
    return int(struct.unpack_from(format, data, position)[0])
