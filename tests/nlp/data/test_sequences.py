"""Pairs are cut and put between special tokens."""

import numpy as np
import pytest

from trellis.data import Ragged
from trellis.nlp.data.sequences import Pairs, Specials, assemble, assemble_texts, fit

SPECIALS = Specials(cls=101, sep=102)


def popped(a: int, b: int, budget: int) -> tuple[int, int]:
    """The published rule, token by token."""
    while a + b > budget:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def pairs(*rows: tuple[int, int, int, int]) -> Pairs:
    return Pairs(*np.array(rows, np.int64).T)


@pytest.mark.parametrize("budget", [0, 1, 4, 5, 9, 30])
def test_the_longer_of_two_spans_loses_tokens_and_of_equal_ones_the_second(budget: int) -> None:
    a, b = (grid.reshape(-1) for grid in np.meshgrid(np.arange(12), np.arange(12)))
    kept_a, kept_b = fit(a, b, budget)
    expected = [popped(int(x), int(y), budget) for x, y in zip(a, b, strict=True)]
    assert list(zip(kept_a.tolist(), kept_b.tolist(), strict=True)) == expected


def test_spans_lie_between_special_tokens_and_padding_behind() -> None:
    tokens = np.arange(10, dtype=np.int32)
    made = assemble(tokens, pairs=pairs((0, 2, 5, 3), (4, 3, 0, 0)), seq_length=9, specials=SPECIALS)
    assert made.ids.tolist() == [[101, 0, 1, 102, 5, 6, 7, 102, 0], [101, 4, 5, 6, 102, 0, 0, 0, 0]]
    assert made.mask.tolist() == [[1] * 8 + [0], [1] * 5 + [0] * 4]
    assert made.types.tolist() == [[0] * 4 + [1] * 4 + [0], [0] * 9]
    assert made.lengths.tolist() == [8, 5]


def test_cut_pairs_fill_a_sequence_exactly() -> None:
    cut = pairs((0, 100, 0, 3), (0, 100, 0, 0), (0, 2, 0, 2)).cut(10)
    assert cut.lengths.tolist() == [10, 10, 7]
    assert cut.b_lengths.tolist() == [3, 0, 2]


@pytest.mark.parametrize("seq_length", [5, 8, 16])
def test_texts_are_cut_as_if_all_of_them_were_read(seq_length: int) -> None:
    generator = np.random.default_rng(seq_length)
    a, b = (Ragged.from_rows([range(n) for n in generator.integers(0, 40, 60)], dtype="int32") for _ in range(2))
    rows = generator.permutation(60)
    texts = assemble_texts(a, b, rows=rows, seq_length=seq_length, specials=SPECIALS)
    whole = Pairs(a.offsets[rows], a.lengths[rows], b.offsets[rows] + len(a.values), b.lengths[rows]).cut(seq_length)
    tokens = np.concatenate([a.values, b.values])
    expected = assemble(tokens, pairs=whole, seq_length=seq_length, specials=SPECIALS)
    for part, expected_part in zip(texts, expected, strict=True):
        np.testing.assert_array_equal(part, expected_part)
