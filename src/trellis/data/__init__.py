"""Files to examples to batches."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.data.configs import DataConfig as DataConfig
    from trellis.data.columns import (
        Columns as Columns,
        ColumnsWriter as ColumnsWriter,
        cached_columns as cached_columns,
    )
    from trellis.data.features import (
        Column as Column,
        ExampleBlock as ExampleBlock,
        Feature as Feature,
        Missing as Missing,
        column_of as column_of,
        infer_features as infer_features,
    )
    from trellis.data.example_stream import BatchMap as BatchMap, ExampleStream as ExampleStream
    from trellis.data.order import Order as Order
    from trellis.data.ragged import Padding as Padding, Ragged as Ragged, offsets_of as offsets_of
    from trellis.data.records import RecordWriter as RecordWriter, read_records as read_records
    from trellis.data.foreign import (
        ForeignBatches as ForeignBatches,
        as_numpy as as_numpy,
        foreign_batches as foreign_batches,
    )
    from trellis.data.stream import (
        CountedStream as CountedStream,
        DividedStream as DividedStream,
        Examples as Examples,
        SizedStream as SizedStream,
        StackingStream as StackingStream,
        StatefulIterator as StatefulIterator,
        Stream as Stream,
        is_stream as is_stream,
        rows_of as rows_of,
    )
    from trellis.data.examples import decode_example as decode_example, encode_example as encode_example
    from trellis.data.files import (
        matching_paths as matching_paths,
        patterns_in as patterns_in,
        places_in as places_in,
        find_files as find_files,
        fingerprint as fingerprint,
        format_of as format_of,
        open_file as open_file,
    )
    from trellis.data.column_files import read_columns as read_columns, read_example_blocks as read_example_blocks
    from trellis.data.tfds import write_tfds_rows as write_tfds_rows
    from trellis.data.rows import (
        Row as Row,
        RowFormat as RowFormat,
        class_names_in as class_names_in,
        first_names as first_names,
        read_rows as read_rows,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
