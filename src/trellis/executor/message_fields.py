"""The fields of a protobuf message, without knowing what message it is."""

from collections.abc import Iterator

from trellis.errors import DataError

_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}


def message_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number of each field with its whole number or its bytes; raises DataError if it is cut short."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type != _LENGTH and wire_type not in _FIXED_BYTES:
            raise DataError(f"field {number} has the unknown wire type {wire_type}")
        length, position = _varint(data, position) if wire_type == _LENGTH else (_FIXED_BYTES[wire_type], position)
        if position + length > len(data):
            raise DataError(f"field {number} is cut short: it ends at byte {position + length} of {len(data)}")
        yield number, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise DataError("a number is cut short")
