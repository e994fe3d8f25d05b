"""What the data tools write: TFRecord files, or columns that are read without decoding."""

import contextlib
import functools
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from trellis.data import ColumnsWriter, RecordWriter, encode_example
from trellis.disk import local_path, write_whole
from trellis.errors import ArgumentError
from trellis.nlp.data.sequences import Features
from trellis.nlp.data.token_cache import OrderedMap
from trellis.runtime import Tally

OutputFormat = Literal["tfrecord", "columns"]
Block = TypeVar("Block")


@contextlib.contextmanager
def work_folder(output_path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a folder beside an output, for what is needed only while the output is made."""
    parent = local_path(output_path, name="The path of an output").parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".trellis-") as folder:
        yield Path(folder)


def write_features(
    paths: Sequence[str],
    blocks: Iterable[Block],
    *,
    make: Callable[[Block], Features],
    output_format: OutputFormat = "tfrecord",
    gzip: bool = False,
    ordered_map: OrderedMap = map,
    n_rows: int | None = None,
) -> int:
    """Makes features of blocks and writes them, whole or not at all; returns the number of rows.

    Args:
        paths: TFRecord files, which the rows go to in turn, or one directory for columns.
        make: As an `OrderedMap` takes it.
        n_rows: How many rows there will be, to show progress; None if that is not known.
    """
    if not paths or (output_format == "columns" and len(paths) > 1):
        advice = "Give one directory." if paths else "Give a file."
        raise ArgumentError(f"There are {len(paths)} places for the output as {output_format}. {advice}")
    for path in paths:
        local_path(path, name="The path of an output").parent.mkdir(parents=True, exist_ok=True)
    with Tally(f"Writing {paths[0]}", unit="examples", total=n_rows) as tally:
        if output_format == "columns":
            sizes = _write_columns(paths[0], ordered_map(make, blocks))
        else:
            records = ordered_map(functools.partial(_make_records, make), blocks)
            sizes = _write_records(paths, records, "gzip" if gzip else "none")
        n_written = 0
        for size in sizes:
            tally.add(size)
            n_written += size
    return n_written


def _write_columns(path: str, blocks: Iterable[Features]) -> Iterator[int]:
    """Writes blocks one by one, and yields how many rows each had."""
    with ColumnsWriter(path) as writer:
        for features in blocks:
            writer.append(features)
            yield len(next(iter(features.values())))


def _write_records(
    paths: Sequence[str], blocks: Iterable[list[bytes]], compression: Literal["none", "gzip"]
) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(RecordWriter(path, compression=compression)) for path in paths]
        turns = itertools.cycle(writers)
        for records in blocks:
            for record in records:
                next(turns).write(record)
            yield len(records)


def _make_records(make: Callable[[Block], Features], block: Block) -> list[bytes]:
    features = make(block)
    rows = zip(*features.values(), strict=True)
    return [encode_example(dict(zip(features, row, strict=True))) for row in rows]


def write_meta_data(path: str | os.PathLike[str], values: Mapping[str, object]) -> None:
    """Writes what a model needs to know of data, as JSON."""
    write_whole(Path(path), (json.dumps(values, indent=4) + "\n").encode())
