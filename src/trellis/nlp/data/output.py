"""What the data tools write: TFRecord files, or columns that are read without decoding."""

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from trellis.data import ColumnsWriter, RecordWriter, encode_examples
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data.workers import ordered_map

OutputFormat = Literal["tfrecord", "columns"]
Features = Mapping[str, NDArray[np.generic]]
Block = TypeVar("Block")


@contextlib.contextmanager
def open_records(paths: Sequence[str], *, gzip: bool = False) -> Iterator["RecordFiles"]:
    """Opens TFRecord files, which appear whole when all has gone well, or not at all."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        writers = [stack.enter_context(RecordWriter(path, compression="gzip" if gzip else "none")) for path in paths]
        yield RecordFiles(writers)


class RecordFiles:
    """Several files that records go to in turn."""

    def __init__(self, writers: Sequence[RecordWriter]) -> None:
        self._writers = itertools.cycle(writers)
        self.n_records = 0

    def write(self, records: Iterable[bytes]) -> None:
        """Adds records."""
        for record in records:
            next(self._writers).write(record)
            self.n_records += 1


def write_features(
    path: str | os.PathLike[str],
    blocks: Iterable[Block],
    *,
    make: Callable[[Block], Features],
    output_format: OutputFormat = "tfrecord",
    n_workers: int = 1,
) -> int:
    """Makes features of blocks and writes them to a TFRecord file or a directory of columns; returns how many rows.

    Args:
        make: Anything that can be sent to another process.
    """
    if output_format not in ("tfrecord", "columns"):
        raise ArgumentError(f"output_format is {output_format!r}; it can be 'tfrecord' or 'columns'.")
    n_rows = 0
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(tqdm(desc=f"Writing {path}", unit=" examples", disable=None))
        if output_format == "columns":
            writer = stack.enter_context(ColumnsWriter(path))
            for features in ordered_map(make, blocks, n_workers=n_workers):
                writer.append(dict(features))
                n_rows += len(next(iter(features.values())))
                bar.update(n_rows - bar.n)
        else:
            files = stack.enter_context(open_records([os.fspath(path)]))
            for records in ordered_map(functools.partial(_made_records, make), blocks, n_workers=n_workers):
                files.write(records)
                bar.update(len(records))
            n_rows = files.n_records
        if not n_rows:
            raise DataError(f"There are no examples to write to {path}. Give files that have some.")
    return n_rows


def _made_records(make: Callable[[Block], Features], block: Block) -> list[bytes]:
    return encode_examples(make(block))


def write_meta_data(path: str | os.PathLike[str], values: Mapping[str, object]) -> None:
    """Writes what a model needs to know of data, as JSON."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(values, indent=4) + "\n")
