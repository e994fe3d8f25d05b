"""Small files of every format, for the tests to read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from trellis.data.examples import encode_example
from trellis.data.records import RecordWriter

ROWS: list[dict[str, Any]] = [
    {"label": 1, "score": 0.5, "text": "ä", "ids": [1, 2], "box": [[1, 2], [3, 4]]},
    {"label": 0, "score": -2.0, "text": "", "ids": [], "box": [[5, 6], [7, 8]]},
    {"label": 300, "score": 3.0, "text": "abc", "ids": [3], "box": [[0, 0], [0, 1]]},
]


def write_tfrecord(name: str, rows: Sequence[Mapping[str, Any]], compression: Any = "none") -> Path:
    with RecordWriter(name, compression=compression) as writer:
        for row in rows:
            writer.write(encode_example(row))
    return Path(name)


def write_jsonl(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path(name)


def write_parquet(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), name)
    return Path(name)


WRITERS = {"tfrecord": write_tfrecord, "jsonl": write_jsonl, "parquet": write_parquet}
