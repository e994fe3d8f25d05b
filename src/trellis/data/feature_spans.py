"""Where the features of many `tf.Example` records lie: a parser whose every step runs for all records at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trellis.data.examples import BYTES, INT64, decode_name
from trellis.data.spans import equal_spans

ABSENT, SEVERAL_TEXTS = 0, 4
_LONGEST_LENGTH = 4


@dataclass(frozen=True)
class FeatureSpans:
    """The bytes of one feature in each record: a text, packed floats or packed varints."""

    kinds: NDArray[np.uint8]
    """`BYTES`, `FLOAT`, `INT64`, `SEVERAL_TEXTS` or `ABSENT`."""
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @classmethod
    def absent(cls, n_records: int) -> Self:
        """Makes the spans of a feature that no record has."""
        return cls(np.zeros(n_records, np.uint8), np.zeros(n_records, np.int64), np.zeros(n_records, np.int64))


@dataclass(frozen=True)
class _Blocks:
    """Length-delimited fields, one in each record."""

    fields: NDArray[np.uint8]
    """The number of each field; 0 where there is none with a length."""
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


def find_features(
    buffer: bytes, *, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[dict[str, FeatureSpans], NDArray[np.bool_]]:
    """Returns the spans of all features by name, and which records have the usual form; of the others nothing is known.

    The usual form is what writers produce: each message in one piece, fields in order, numbers packed.
    """
    data = np.frombuffer(buffer, np.uint8)
    found: dict[str, FeatureSpans] = {}
    examples = _blocks_at(data, starts)
    is_regular = (starts == stops) | (examples.fields == 1) & (examples.stops == stops)
    positions = np.where(starts == stops, stops, examples.starts)
    while len(records := np.flatnonzero(is_regular & (positions < stops))):
        entries = _blocks_at(data, positions[records])
        keys = _blocks_at(data, entries.starts)
        spans, is_usual = _spans_of(data, _blocks_at(data, keys.stops), entries.stops)
        is_usual &= (entries.fields == 1) & (keys.fields == 1) & (entries.stops <= stops[records])
        is_regular[records] = is_usual
        positions[records] = entries.stops
        usual = np.flatnonzero(is_usual)
        for name, same in _by_name(buffer, keys.starts[usual], keys.stops[usual]):
            selected = usual[same]
            target = found.setdefault(name, FeatureSpans.absent(len(starts)))
            target.kinds[records[selected]] = spans.kinds[selected]
            target.starts[records[selected]] = spans.starts[selected]
            target.stops[records[selected]] = spans.stops[selected]
    return found, is_regular


def _spans_of(
    data: NDArray[np.uint8], features: _Blocks, stops: NDArray[np.int64]
) -> tuple[FeatureSpans, NDArray[np.bool_]]:
    """Returns the spans of features that should end at `stops`, and which have the usual form."""
    lists = _blocks_at(data, features.starts)
    values = _blocks_at(data, lists.starts)
    has_list = features.starts < features.stops
    has_values = has_list & (lists.starts < lists.stops)
    is_bytes = lists.fields == BYTES
    is_several = has_values & is_bytes & (values.stops < stops)
    is_usual = (features.fields == 2) & (features.stops == stops)
    is_usual &= ~has_list | (lists.fields >= BYTES) & (lists.fields <= INT64) & (lists.stops == stops)
    is_usual &= ~has_values | (values.fields == 1) & (is_several | (values.stops == stops))
    # A list of no numbers still has a kind; a list of no texts is no text.
    kinds = np.where(has_values | has_list & ~is_bytes, lists.fields, ABSENT).astype(np.uint8)
    kinds[is_several] = SEVERAL_TEXTS
    return FeatureSpans(kinds, np.where(has_values, values.starts, stops), stops), is_usual


def _blocks_at(data: NDArray[np.uint8], positions: NDArray[np.int64]) -> _Blocks:
    # A damaged record may point anywhere; what is read beyond the end is never used.
    tags = data.take(positions, mode="clip")
    starts = positions + 2
    lengths = data.take(positions + 1, mode="clip").astype(np.int64)
    longer = np.flatnonzero(lengths >= 0x80)
    lengths[longer] &= 0x7F
    for place in range(1, _LONGEST_LENGTH):
        if len(longer) == 0:
            break
        digits = data.take(starts[longer], mode="clip").astype(np.int64)
        starts[longer] += 1
        lengths[longer] |= (digits & 0x7F) << 7 * place
        longer = longer[digits >= 0x80]
    fields = np.where(tags & 7 == 2, tags >> 3, 0).astype(np.uint8)
    fields[longer] = 0
    return _Blocks(fields, starts, starts + lengths)


def _by_name(
    buffer: bytes, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yields each name that occurs, and which of the spans hold it."""
    lengths = stops - starts
    left = np.arange(len(starts))
    while len(left):
        key = buffer[starts[left[0]] : stops[left[0]]]
        is_same = lengths[left] == len(key)
        rows = equal_spans(buffer, starts=starts[left[is_same]], length=len(key))
        is_same[is_same] = (rows == np.frombuffer(key, np.uint8)).all(axis=1)
        yield decode_name(key), left[is_same]
        left = left[~is_same]
