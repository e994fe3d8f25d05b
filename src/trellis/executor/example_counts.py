"""How many examples there are."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trellis.errors import DataError
from trellis.executor.artifacts import split_dir

_STATISTICS_FILES = ("FeatureStats.pb", "stats_tfrecord")


class ExampleCounts(Mapping[str, int]):
    """The number of examples by split, found when it is asked for: in statistics if there are some, else by counting.

    Example:
        n_epochs = fn_args.train_steps * batch_size / fn_args.num_examples["train"]
    """

    def __init__(self, patterns: Mapping[str, Sequence[str]], *, statistics: str | None = None) -> None:
        self._patterns = patterns
        self._statistics = statistics
        self._found: dict[str, int] = {}

    def __getitem__(self, split: str) -> int:
        if split not in self._found:
            patterns = self._patterns[split]
            stated = None if self._statistics is None else _stated(split_dir(self._statistics, split))
            self._found[split] = _counted(patterns) if stated is None else stated
        return self._found[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._patterns)

    def __len__(self) -> int:
        return len(self._patterns)

    def __repr__(self) -> str:
        # What was not asked for is not counted to be shown.
        return repr({split: self._found.get(split, ...) for split in self})


def _counted(patterns: Sequence[str]) -> int:
    # NumPy is loaded here, when somebody asks: a run starts without it.
    from trellis.data import read_records

    files = [path for pattern in patterns for path in sorted(glob.glob(pattern)) if Path(path).stat().st_size]
    return sum(1 for path in files for _ in read_records(path))


def _stated(folder: str) -> int | None:
    """Returns the number that the statistics of a split tell; None if there are none."""
    file = next((path for name in _STATISTICS_FILES if (path := Path(folder, name)).is_file()), None)
    if file is None:
        return None
    if file.name == "FeatureStats.pb":
        content = file.read_bytes()
    else:
        from trellis.data import read_records

        content = next(iter(read_records(file)), b"")
    try:
        # A list of data sets is field 1, the number of examples field 2 of each.
        data_set = next(payload for number, payload in _fields(content) if number == 1)
        return next((value for number, value in _fields(bytes(data_set)) if number == 2), 0)  # type: ignore[return-value]
    except (IndexError, StopIteration, TypeError):
        raise DataError(
            f"{file} holds no statistics of examples. Leave `statistics` out, or write them again."
        ) from None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the numbers of the fields of a message, each with its whole number or its bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        length, position = _varint(data, position) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], position)
        if position + length > len(data):
            raise IndexError(position)
        yield number, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if data[position - 1] < 0x80:
            return value, position
