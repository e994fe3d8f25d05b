"""How many examples there are."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trellis.errors import DataError
from trellis.executor.artifacts import split_dir
from trellis.executor.message_fields import message_fields

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
        data_sets = [payload for number, payload in message_fields(content) if number == 1]
        counts = [
            value for data_set in data_sets[:1] for number, value in message_fields(bytes(data_set)) if number == 2
        ]
        return sum(map(int, counts))
    except (DataError, TypeError) as error:
        way_out = "Leave `statistics` out, or write them again"
        raise DataError(f"{file} holds no statistics of examples ({error}). {way_out}.") from None
