"""Files to examples to batches."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.data.column_files import read_columns as read_columns
    from trellis.data.columns import Columns as Columns
    from trellis.data.columns import ColumnsWriter as ColumnsWriter
    from trellis.data.configs import DataConfig as DataConfig
    from trellis.data.example_stream import ExampleStream as ExampleStream
    from trellis.data.examples import decode_example as decode_example
    from trellis.data.examples import encode_example as encode_example
    from trellis.data.examples import encode_examples as encode_examples
    from trellis.data.feed import Feed as Feed
    from trellis.data.feed import build_feed as build_feed
    from trellis.data.files import find_files as find_files
    from trellis.data.files import fingerprint as fingerprint
    from trellis.data.files import format_of as format_of
    from trellis.data.files import matching_paths as matching_paths
    from trellis.data.files import patterns_in as patterns_in
    from trellis.data.ragged import Padding as Padding
    from trellis.data.ragged import Ragged as Ragged
    from trellis.data.ragged import offsets_of as offsets_of
    from trellis.data.records import RecordFile as RecordFile
    from trellis.data.records import RecordWriter as RecordWriter
    from trellis.data.records import read_records as read_records
    from trellis.data.replay import Replay as Replay
    from trellis.data.rows import read_rows as read_rows
    from trellis.data.stream import CountedStream as CountedStream
    from trellis.data.stream import SizedStream as SizedStream
    from trellis.data.stream import StackingStream as StackingStream
    from trellis.data.stream import Stream as Stream
    from trellis.data.stream import is_stream as is_stream

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "DataConfig": "configs",
        "Columns": "columns",
        "ColumnsWriter": "columns",
        "ExampleStream": "example_stream",
        "Feed": "feed",
        "Padding": "ragged",
        "Ragged": "ragged",
        "RecordFile": "records",
        "RecordWriter": "records",
        "Replay": "replay",
        "CountedStream": "stream",
        "SizedStream": "stream",
        "StackingStream": "stream",
        "Stream": "stream",
        "is_stream": "stream",
        "build_feed": "feed",
        "decode_example": "examples",
        "encode_example": "examples",
        "matching_paths": "files",
        "patterns_in": "files",
        "encode_examples": "examples",
        "find_files": "files",
        "fingerprint": "files",
        "format_of": "files",
        "offsets_of": "ragged",
        "read_columns": "column_files",
        "read_records": "records",
        "read_rows": "rows",
    },
)
