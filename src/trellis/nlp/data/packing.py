"""Packing: several short sequences in one row, kept apart by segment ids."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Ragged, offsets_of
from trellis.nlp.data.masking import Masked


class Places(NamedTuple):
    """Where sequences go: the row, the first position and the number among those of its row, from 1."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    numbers: NDArray[np.int64]


def pack(sizes: NDArray[np.integer], *, capacity: int) -> Ragged:
    """Assigns items to rows that hold `capacity` each: every row lists its items, and every item is in one row.

    Each item, from the largest on, goes to the fullest row that has room for it. The rows, and the items in each, are
    in the order of their first items, so that the result does not depend on anything but the sizes.

    Example:
        >>> rows = pack(np.array([3, 5, 2, 1]), capacity=6)
        >>> [row.tolist() for row in (rows[0], rows[1])]
        [[0, 2, 3], [1]]
    """
    row_of = np.empty(len(sizes), np.int64)
    n_rows = 0
    open_rows: defaultdict[int, list[int]] = defaultdict(list)
    # Bit n is set if a row has room for n more: the lowest bit from the size on is the fullest row with room.
    rooms = 0
    for item in np.argsort(-np.asarray(sizes), kind="stable").tolist():
        size = int(sizes[item])
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, n_rows
            n_rows += 1
        row_of[item] = row
        open_rows[room - size].append(row)
        rooms |= 1 << (room - size)
    # The items in the order of their rows, each row in ascending order; then the rows by their first items.
    items = np.argsort(row_of, kind="stable")
    offsets = offsets_of(np.bincount(row_of, minlength=n_rows))
    return Ragged(items, offsets=offsets).gather(np.argsort(items[offsets[:-1]]))


def place(lengths: NDArray[np.int64], *, counts: NDArray[np.int64]) -> Places:
    """Where sequences lie that fill rows one after the other, `counts` of them in each, and at least one."""
    rows = np.repeat(np.arange(len(counts)), counts)
    first = offsets_of(counts)[:-1]
    begins = offsets_of(lengths)[:-1]
    return Places(rows, begins - begins[first][rows], np.arange(len(lengths)) - first[rows] + 1)


def pack_masked(
    masked: Masked, *, lengths: NDArray[np.int64], counts: NDArray[np.int64], seq_length: int, pad_id: int = 0
) -> dict[str, NDArray[np.generic]]:
    """Puts masked sequences into rows, `counts` of them in each: positions restart, and predictions follow each other.

    Args:
        pad_id: What fills up rows.

    Returns:
        `input_word_ids`, `input_mask`, `segment_ids` (1, 2, … and 0 for padding), `positions`, `masked_lm_positions`,
        `masked_lm_ids` and `masked_lm_weights`.
    """
    places = place(lengths, counts=counts)
    shape = (len(counts), seq_length)
    ids = np.full(shape, pad_id, np.int32)
    segments, positions = (np.zeros(shape, np.int32) for _ in range(2))
    sequence, position = np.nonzero(np.arange(masked.ids.shape[1]) < lengths[:, None])
    target = (places.rows[sequence], places.starts[sequence] + position)
    ids[target] = masked.ids[sequence, position]
    segments[target] = places.numbers[sequence]
    positions[target] = position

    n_predictions = masked.weights.astype(bool).sum(axis=1)
    first_prediction = place(n_predictions, counts=counts).starts
    sequence, number = np.nonzero(masked.weights)
    target = (places.rows[sequence], first_prediction[sequence] + number)
    prediction_shape = (len(counts), masked.weights.shape[1])
    masked_positions, originals = (np.zeros(prediction_shape, np.int32) for _ in range(2))
    weights = np.zeros(prediction_shape, np.float32)
    masked_positions[target] = masked.positions[sequence, number] + places.starts[sequence]
    originals[target] = masked.originals[sequence, number]
    weights[target] = 1
    return {
        "input_word_ids": ids,
        "input_mask": (segments > 0).astype(np.int32),
        "input_type_ids": np.zeros(shape, np.int32),
        "segment_ids": segments,
        "positions": positions,
        "masked_lm_positions": masked_positions,
        "masked_lm_ids": originals,
        "masked_lm_weights": weights,
    }
