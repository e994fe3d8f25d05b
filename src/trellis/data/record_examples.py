"""`tf.Example` records, decoded a block at a time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trellis.data.examples import BYTES, FLOAT, INT64, decode_example, encode_example
from trellis.data.feature_spans import ABSENT, SEVERAL_TEXTS, FeatureSpans, find_features
from trellis.data.features import Cells, ExampleBlock
from trellis.data.ragged import Ragged, offsets_of, row_at
from trellis.data.records import RecordBlock, read_record_blocks
from trellis.data.spans import joined_spans
from trellis.data.varints import LONGEST_VARINT, decode_varints
from trellis.errors import DataError

_CUT_SHORT = "is cut short. Write the file again."
_KIND_NAMES = {BYTES: "bytes", FLOAT: "float32", INT64: "int64"}


def read_record_examples(path: Path) -> Iterator["RecordExamples"]:
    """Yields the examples of a TFRecord file of `tf.Example`s in blocks."""
    for block in read_record_blocks(path):
        yield RecordExamples(block)


class RecordExamples(ExampleBlock):
    """The examples in a block of records."""

    def __init__(self, block: RecordBlock) -> None:
        super().__init__(block.path, numbers=block.numbers, unit="record")
        self._buffer = block.buffer[:]
        self._spans, is_regular = find_features(self._buffer, starts=block.starts, stops=block.starts + block.lengths)
        if not is_regular.all():
            # Rare forms (unpacked lists, messages in pieces) are brought into the usual one by a slower parser.
            records = [
                record if usual else self._rewritten(index, record)
                for index, (record, usual) in enumerate(zip(block, is_regular.tolist(), strict=True))
            ]
            self._buffer = b"".join(records)
            offsets = offsets_of(np.array([len(record) for record in records]))
            self._spans, _ = find_features(self._buffer, starts=offsets[:-1], stops=offsets[1:])

    @property
    def names(self) -> list[str]:
        return sorted(self._spans)

    def cells(self, name: str, *, dtype: str | None) -> Cells:
        spans = self._spans[name]
        kind = self._kind(name, spans)
        lengths = spans.stops - spans.starts
        data = joined_spans(self._buffer, starts=spans.starts, lengths=lengths)
        offsets = offsets_of(lengths)
        if kind == BYTES:
            return Cells(Ragged(data, offsets=offsets, dtype="bytes"), is_absent=spans.kinds == ABSENT)
        if kind == INT64:
            return Cells(self._ints(name, data, offsets))
        is_odd = lengths % 4 > 0
        if is_odd.any():
            raise self.error(f"its last float {_CUT_SHORT}", index=int(np.argmax(is_odd)), name=name)
        return Cells(Ragged(data.view("<f4"), offsets=offsets // 4))

    def _kind(self, name: str, spans: FeatureSpans) -> int:
        kinds = spans.kinds
        if SEVERAL_TEXTS in kinds:
            problem = "it holds several byte strings, but a column has one for each example. Leave it out of features."
            raise self.error(problem, index=int(np.argmax(kinds == SEVERAL_TEXTS)), name=name)
        kind = int(kinds[np.argmax(kinds != ABSENT)])
        is_other = (kinds != ABSENT) & (kinds != kind)
        if is_other.any():
            index = int(np.argmax(is_other))
            problem = f"it holds {_KIND_NAMES[int(kinds[index])]}, but {_KIND_NAMES[kind]} in records before."
            raise self.error(f"{problem} Write one kind, or leave it out of features.", index=index, name=name)
        # What no record has a value for could be anything; numbers are what may be absent.
        return kind or FLOAT

    def _ints(self, name: str, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Ragged:
        is_last = data < 0x80
        if is_last.all():
            return Ragged(data.astype(np.int64), offsets=offsets)
        is_cut = np.diff(offsets) > 0
        is_cut[is_cut] = ~is_last[offsets[1:][is_cut] - 1]
        if is_cut.any():
            raise self.error(f"its last integer {_CUT_SHORT}", index=int(np.argmax(is_cut)), name=name)
        try:
            values = decode_varints(data)
        except DataError as error:
            stops = np.flatnonzero(is_last)
            place = int(stops[np.argmax(np.diff(stops, prepend=-1) > LONGEST_VARINT)])
            index = row_at(offsets, place=place)
            raise self.error(f"{error}. Write the file again.", index=index, name=name) from error
        n_before = np.zeros(len(data) + 1, np.int64)
        np.cumsum(is_last, out=n_before[1:])
        return Ragged(values, offsets=n_before[offsets])

    def _rewritten(self, index: int, record: bytes) -> bytes:
        try:
            return encode_example(decode_example(record))
        except DataError as error:
            raise DataError(f"{self.path}, record {self.numbers[index]}: {error}") from error
