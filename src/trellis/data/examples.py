"""`tf.Example`, one at a time and many at once; by protobuf, without TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from numpy.typing import ArrayLike, NDArray

from trellis.data.features import Cells, ExampleBlock
from trellis.data.ragged import Ragged, offsets_of, row_at
from trellis.data.records import read_records
from trellis.errors import ArgumentError, DataError

FeatureValues = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

_SCHEMA = """
name: "example.proto" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" label: LABEL_OPTIONAL oneof_index: 0 }
}
message_type {
  name: "Features" field { name: "feature" number: 1 type_name: "FeatureEntry" label: LABEL_REPEATED }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type_name: "Feature" label: LABEL_OPTIONAL }
  }
}
message_type { name: "Example" field { name: "features" number: 1 type_name: "Features" label: LABEL_OPTIONAL } }
"""


def _example_class(schema: str) -> Any:
    # A pool of its own: TensorFlow, where it is loaded, has these messages in the common one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(schema, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))


_Example = _example_class(_SCHEMA)
# Protobuf hands out numbers one by one, as objects of Python. But a list of numbers is written as one field of bytes;
# declared as such, it is handed out whole, and NumPy decodes the lists of many examples at once: twice as fast.
_PackedExample = _example_class(
    _SCHEMA.replace("TYPE_FLOAT label: LABEL_REPEATED", "TYPE_BYTES label: LABEL_OPTIONAL").replace(
        "TYPE_INT64 label: LABEL_REPEATED", "TYPE_BYTES label: LABEL_OPTIONAL"
    )
)
_KIND_NAMES = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}
_LONGEST_VARINT = 10
_BLOCK_BYTES = 1 << 20


def decode_example(record: bytes) -> dict[str, FeatureValues]:
    """Returns the features of a serialised `tf.Example`, sorted by name.

    A feature of bytes is a list of them, one of floats or ints an array, and one that holds nothing an empty list.
    """
    features = _parsed(record).features.feature
    return {name: _values(features[name]) for name in sorted(features)}


def encode_example(features: Mapping[str, ArrayLike | bytes | Sequence[bytes]]) -> bytes:
    """Returns a serialised `tf.Example` that holds text as bytes, bools and ints as int64 and floats as float32.

    Arrays are flattened. Names are written in sorted order, so that equal features give equal bytes.

    Example:
        encode_example({"label": 1, "image": np.zeros((28, 28)), "name": "seven"})
    """
    example = _Example()
    example.features.SetInParent()
    for name, value in features.items():
        _set_feature(example.features.feature[name], name, value)
    serialised: bytes = example.SerializeToString(deterministic=True)
    return serialised


def read_record_examples(path: Path) -> Iterator["RecordExamples"]:
    """Yields the examples of a TFRecord file of `tf.Example`s in blocks of about a megabyte."""
    block: list[bytes] = []
    first, n_bytes = 0, 0
    for record in read_records(path):
        block.append(record)
        n_bytes += len(record)
        if n_bytes >= _BLOCK_BYTES:
            yield RecordExamples(path, records=block, first=first)
            first += len(block)
            block, n_bytes = [], 0
    if block:
        yield RecordExamples(path, records=block, first=first)


class RecordExamples(ExampleBlock):
    """The examples in consecutive records of a file."""

    def __init__(self, path: Path, *, records: Sequence[bytes], first: int) -> None:
        super().__init__(path, unit="record", first=first, n_examples=len(records))
        self._features = [self._packed(index, record) for index, record in enumerate(records)]
        self._nothing = _PackedExample().features.feature["nothing"]

    @property
    def names(self) -> list[str]:
        return sorted(set[str]().union(*self._features))

    def cells(self, name: str, *, dtype: str | None) -> Cells:
        features = [by_name.get(name, self._nothing) for by_name in self._features]
        kinds = (feature.WhichOneof("kind") for feature in features)
        # What no record has a value for could be anything; numbers are what may be absent.
        kind = next((kind for kind in kinds if kind is not None), "float_list")
        values = list(map(attrgetter(f"{kind}.value"), features))
        if not all(values):
            self._check_kind(name, features, kind)
        if kind == "bytes_list":
            return self._texts(name, values)
        offsets = offsets_of(np.fromiter(map(len, values), np.int64, len(values)))
        data = np.frombuffer(b"".join(values), np.uint8)
        decode = self._floats if kind == "float_list" else self._ints
        return Cells(decode(name, data, offsets), np.diff(offsets) > 0)

    def _packed(self, index: int, record: bytes) -> Any:
        """Returns the features of a record by name, the numbers of each as bytes."""
        try:
            example = _PackedExample.FromString(record)
            example.DiscardUnknownFields()
            is_usual = example.ByteSize() == len(record)
        except DecodeError:
            is_usual = False
        if not is_usual:
            # Rarer forms (a field for each number, messages in pieces) are first written in the usual one.
            try:
                example = _PackedExample.FromString(_parsed(record).SerializeToString())
            except DataError as error:
                raise DataError(f"{self.path}, {self.place(index)}: {error}") from error
        return example.features.feature

    def _check_kind(self, name: str, features: Sequence[Any], kind: str) -> None:
        for index, feature in enumerate(features):
            other = feature.WhichOneof("kind")
            if other not in (None, kind):
                problem = f"it holds {_KIND_NAMES[other]}, but {_KIND_NAMES[kind]} in records before."
                raise self.error(f"{problem} Write one kind, or leave it out of features.", index=index, name=name)

    def _texts(self, name: str, values: Sequence[Sequence[bytes]]) -> Cells:
        n_texts = np.fromiter(map(len, values), np.int64, len(values))
        if n_texts.max() > 1:
            problem = "it holds several byte strings, but a column has one for each example. Leave it out of features."
            raise self.error(problem, index=int(np.argmax(n_texts > 1)), name=name)
        texts = [value[0] if value else b"" for value in values]
        return Cells(Ragged.from_rows(texts, dtype="bytes"), n_texts > 0)

    def _floats(self, name: str, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Ragged:
        is_cut = np.diff(offsets) % 4 > 0
        if is_cut.any():
            problem = "its last float is cut short. Write the file again."
            raise self.error(problem, index=int(is_cut.argmax()), name=name)
        return Ragged(data.view("<f4"), offsets=offsets // 4)

    def _ints(self, name: str, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Ragged:
        """Decodes varints: seven bits in each byte, the lowest first; the last byte of each is below 0x80."""
        is_last = data < 0x80
        if is_last.all():
            return Ragged(data.astype(np.int64), offsets=offsets)
        is_cut = np.diff(offsets) > 0
        is_cut[is_cut] = ~is_last[offsets[1:][is_cut] - 1]
        if is_cut.any():
            problem = "its last integer is cut short. Write the file again."
            raise self.error(problem, index=int(is_cut.argmax()), name=name)
        last = np.flatnonzero(is_last)
        values = data[last].astype(np.uint64)
        # Go backwards from the last byte of each number, as long as the byte before belongs to it. Index -1, before
        # the first byte, is the very last byte, which belongs to no other number.
        numbers = np.arange(len(last))
        places = last - 1
        for _ in range(_LONGEST_VARINT):
            continues = ~is_last[places]
            numbers = numbers[continues]
            places = places[continues]
            if len(numbers) == 0:
                return Ragged(values.view(np.int64), offsets=np.searchsorted(last, offsets))
            values[numbers] = values[numbers] << np.uint64(7) | (data[places] & 0x7F)
            places -= 1
        problem = f"a varint is longer than {_LONGEST_VARINT} bytes. Write the file again."
        raise self.error(problem, index=row_at(offsets, place=int(places[0]) + 1), name=name)


def _parsed(record: bytes) -> Any:
    try:
        return _Example.FromString(record)
    except DecodeError as error:
        raise DataError(f"The {len(record)} bytes are no tf.Example: {error}. Check what wrote them.") from error


def _values(feature: Any) -> FeatureValues:
    kind = feature.WhichOneof("kind")
    if kind == "float_list":
        return np.array(feature.float_list.value, np.float32)
    if kind == "int64_list":
        return np.array(feature.int64_list.value, np.int64)
    return list(feature.bytes_list.value)


def _set_feature(feature: Any, name: str, value: ArrayLike | bytes | Sequence[bytes]) -> None:
    texts = [value] if isinstance(value, str | bytes) else value
    if isinstance(texts, Sequence) and len(texts) > 0 and isinstance(texts[0], str | bytes):
        # Not by way of an array: NumPy drops zeros at the end of bytes.
        feature.bytes_list.value.extend(_bytes(name, text) for text in texts)
        return
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind in "SUO" and array.size:
        feature.bytes_list.value.extend(_bytes(name, text) for text in array.tolist())
    elif array.size or isinstance(value, np.ndarray):
        kind, numbers = _numbers(name, array)
        values = getattr(feature, kind)
        # An array without values still has a kind; a list without any has none.
        values.SetInParent()
        values.value.extend(numbers.tolist())


def _numbers(name: str, array: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """Returns which list of a feature takes an array of numbers, and the numbers as it takes them."""
    if array.dtype.kind == "f":
        return "float_list", array.astype(np.float32)
    if array.dtype.kind in "iub" and (array.dtype != np.uint64 or not (array >> np.uint64(63)).any()):
        return "int64_list", array.astype(np.int64)
    raise _unfit(name, f"dtype {array.dtype}")


def _bytes(name: str, text: object) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise _unfit(name, repr(text))


def _unfit(name: str, description: str) -> ArgumentError:
    return ArgumentError(
        f"Feature {name!r} has {description}, but a tf.Example holds int64, float32 or bytes. Convert it."
    )
