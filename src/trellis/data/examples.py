"""`tf.Example`, decoded and encoded without TensorFlow or protobuf."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trellis.data.varints import decode_varints, encode_varints
from trellis.errors import ArgumentError, DataError

FeatureValues = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

# Field numbers in Feature: which kind of list it holds.
BYTES, FLOAT, INT64 = 1, 2, 3
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class _Field(NamedTuple):
    number: int
    wire_type: int
    payload: bytes
    """The value's bytes; of a varint, the varint itself."""


def decode_example(record: bytes) -> dict[str, FeatureValues]:
    """Returns the features of a serialised `tf.Example`.

    A feature of bytes is a list of them, one of floats or ints an array, and one that holds nothing an empty list.
    """
    try:
        # Messages in pieces are merged by joining the pieces: that is how the wire format is defined.
        entries = _payloads(b"".join(_payloads(record, number=1)), number=1)
        return dict(map(_decode_entry, entries))
    except DataError as error:
        raise DataError(f"The {len(record)} bytes are no tf.Example: {error}. Check what wrote them.") from error


def encode_example(features: Mapping[str, ArrayLike | bytes | Sequence[bytes]]) -> bytes:
    """Returns a serialised `tf.Example` that holds text as bytes, bools and ints as int64 and floats as float32.

    Arrays are flattened. Names are written in sorted order, so that equal features give equal bytes.

    Example:
        encode_example({"label": 1, "image": np.zeros((28, 28)), "name": "seven"})
    """
    entries = []
    for name in sorted(features):
        feature = _encode_feature(name, features[name])
        entries.append(encode_block(1, encode_block(1, name.encode()) + encode_block(2, feature)))
    return encode_block(1, b"".join(entries))


def decode_name(key: bytes) -> str:
    """Returns a feature's name; bytes that are no UTF-8, which some writers let pass, are escaped."""
    return key.decode(errors="backslashreplace")


def _decode_entry(entry: bytes) -> tuple[str, FeatureValues]:
    keys = _payloads(entry, number=1)
    return decode_name(keys[-1]) if keys else "", _decode_feature(b"".join(_payloads(entry, number=2)))


def _decode_feature(data: bytes) -> FeatureValues:
    kind, lists = 0, b""
    for field in _fields(data):
        if field.number in (BYTES, FLOAT, INT64) and field.wire_type == _LENGTH:
            # Of several kinds the last one counts; several of one kind are merged.
            lists = lists + field.payload if field.number == kind else field.payload
            kind = field.number
    items = [field for field in _fields(lists) if field.number == 1]
    if kind == FLOAT:
        return _decode_floats(items)
    if kind == INT64:
        joined = b"".join(item.payload for item in items if item.wire_type in (_VARINT, _LENGTH))
        return decode_varints(np.frombuffer(joined, np.uint8))
    return [item.payload for item in items if item.wire_type == _LENGTH]


def _decode_floats(items: Sequence[_Field]) -> NDArray[np.float32]:
    joined = b"".join(item.payload for item in items if item.wire_type in (_FIXED32, _LENGTH))
    if len(joined) % 4:
        raise DataError(f"a list of floats takes {len(joined)} bytes, not a multiple of 4")
    return np.frombuffer(joined, "<f4").astype(np.float32)


def _encode_feature(name: str, value: ArrayLike | bytes | Sequence[bytes]) -> bytes:
    texts = [value] if isinstance(value, str | bytes) else value
    if isinstance(texts, Sequence) and len(texts) > 0 and isinstance(texts[0], str | bytes):
        # Not by way of an array: NumPy drops zeros at the end of bytes.
        return encode_block(BYTES, b"".join(encode_block(1, _bytes(name, text)) for text in texts))
    array = np.asarray(value).reshape(-1)
    if array.size == 0 and not isinstance(value, np.ndarray):
        return b""
    if array.dtype.kind == "f":
        return encode_block(FLOAT, encode_block(1, array.astype("<f4").tobytes()) if array.size else b"")
    if array.dtype.kind in "iub" and (array.dtype != np.uint64 or not (array >> np.uint64(63)).any()):
        return encode_block(INT64, encode_block(1, encode_varints(array.astype(np.int64))) if array.size else b"")
    if array.dtype.kind in "SUO" and array.size:
        return encode_block(BYTES, b"".join(encode_block(1, _bytes(name, text)) for text in array.tolist()))
    raise _unfit(name, f"dtype {array.dtype}")


def _bytes(name: str, text: object) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise _unfit(name, repr(text))


def _unfit(name: str, found: str) -> ArgumentError:
    return ArgumentError(f"Feature {name!r} has {found}, but a tf.Example holds int64, float32 or bytes. Convert it.")


def encode_block(number: int, payload: bytes) -> bytes:
    """Returns a field of bytes: its number, its length, its payload."""
    head = [number << 3 | _LENGTH]
    length = len(payload)
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + payload


def _payloads(data: bytes, *, number: int) -> list[bytes]:
    return [field.payload for field in _fields(data) if field.number == number and field.wire_type == _LENGTH]


def _fields(data: bytes) -> Iterator[_Field]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        start = position
        if wire_type == _VARINT:
            _, position = _varint(data, position)
        elif wire_type == _LENGTH:
            length, start = _varint(data, position)
            position = start + length
        elif wire_type in _FIXED_BYTES:
            position += _FIXED_BYTES[wire_type]
        else:
            raise DataError(f"field {number} has the unknown wire type {wire_type}")
        if position > len(data):
            raise DataError(f"field {number} is cut short: it ends at byte {position} of {len(data)}")
        yield _Field(number, wire_type, data[start:position])


def _varint(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    value = 0
    for place in range(10):
        if position + place >= len(data):
            raise DataError("a varint is cut short")
        byte = data[position + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise DataError("a varint is longer than 10 bytes")
