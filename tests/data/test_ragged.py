"""Rows of differing length, padded without Python per row."""

import numpy as np
import pytest

from trellis.data.ragged import Padding, Ragged
from trellis.errors import DataError


def padded_by_hand(rows: list[list[int]], length: int, value: int) -> list[list[int]]:
    return [(row + [value] * length)[:length] for row in rows]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("length", [None, 1, 4, 30])
def test_rows_are_padded_as_by_hand(seed: int, length: int | None) -> None:
    generator = np.random.default_rng(seed)
    rows = [generator.integers(0, 9, size).tolist() for size in generator.integers(0, 8, 20)]
    ragged = Ragged.from_rows(rows, dtype="int32")
    indices = generator.integers(0, 20, 50)
    width = max(map(len, rows)) if length is None else length
    found = ragged.take(indices, padding=Padding(length=length, value=-1, truncate=True))
    assert found.dtype == np.int32
    assert found.tolist() == padded_by_hand([rows[index] for index in indices], width, -1)


def test_indices_may_have_any_shape() -> None:
    ragged = Ragged.from_rows([[1, 2], [3], []])
    assert ragged.take(np.array([[0, 1], [2, 0]])).tolist() == [[[1, 2], [3, 0]], [[0, 0], [1, 2]]]
    assert ragged.take(np.zeros((0,), np.int64)).shape == (0, 2)


def test_the_default_length_is_that_of_the_column_not_of_the_batch() -> None:
    ragged = Ragged.from_rows([[1], [1, 2, 3]])
    assert ragged.take(np.array([0])).shape == (1, 3)


def test_rows_without_values_are_all_padding() -> None:
    ragged = Ragged.from_rows([[], []], dtype="float32")
    assert ragged.take(np.array([0, 1])).shape == (2, 0)
    assert ragged.take(np.array([0, 1]), padding=Padding(length=2, value=7)).tolist() == [[7, 7], [7, 7]]


def test_a_row_that_is_too_long_is_named() -> None:
    ragged = Ragged.from_rows([[1], [1, 2, 3]])
    with pytest.raises(DataError, match=r"Row 1 has 3 values, more than the length 2 .* or Padding\(truncate=True\)"):
        ragged.take(np.array([0, 1]), padding=Padding(length=2))


def test_single_rows_are_arrays_or_text() -> None:
    assert Ragged.from_rows([[1, 2], [3]])[-1].tolist() == [3]
    texts = Ragged.from_rows(["ä", "", "abc\0"])
    assert [texts[index] for index in range(3)] == ["ä", "", "abc\0"]
    assert Ragged.from_rows([b"\xff\0", b""])[0] == b"\xff\0"
    with pytest.raises(IndexError):
        texts[3]


def test_text_is_taken_as_strings_and_bytes_as_numbers() -> None:
    texts = Ragged.from_rows(["ä", "", "abc"])
    assert texts.take(np.array([[2, 0], [1, 1]])).tolist() == [["abc", "ä"], ["", ""]]
    assert texts.take(np.array([1])).tolist() == [""]
    data = Ragged.from_rows([b"\1\0", b"\2"]).take(np.array([1, 0]))
    assert data.dtype == np.uint8
    assert data.tolist() == [[2, 0], [1, 0]]


def test_empty_rows_do_not_turn_integers_into_floats() -> None:
    assert Ragged.from_rows([[], [1]]).dtype == "int64"
    assert Ragged.from_rows([np.zeros(0, np.int32)]).dtype == "int32"


def test_lengths_are_those_of_the_rows() -> None:
    ragged = Ragged.from_rows([[1, 2], [], [3]])
    assert len(ragged) == 3
    assert ragged.lengths.tolist() == [2, 0, 1]
    assert ragged.longest == 2


def test_rows_are_gathered_up_to_a_length() -> None:
    ragged = Ragged.from_rows([[1, 2, 3], [], [4], [5, 6]])
    some = ragged.gather(np.array([3, 0, 1, 0]), longest=2)
    assert some.values.tolist() == [5, 6, 1, 2, 1, 2]
    assert some.offsets.tolist() == [0, 2, 4, 4, 6]
    assert ragged.gather(np.array([0])).values.tolist() == [1, 2, 3]
    assert Ragged.from_rows(["no", "yes"]).gather(np.array([1]))[0] == "yes"
