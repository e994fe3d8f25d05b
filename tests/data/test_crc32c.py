"""Known CRCs, and the vectorised form against the definition."""

import numpy as np
import pytest

from trellis.data.crc32c import crc32c, crc32c_of_spans, masked


def crc32c_by_definition(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


# The vectors of RFC 3720, and the usual check word.
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0x00000000),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_vectors_come_out(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_spans_of_any_length_have_the_crc_of_the_definition() -> None:
    data = np.random.default_rng(0).bytes(6000)
    lengths = np.array([0, 1, 2, 3, 4, 5, 11, 12, 13, 27, 28, 29, 100, 1500, 3000])
    starts = np.cumsum(lengths) - lengths
    expected = [crc32c_by_definition(data[start : start + n]) for start, n in zip(starts, lengths, strict=True)]
    assert crc32c_of_spans(data, starts=starts, lengths=lengths).tolist() == expected


def test_spans_of_one_length_may_overlap() -> None:
    data = np.random.default_rng(1).bytes(50)
    starts = np.array([0, 1, 7, 30])
    expected = [crc32c_by_definition(data[start : start + 20]) for start in starts]
    assert crc32c_of_spans(data, starts=starts, lengths=np.full(4, 20)).tolist() == expected


def test_more_than_one_block_of_bytes_is_taken_in_turn() -> None:
    data = np.random.default_rng(2).bytes(700_000)
    crcs = crc32c_of_spans(data * 4, starts=np.arange(4) * len(data), lengths=np.full(4, len(data)))
    assert len(set(crcs.tolist())) == 1
    assert crcs[0] == crc32c(data)


def test_no_spans_have_no_crcs() -> None:
    assert crc32c_of_spans(b"", starts=np.zeros(0, np.int64), lengths=np.zeros(0, np.int64)).tolist() == []


def test_masking_rotates_and_adds() -> None:
    assert masked(np.array([0, 0xE3069283], np.uint32)).tolist() == [0xA282EAD8, 0xC78AB0E5]
