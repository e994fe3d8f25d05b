"""Blocks of `tf.Example`s, decoded at once, against the same examples decoded one by one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from trellis.data.examples import RecordExamples, decode_example, encode_example, read_record_examples
from trellis.data.records import RecordWriter
from trellis.errors import DataError


def block(number: int, payload: bytes) -> bytes:
    length = len(payload)
    return (
        bytes([number << 3 | 2, length] if length < 128 else [number << 3 | 2, length & 127 | 128, length >> 7])
        + payload
    )


def entry(name: bytes, feature: bytes) -> bytes:
    return block(1, block(1, name) + block(2, feature))


def entries_of(example: bytes) -> bytes:
    return example[2:] if example[1] < 128 else example[3:]


def ints(*values: int) -> bytes:
    return block(3, block(1, bytes(values)))


def decoded(records: Sequence[bytes]) -> RecordExamples:
    return RecordExamples(Path("some.tfrecord"), records=records, first=0)


def assert_as_one_by_one(records: Sequence[bytes]) -> None:
    found = decoded(records)
    expected = [decode_example(record) for record in records]
    assert found.names == sorted({name for features in expected for name in features})
    for name in found.names:
        cells = found.cells(name, dtype=None)
        values = [features.get(name, []) for features in expected]
        assert cells.is_present.tolist() == [len(value) > 0 for value in values]
        if cells.is_text:
            assert [cells.values[i] for i in range(len(values))] == [
                value[0] if len(value) else b"" for value in values
            ]
        else:
            assert [cells.values[i].tolist() for i in range(len(values))] == [list(value) for value in values]


@pytest.mark.parametrize("seed", range(10))
def test_random_examples_come_out_as_one_by_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    records = []
    for _ in range(40):
        n = int(generator.choice([0, 1, 1, 3, 40]))
        features = {
            "ints": generator.integers(-(2**63), 2**63 - 1, n),
            "small": generator.integers(-1, 300, n),
            "one": int(generator.integers(0, 100)),
            "floats": generator.standard_normal(n).astype(np.float32),
            "text": generator.bytes(n * 10),
            "a rather long name " * 10: np.zeros(n, np.float32),
        }
        kept = generator.permutation(sorted(features))[: generator.integers(0, len(features) + 1)]
        # In any order, as protobuf writes maps.
        records.append(block(1, b"".join(entries_of(encode_example({str(name): features[name]})) for name in kept)))
    assert_as_one_by_one(records)


def test_rare_forms_come_out_as_one_by_one() -> None:
    usual = block(1, entry(b"x", ints(1, 2)) + entry(b"y", ints(7)))
    unpacked = block(1, entry(b"x", block(3, b"\x08\x05\x08\x06\x08\x07")))
    in_pieces = block(1, entry(b"x", ints(1))) + block(1, entry(b"y", ints(2)))
    merged = block(1, entry(b"x", ints(1) + ints(2)))
    value_first = block(1, block(1, block(2, ints(9)) + block(1, b"x")))
    repeated = block(1, entry(b"x", ints(1)) + entry(b"x", ints(2, 3)))
    unknown = block(15, b"?") + block(1, block(9, b"?") + entry(b"x", ints(4)))
    nothing = block(1, entry(b"x", b"") + entry(b"y", block(3, b"")))
    assert_as_one_by_one([usual, unpacked, in_pieces, merged, value_first, repeated, unknown, nothing, b""])


def test_a_text_may_be_empty_or_absent() -> None:
    cells = decoded([encode_example({"t": b""}), encode_example({"t": []}), encode_example({"t": b"a"})]).cells(
        "t", dtype=None
    )
    assert cells.is_present.tolist() == [True, False, True]


@pytest.mark.parametrize("record", [b"\x0a\x7fabc", block(1, b"\xff" * 20)])
def test_bytes_that_are_no_example_are_named(record: bytes) -> None:
    message = rf"some.tfrecord, record 1: The {len(record)} bytes are no tf.Example: .+\. Check what wrote them"
    with pytest.raises(DataError, match=message):
        decoded([encode_example({"x": 1}), record])


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (block(2, block(1, b"abc")), "its last float is cut short. Write the file again"),
        (block(3, block(1, b"\x01\x80")), "its last integer is cut short. Write the file again"),
        (block(3, block(1, b"\x80" * 10 + b"\x01")), "a varint is longer than 10 bytes. Write the file again"),
        (
            block(1, block(1, b"a") + block(1, b"b")),
            "it holds several byte strings, but a column has one for each example",
        ),
    ],
)
def test_values_that_no_column_can_hold_are_named(feature: bytes, message: str) -> None:
    examples = decoded([block(1, entry(b"x", b"")), block(1, entry(b"y", ints(1)) + entry(b"x", feature))])
    assert examples.cells("y", dtype=None).values.lengths.tolist() == [0, 1]
    with pytest.raises(DataError, match=f"some.tfrecord, record 1, feature 'x': {message}"):
        examples.cells("x", dtype=None)


def test_a_feature_of_two_kinds_is_named() -> None:
    examples = decoded([encode_example({"x": 1}), encode_example({"x": 1}), encode_example({"x": 0.5})])
    with pytest.raises(
        DataError, match=r"record 2, feature 'x': it holds float32, but int64 in records before. Write one"
    ):
        examples.cells("x", dtype=None)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_examples_are_refused_or_read_but_never_crash(seed: int) -> None:
    generator = np.random.default_rng(seed)
    records = []
    for _ in range(20):
        record = bytearray(encode_example({"a": [1, 300], "b": [0.5], "c": b"text"}))
        record[generator.integers(0, len(record))] = generator.integers(0, 256)
        records.append(bytes(record))
    for record in records:
        try:
            examples = decoded([record])
            for name in examples.names:
                examples.cells(name, dtype=None)
        except DataError as error:
            assert "some.tfrecord, record 0" in str(error)  # noqa: PT017


def test_blocks_are_bounded_by_bytes_and_number_their_records() -> None:
    with RecordWriter("a.tfrecord") as writer:
        for number in range(10):
            writer.write(encode_example({"image": bytes(400_000), "number": number}))
    blocks = list(read_record_examples(Path("a.tfrecord")))
    assert [len(block) for block in blocks] == [3, 3, 3, 1]
    assert [block.place(0) for block in blocks] == ["record 0", "record 3", "record 6", "record 9"]
    numbers = [block.cells("number", dtype=None).values.values.tolist() for block in blocks]
    assert numbers == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
