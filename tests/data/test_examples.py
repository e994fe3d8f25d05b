"""`tf.Example` against bytes that TensorFlow's protobuf wrote, and in its rarer forms."""

import numpy as np
import pytest

from trellis.data.examples import decode_example, encode_example
from trellis.errors import ArgumentError, DataError

# {label: int64 [-1, 300], name: bytes [b"seven\0"], none: nothing, x: float [1.5, -2.0]}, as protobuf serialises it.
GOLDEN = bytes.fromhex(
    "0a4c0a190a056c6162656c12101a0e0a0cffffffffffffffffff01ac02"
    "0a120a046e616d65120a0a080a06736576656e00"
    "0a080a046e6f6e651200"
    "0a110a0178120c120a0a080000c03f000000c0"
)


def block(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2, len(payload)]) + payload


def example_of(feature: bytes, name: bytes = b"x") -> bytes:
    return block(1, block(1, block(1, name) + block(2, feature)))


def random_features(generator: np.random.Generator) -> dict[str, object]:
    n = int(generator.integers(0, 5))
    return {
        "ints": generator.integers(-(2**63), 2**63 - 1, n),
        "small": generator.integers(-2, 200, n),
        "floats": generator.standard_normal(n).astype(np.float32),
        "texts": [generator.bytes(int(size)) for size in generator.integers(0, 200, n)],
    }


def assert_equal(found: dict[str, object], expected: dict[str, object]) -> None:
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        assert list(found[name]) == list(values)


def test_bytes_of_protobuf_are_decoded() -> None:
    features = decode_example(GOLDEN)
    assert_equal(features, {"label": [-1, 300], "name": [b"seven\0"], "none": [], "x": [1.5, -2.0]})
    assert features["label"].dtype == np.int64
    assert features["x"].dtype == np.float32


def test_the_bytes_encoded_are_those_of_protobuf() -> None:
    assert encode_example({"x": [1.5, -2.0], "label": [-1, 300], "name": b"seven\0", "none": []}) == GOLDEN


@pytest.mark.parametrize("seed", range(20))
def test_what_is_encoded_is_decoded_again(seed: int) -> None:
    features = random_features(np.random.default_rng(seed))
    assert_equal(decode_example(encode_example(features)), features)


def test_scalars_arrays_bools_and_text_are_encoded() -> None:
    image = np.arange(6.0).reshape(2, 3)
    features = {
        "flag": True,
        "count": np.uint8(7),
        "image": image,
        "words": ["ä", "b"],
        "array": np.array([b"a", b"b"]),
    }
    found = decode_example(encode_example(features))
    expected = {"flag": [1], "count": [7], "image": range(6), "words": ["ä".encode(), b"b"], "array": [b"a", b"b"]}
    assert_equal(found, expected)


def test_an_empty_array_keeps_its_kind() -> None:
    found = decode_example(encode_example({"i": np.zeros(0, np.int64), "f": np.zeros(0, np.float32)}))
    assert found["i"].dtype == np.int64
    assert found["f"].dtype == np.float32


def test_no_bytes_are_an_example_without_features() -> None:
    assert decode_example(b"") == {}
    assert decode_example(encode_example({})) == {}


def test_unpacked_floats_are_decoded() -> None:
    items = b"".join(b"\x0d" + np.float32(value).tobytes() for value in (1.5, -2.0))
    assert_equal(decode_example(example_of(block(2, items))), {"x": [1.5, -2.0]})


def test_unpacked_ints_are_decoded() -> None:
    items = b"\x08\x01" + b"\x08" + b"\xff" * 9 + b"\x01" + block(1, b"\xac\x02")
    assert_equal(decode_example(example_of(block(3, items))), {"x": [1, -1, 300]})


def test_messages_in_pieces_are_merged() -> None:
    first, second = block(3, block(1, b"\x01")), block(3, block(1, b"\x02"))
    pieces = block(1, block(1, block(1, b"x") + block(2, first) + block(2, second))) + example_of(first, b"y")
    assert_equal(decode_example(pieces), {"x": [1, 2], "y": [1]})


def test_the_last_of_several_kinds_and_of_several_entries_counts() -> None:
    ints, floats = block(3, block(1, b"\x05")), block(2, block(1, np.float32(2).tobytes()))
    assert_equal(decode_example(example_of(ints + floats)), {"x": [2.0]})
    assert_equal(decode_example(example_of(ints) + example_of(floats)), {"x": [2.0]})


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\x78\x05" + b"\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x7a\x01z"
    assert_equal(decode_example(unknown + example_of(unknown + block(3, unknown + b"\x08\x05"))), {"x": [5]})


@pytest.mark.parametrize(
    "record",
    [
        b"\x0a\x05abc",
        b"\x0a\xff",
        b"\xff" * 11,
        b"\x0b",
        example_of(block(2, block(1, b"abc"))),
        example_of(block(3, block(1, b"\x80"))),
        example_of(block(3, block(1, b"\x80" * 11 + b"\x01"))),
        example_of(block(3, block(1, b"\x01")), name=b"\xff"),
    ],
)
def test_other_bytes_are_refused(record: bytes) -> None:
    with pytest.raises(DataError, match=rf"The {len(record)} bytes are no tf.Example: .+\. Check what wrote them."):
        decode_example(record)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1j, "dtype complex128"),
        (np.array([2**63], np.uint64), "dtype uint64"),
        (2**70, "1180591620717411303424"),
        ([b"a", 1], "1"),
    ],
)
def test_values_that_no_feature_can_hold_are_refused(value: object, found: str) -> None:
    with pytest.raises(ArgumentError, match=f"Feature 'x' has {found}, but a tf.Example holds int64, float32 or bytes"):
        encode_example({"x": value})


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
def test_an_integer_of_any_size_goes_there_and_back(value: int) -> None:
    assert decode_example(encode_example({"x": [value, 5]}))["x"].tolist() == [value, 5]
