"""Messages that TensorFlow and TFX write, as far as the executor reads them: protobuf skips all other fields."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_PACKAGE = "trellis.executor"
_DESCRIPTION = """
name: "trellis/executor/messages.proto"
package: "trellis.executor"
enum_type {
  name: "FeatureType"
  value { name: "TYPE_UNKNOWN" number: 0 }
  value { name: "BYTES" number: 1 }
  value { name: "INT" number: 2 }
  value { name: "FLOAT" number: 3 }
  value { name: "STRUCT" number: 4 }
}
message_type {
  name: "Dim"
  field { name: "size" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL default_value: "1" }
}
message_type {
  name: "FixedShape"
  field { name: "dim" number: 2 type: TYPE_MESSAGE type_name: ".trellis.executor.Dim" label: LABEL_REPEATED }
}
message_type {
  name: "Feature"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "type" number: 6 type: TYPE_ENUM type_name: ".trellis.executor.FeatureType" label: LABEL_OPTIONAL }
  field { name: "shape" number: 23 type: TYPE_MESSAGE type_name: ".trellis.executor.FixedShape" label: LABEL_OPTIONAL }
}
message_type {
  name: "Schema"
  field { name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".trellis.executor.Feature" label: LABEL_REPEATED }
}
message_type {
  name: "DatasetStatistics"
  field { name: "num_examples" number: 2 type: TYPE_UINT64 label: LABEL_OPTIONAL }
}
message_type {
  name: "StatisticsList"
  field {
    name: "datasets" number: 1 type: TYPE_MESSAGE type_name: ".trellis.executor.DatasetStatistics" label: LABEL_REPEATED
  }
}
message_type {
  name: "SavedModel"
  field { name: "meta_graphs" number: 2 type: TYPE_BYTES label: LABEL_REPEATED }
}
"""
# A pool of our own: in the common one the packages of TensorFlow have the same messages in full.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_DESCRIPTION, descriptor_pb2.FileDescriptorProto()))


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Schema = _message_class("Schema")
"""A `tensorflow.metadata.v0.Schema`."""
StatisticsList = _message_class("StatisticsList")
"""A `tensorflow.metadata.v0.DatasetFeatureStatisticsList`."""
SavedModel = _message_class("SavedModel")
"""A `tensorflow.SavedModel`, whose graphs stay bytes."""
