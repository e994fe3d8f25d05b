"""Examples in batches: the published options, and values that are those of the files."""

import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest

from tests.executor.pipeline import SCHEMA, write_examples
from trellis.data import RecordWriter, decode_example, encode_example
from trellis.errors import ArgumentError, DataError, MissingPackageError
from trellis.executor import (
    DataAccessor,
    RecordBatchesOptions,
    TensorFlowDatasetOptions,
    parse_schema,
    read_schema,
)

PATTERN = "data/Split-train/*"


@pytest.fixture
def accessor() -> DataAccessor:
    """An accessor, and five examples to read."""
    write_examples(Path("data"))
    return DataAccessor()


def sizes(batches: Any) -> list[list[float]]:
    """The feature `size` of each batch."""
    return [batch["size"].ravel().tolist() for batch in batches]


def write(*examples: dict[str, Any], name: str = "examples") -> str:
    """Writes examples to a file; returns its name."""
    with RecordWriter(name) as writer:
        for example in examples:
            writer.write(encode_example(example))
    return name


def test_a_feature_of_fixed_shape_is_a_column_for_each_value(accessor: DataAccessor) -> None:
    options = RecordBatchesOptions(batch_size=2, shuffle=False, num_epochs=1)
    batches = list(accessor.numpy_factory([PATTERN], options, parse_schema(SCHEMA)))
    assert [(batch["size"].shape, batch["size"].dtype, batch["kind"].dtype) for batch in batches] == [
        ((2, 1), np.float32, np.int64),
        ((2, 1), np.float32, np.int64),
        ((1, 1), np.float32, np.int64),
    ]
    np.testing.assert_array_equal(batches[1]["kind"], [[2], [0]])


def test_the_last_short_batch_can_be_left_out(accessor: DataAccessor) -> None:
    options = RecordBatchesOptions(batch_size=2, shuffle=False, num_epochs=1, drop_final_batch=True)
    assert sizes(accessor.numpy_factory(PATTERN, options)) == [[0, 0.5], [1, 1.5]]


def test_without_a_number_of_epochs_batches_go_on_and_none_is_short(accessor: DataAccessor) -> None:
    options = RecordBatchesOptions(batch_size=2, shuffle=False)
    assert sizes(islice(accessor.numpy_factory(PATTERN, options), 3)) == [[0, 0.5], [1, 1.5], [2, 0]]


def test_each_epoch_has_every_example_once_in_an_order_of_its_own(accessor: DataAccessor) -> None:
    for buffer_size in (10000, 2):
        options = RecordBatchesOptions(batch_size=5, num_epochs=4, shuffle_buffer_size=buffer_size)
        epochs = sizes(accessor.numpy_factory(PATTERN, options))
        assert [sorted(epoch) for epoch in epochs] == [[0, 0.5, 1, 1.5, 2]] * 4
        assert len({tuple(epoch) for epoch in epochs}) > 1


def test_the_order_is_a_function_of_the_seed(accessor: DataAccessor) -> None:
    orders = [
        sizes(accessor.numpy_factory(PATTERN, RecordBatchesOptions(batch_size=5, num_epochs=3, shuffle_seed=seed)))
        for seed in (None, None, 7)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_a_label_becomes_the_second_of_a_pair(accessor: DataAccessor) -> None:
    options = TensorFlowDatasetOptions(batch_size=5, shuffle=False, label_key="kind")
    features, labels = next(accessor.numpy_factory(PATTERN, options, parse_schema(SCHEMA)))
    assert list(features) == ["size"]
    assert labels.ravel().tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(
        ArgumentError, match=r"there is no feature 'kin'. Did you mean 'kind'\? The features are kind, size"
    ):
        next(accessor.numpy_factory(PATTERN, TensorFlowDatasetOptions(batch_size=5, label_key="kin")))


def test_options_of_another_library_are_taken(accessor: DataAccessor) -> None:
    theirs = SimpleNamespace(
        batch_size=5, drop_final_batch=False, num_epochs=1, shuffle=False, shuffle_buffer_size=1, shuffle_seed=None
    )
    assert sizes(accessor.numpy_factory(PATTERN, theirs)) == [[0, 0.5, 1, 1.5, 2]]


def test_features_of_any_length_have_an_array_for_each_example() -> None:
    write({"tags": [b"a", b"b"], "n": [1]}, {"tags": [b"c"], "n": [2, 3]}, {"n": []})
    schema = parse_schema('feature { name: "tags" type: BYTES } feature { name: "n" type: INT value_count { min: 0 } }')
    options = RecordBatchesOptions(batch_size=3, shuffle=False)
    batch = next(DataAccessor().numpy_factory("examples", options, schema))
    assert [row.tolist() for row in batch["tags"]] == [[b"a", b"b"], [b"c"], []]
    assert [row.tolist() for row in batch["n"]] == [[1], [2, 3], []]
    assert batch["n"][2].dtype == np.int64
    without_schema = next(DataAccessor().numpy_factory("examples", options))
    assert [row.tolist() for row in without_schema["tags"]] == [[b"a", b"b"], [b"c"], []]


def test_arrow_has_lists_of_values() -> None:
    write({"tags": [b"a", b"b"], "x": [0.5]}, {"tags": [], "x": [1.5]})
    schema = parse_schema(
        'feature { name: "x" type: FLOAT shape { dim { size: 1 } } } feature { name: "tags" type: BYTES }'
    )
    options = RecordBatchesOptions(batch_size=2, shuffle=False, num_epochs=1)
    (batch,) = DataAccessor().record_batch_factory("examples", options, schema)
    assert isinstance(batch, pyarrow.RecordBatch)
    assert batch.to_pydict() == {"x": [[0.5], [1.5]], "tags": [[b"a", b"b"], []]}
    assert [str(each.type) for each in batch.schema] == ["list<item: float>", "list<item: binary>"]


def test_without_tensorflow_the_package_to_install_is_named(
    accessor: DataAccessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RecordBatchesOptions(batch_size=2)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'trellis-jax\[tensorflow\]'"):
        accessor.tf_dataset_factory(PATTERN, options)


class _StandInDataset:
    """Keeps what it is given: TensorFlow itself is no dependency of the tests."""

    def __init__(self, generator: Any, *, output_signature: Any) -> None:
        assert output_signature == ("dense", [None], "string")
        self.items = lambda: list(generator())

    def map(self, parse: Any, *, num_parallel_calls: int) -> "_StandInDataset":
        assert num_parallel_calls == -1
        serialized = self.items
        self.items = lambda: [parse(batch) for batch in serialized()]
        return self

    def prefetch(self, n: int) -> "_StandInDataset":
        assert n == -1
        return self


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_example(batch: list[bytes], features: dict[str, Any]) -> dict[str, Any]:
        examples = [decode_example(record) for record in batch]
        return {name: (kind, [example.get(name) for example in examples]) for name, kind in features.items()}

    stand_in = SimpleNamespace(
        TensorSpec=lambda shape, dtype: ("dense", shape, dtype),
        dtypes=SimpleNamespace(as_dtype=str),
        string="string",
        io=SimpleNamespace(
            FixedLenFeature=lambda shape, dtype: ("dense", shape, dtype),
            VarLenFeature=lambda dtype: ("sparse", dtype),
            parse_example=parse_example,
        ),
        data=SimpleNamespace(Dataset=SimpleNamespace(from_generator=_StandInDataset)),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", stand_in)


@pytest.mark.usefixtures("tensorflow")
def test_tensorflow_parses_the_same_batches(accessor: DataAccessor) -> None:
    options = TensorFlowDatasetOptions(batch_size=2, shuffle=False, num_epochs=1, label_key="kind")
    data_set = accessor.tf_dataset_factory(PATTERN, options, parse_schema(SCHEMA))
    features, (kind, labels) = data_set.items()[0]
    assert features["size"][0] == ("dense", [1], "float32")
    assert (kind, np.ravel(labels).tolist()) == (("dense", [1], "int64"), [0, 1])
    assert [len(labels) for _, (_, labels) in data_set.items()] == [2, 2, 1]


@pytest.mark.usefixtures("tensorflow")
def test_a_feature_without_a_shape_is_sparse_for_tensorflow() -> None:
    write({"x": [0.5], "tags": []}, {"x": [1.5], "tags": [b"a", b"b"]})
    options = TensorFlowDatasetOptions(batch_size=2, shuffle=False, num_epochs=1)
    schema = parse_schema('feature { name: "x" type: FLOAT } feature { name: "tags" }')
    (batch,) = DataAccessor().tf_dataset_factory("examples", options, schema).items()
    assert {name: kind for name, (kind, _) in batch.items()} == {
        "x": ("sparse", "float32"),
        "tags": ("sparse", "string"),
    }
    (batch,) = DataAccessor().tf_dataset_factory("examples", options).items()
    assert {name: kind for name, (kind, _) in batch.items()} == {
        "x": ("dense", [1], "float32"),
        "tags": ("sparse", "string"),
    }


@pytest.mark.usefixtures("tensorflow")
def test_a_label_that_is_not_there_is_told_before_tensorflow_begins(accessor: DataAccessor) -> None:
    options = TensorFlowDatasetOptions(batch_size=2, label_key="kid")
    with pytest.raises(ArgumentError, match=r"label_key: there is no feature 'kid'. Did you mean 'kind'\?"):
        accessor.tf_dataset_factory(PATTERN, options)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            'feature { name: "size" type: INT shape { dim { size: 1 } } }',
            "feature 'size' holds float32, but its type in",
        ),
        (
            'feature { name: "size" type: FLOAT shape { dim { size: 2 } } }',
            "feature 'size' has 1 values, but its shape in",
        ),
        (
            'feature { name: "gone" type: FLOAT shape { dim { size: 1 } } }',
            "feature 'gone' has 0 values, but its shape in",
        ),
    ],
)
def test_examples_that_do_not_fit_the_schema_are_named(accessor: DataAccessor, schema: str, message: str) -> None:
    with pytest.raises(DataError, match=f"data/Split-train/data-00000-of-00001.gz: {message}"):
        next(accessor.numpy_factory(PATTERN, RecordBatchesOptions(batch_size=2), parse_schema(schema)))


def test_files_that_are_not_there_and_batches_of_nothing_are_refused(accessor: DataAccessor) -> None:
    with pytest.raises(DataError, match=r"No file matches data/nothing\*\. Give fn_args\.train_files"):
        accessor.numpy_factory("data/nothing*", RecordBatchesOptions(batch_size=2))
    with pytest.raises(ArgumentError, match="batch_size is 0, but a batch has at least one example"):
        accessor.numpy_factory(PATTERN, RecordBatchesOptions(batch_size=0))
    write(name="empty")
    with pytest.raises(DataError, match="There are no examples in empty"):
        next(accessor.numpy_factory("empty", RecordBatchesOptions(batch_size=2)))


def test_a_schema_is_read_in_every_form_of_the_text() -> None:
    text = """
    # a comment
    feature: < name: 'a' "b"; type: BYTES, shape {} >
    feature { name: "say \\"x\\"" type: FLOAT shape { dim { size: 2 } dim { size: 3 } } presence { min_fraction: 1.0 } }
    tensor_representation_group { key: "" value { tensor_representation { } } }
    default_environment: ["TRAINING", "SERVING"]
    """
    Path("schema.pbtxt").write_text(text)
    schema = read_schema("schema.pbtxt")
    assert [(each.name, each.type, each.shape) for each in schema.feature] == [
        ("ab", "BYTES", ()),
        ('say "x"', "FLOAT", (2, 3)),
    ]


def test_a_schema_message_of_tensorflows_is_read_by_its_text(accessor: DataAccessor) -> None:
    class Message:
        def __str__(self) -> str:
            return SCHEMA

    batch = next(accessor.numpy_factory(PATTERN, RecordBatchesOptions(batch_size=2), Message()))
    assert list(batch) == ["size", "kind"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("feature {\n  name: @\n}", r"schema:2: '  name: @': Expected string but found: '@'. Write the schema again."),
        ('feature { name: "a"', 'schema:1: Expected "}". Write the schema again.'),
        ('feature { name: "a" type: INTEGER }', "has no value named INTEGER. Write the schema again."),
        ("feature { type: INT }", "schema: a feature has no name"),
    ],
)
def test_a_schema_that_cannot_be_read_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_schema(text)
    assert message in str(caught.value)


def test_a_schema_is_read_from_its_bytes() -> None:
    # One feature (field 1): a name (1), the type INT (6), a shape (23) of one dimension (2) of size 7 (1).
    Path("schema.pb").write_bytes(b"\x0a\x0c\x0a\x01a\x30\x02\xba\x01\x04\x12\x02\x08\x07")
    (feature,) = read_schema("schema.pb").feature
    assert (feature.name, feature.type, feature.shape) == ("a", "INT", (7,))
    Path("schema.pb").write_bytes(b"\x0a\x7f")
    with pytest.raises(DataError, match="schema.pb holds no schema: "):
        read_schema("schema.pb")
