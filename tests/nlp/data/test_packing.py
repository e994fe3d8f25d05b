"""Packed rows hold the same sequences, apart."""

import numpy as np

from trellis.nlp.data.masking import Masking, example_keys, mask_tokens
from trellis.nlp.data.packing import pack, pack_masked
from trellis.nlp.data.sequences import Specials


def test_every_item_is_in_one_row_and_no_row_is_over_full() -> None:
    sizes = np.random.default_rng(0).integers(1, 65, 500)
    rows = pack(sizes, capacity=64)
    assert sorted(rows.values.tolist()) == list(range(500))
    fills = [int(sizes[np.asarray(rows[number])].sum()) for number in range(len(rows))]
    assert max(fills) <= 64
    # Of best fit from the largest on it is known that it needs at most 11/9 of the fewest rows, and a bit.
    assert len(rows) <= np.ceil(sizes.sum() / 64) * 11 / 9 + 1


def test_what_fits_exactly_is_packed_exactly() -> None:
    rows = pack(np.array([3, 5, 8, 2, 6]), capacity=8)
    assert [sorted(np.asarray(rows[number]).tolist()) for number in range(len(rows))] == [[0, 1], [2], [3, 4]]


def test_packed_rows_hold_the_tokens_positions_and_predictions_of_their_sequences() -> None:
    generator = np.random.default_rng(1)
    lengths = np.array([5, 9, 4, 12, 3])
    ids = generator.integers(10, 50, (5, 16)).astype(np.int32)
    ids[np.arange(16) >= lengths[:, None]] = 0
    masking = Masking(rate=0.3, max_predictions=6, vocab_size=50, mask_id=4, specials=Specials(2, 3))
    masked = mask_tokens(ids, lengths=lengths, keys=example_keys(np.arange(5), seed=0, epochs=0), masking=masking)
    counts = np.array([2, 1, 2])
    packed = pack_masked(masked, lengths=lengths, counts=counts, seq_length=16)
    number = 0
    for row, count in enumerate(counts):
        start, n_predictions = 0, 0
        for segment in range(1, count + 1):
            length, there = int(lengths[number]), masked.weights[number] > 0
            here = slice(start, start + length)
            assert packed["input_word_ids"][row, here].tolist() == masked.ids[number, :length].tolist()
            assert (packed["segment_ids"][row, here] == segment).all()
            assert packed["positions"][row, here].tolist() == list(range(length))
            predictions = slice(n_predictions, n_predictions + int(there.sum()))
            expected = masked.positions[number, there] + start
            assert packed["masked_lm_positions"][row, predictions].tolist() == expected.tolist()
            assert packed["masked_lm_ids"][row, predictions].tolist() == masked.originals[number, there].tolist()
            start, n_predictions, number = start + length, predictions.stop, number + 1
        assert (packed["segment_ids"][row, start:] == 0).all()
        assert (packed["input_word_ids"][row, start:] == 0).all()
        assert packed["masked_lm_weights"][row].sum() == n_predictions
    assert (packed["input_mask"] == (packed["segment_ids"] > 0)).all()
