"""Schemas of examples: which features there are, of what type and shape."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from trellis.errors import DataError

# The fields of a tensorflow.metadata.v0.Schema that are read; protobuf skips all others.
_SCHEMA = """
name: "schema.proto"
enum_type {
  name: "FeatureType"
  value { name: "TYPE_UNKNOWN" number: 0 } value { name: "BYTES" number: 1 } value { name: "INT" number: 2 }
  value { name: "FLOAT" number: 3 } value { name: "STRUCT" number: 4 }
}
message_type { name: "Schema" field { name: "feature" number: 1 type_name: "Feature" label: LABEL_REPEATED } }
message_type {
  name: "Feature"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "type" number: 6 type_name: "FeatureType" label: LABEL_OPTIONAL }
  field { name: "shape" number: 23 type_name: "FixedShape" label: LABEL_OPTIONAL }
}
message_type { name: "FixedShape" field { name: "dim" number: 2 type_name: "Dim" label: LABEL_REPEATED } }
message_type {
  name: "Dim" field { name: "size" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL default_value: "1" }
}
"""
# A pool of our own: TensorFlow's metadata package, where it is loaded, has the whole message in the common one.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
_Schema = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("Schema"))


@dataclass(frozen=True)
class ExampleFeature:
    """One feature of an example."""

    name: str
    type: str = "TYPE_UNKNOWN"
    """`INT`, `FLOAT` or `BYTES`."""
    shape: tuple[int, ...] | None = None
    """None if examples may have any number of values."""


@dataclass(frozen=True)
class ExampleSchema:
    """What every example of a data set holds."""

    feature: tuple[ExampleFeature, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features, in the order of the schema."""
        return tuple(feature.name for feature in self.feature)


def read_schema(path: str | Path) -> ExampleSchema:
    """Reads a schema file: a `tensorflow.metadata.v0.Schema` as text, or as bytes if the file is named `.pb`.

    Example:
        schema = read_schema(fn_args.schema_path)
        batches = fn_args.data_accessor.numpy_factory(fn_args.train_files, RecordBatchesOptions(batch_size=32), schema)
    """
    content = Path(path).read_bytes()
    if Path(path).suffix != ".pb":
        return parse_schema(content.decode(), place=str(path))
    try:
        return _as_schema(_Schema.FromString(content), place=str(path))
    except DecodeError as error:
        raise DataError(f"{path} holds no schema: {error}. Write the schema again.") from None


def parse_schema(text: str, *, place: str = "schema") -> ExampleSchema:
    """Reads a schema from its text.

    Args:
        place: Where the text is from, for messages.
    """
    try:
        message = text_format.Parse(text, _Schema(), allow_unknown_field=True)
    except text_format.ParseError as error:
        problem = str(error).partition(" : ")[2].rstrip(".")
        raise DataError(f"{place}:{error.GetLine()}: {problem}. Write the schema again.") from None
    return _as_schema(message, place=place)


def _as_schema(message: Any, *, place: str) -> ExampleSchema:
    return ExampleSchema(tuple(_as_feature(feature, place=place) for feature in message.feature))


def _as_feature(message: Any, *, place: str) -> ExampleFeature:
    if not message.name:
        raise DataError(f"{place}: a feature has no name. Write the schema again.")
    types = message.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number
    shape = tuple(dim.size for dim in message.shape.dim) if message.HasField("shape") else None
    return ExampleFeature(message.name, types[message.type].name, shape)
