"""Models asked with arrays and records: by the columns of files of every kind, and told what does not fit."""

import csv
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from trellis.data import RecordWriter, encode_example
from trellis.errors import ArgumentError, DataError, ModelError
from trellis.serving import ArrayPredictor, Signature, answer_lines, model_in_memory, open_answers_file

BATCH_SIZE = 4
X = np.arange(30, dtype=np.float32).reshape(10, 3)
AGES = np.arange(10, dtype=np.float32)
KINDS = ["cat", "dog", "emu"]


@pytest.fixture(scope="module")
def sums() -> ArrayPredictor:
    """Adds up three numbers, and gives them back the other way round."""
    signature = Signature(lambda v, x: {"sum": x.sum(-1) + v["bias"], "turned": x[:, ::-1]}, X[:2])
    return ArrayPredictor(
        model_in_memory(variables={"bias": np.float32(0)}, signatures={"f": signature}, batch_size=BATCH_SIZE)
    )


@pytest.fixture(scope="module")
def animals() -> ArrayPredictor:
    """Takes an age and the number of a kind."""
    inputs = {"age": AGES[:2], "kind": np.zeros(2, np.int32), "label": np.zeros(2, np.int32)}
    signature = Signature(lambda v, batch: batch["age"] * 10 + batch["kind"].astype(jnp.float32), inputs)
    metadata: Any = {"categories": {"kind": KINDS}, "missing": {"kind": "dog"}}
    model = model_in_memory(variables={}, signatures={"f": signature}, metadata=metadata, batch_size=BATCH_SIZE)
    return ArrayPredictor(model)


def asked(predictor: ArrayPredictor, file: str, **options: Any) -> tuple[list[Any], dict[str, np.ndarray], str]:
    """All ids, all outputs, and the note."""
    opened = predictor.open(file, **options)
    parts = list(opened.answers)
    outputs = {name: np.concatenate([part.outputs[name] for part in parts]) for name in parts[0].outputs}
    return [known_by for part in parts for known_by in part.ids], outputs, opened.notes[0]


def write_files() -> None:
    np.savez("named.npz", inputs=X, label=np.zeros(10, np.int32))
    np.savez("fitting.npz", x=X.astype(np.float64), y=np.zeros(10, np.int32), pictures=np.zeros((10, 3, 3)))
    np.save("alone.npy", X)
    with RecordWriter("records.tfrecord.gz", compression="gzip") as writer:
        for row in X:
            writer.write(encode_example({"inputs": row, "label": 1}))
    with open("numbers.csv", "w", newline="") as file:
        csv.writer(file).writerows([["id", "a", "b", "c"], *([f"row {n}", *row] for n, row in enumerate(X.tolist()))])
    Path("lists.jsonl").write_text("".join(f"{json.dumps({'x': row, 'id': n})}\n" for n, row in enumerate(X.tolist())))


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ("named.npz", "inputs is asked; label is left out."),
        ("fitting.npz", "x (as inputs) is asked; y, pictures are left out."),
        ("alone.npy", "alone (as inputs) is asked."),
        ("records.tfrecord.gz", "inputs is asked; label is left out."),
        ("numbers.csv", "a, b, c (as inputs) are asked; id is kept."),
        ("lists.jsonl", "x (as inputs) is asked; id is kept."),
    ],
)
def test_every_kind_of_file_is_asked_and_what_was_taken_for_what_is_told(
    sums: ArrayPredictor, file: str, note: str
) -> None:
    write_files()
    ids, outputs, told = asked(sums, file)
    assert told == f"{file}: {note}"
    assert ids == ([f"row {n}" for n in range(10)] if file == "numbers.csv" else list(range(10)))
    np.testing.assert_array_equal(outputs["sum"], X.sum(-1))
    np.testing.assert_array_equal(outputs["turned"], X[:, ::-1])


def test_parquet_is_asked_and_shards_are_one_file(sums: ArrayPredictor) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for number in range(2):
        rows = X[number * 5 : number * 5 + 5]
        parquet.write_table(arrow.table({"x": rows.tolist(), "text": ["a"] * 5}), f"part-{number}.parquet")
    ids, outputs, _ = asked(sums, "part-*.parquet")
    assert ids == list(range(10))
    np.testing.assert_array_equal(outputs["sum"], X.sum(-1))


def test_arrays_in_memory_are_asked_in_batches_too(sums: ArrayPredictor) -> None:
    np.testing.assert_array_equal(sums(X)["sum"], X.sum(-1))
    with pytest.raises(DataError, match=r"which has no example. Give a batch of one or more."):
        sums(X[:0])


def test_columns_are_chosen_by_name_and_by_pattern(sums: ArrayPredictor, animals: ArrayPredictor) -> None:
    Path("wide.csv").write_text("x_1,other,x_2,x_3\n1,9,2,3\n")
    assert asked(sums, "wide.csv", columns=["x_*"])[1]["sum"].tolist() == [6]
    assert asked(sums, "wide.csv", columns=["x_1", "x_1", "other"])[1]["sum"].tolist() == [11]
    with pytest.raises(
        ArgumentError, match=r"made of x_1, x_2, which are 2, but the model takes .* Name one column, or 3"
    ):
        asked(sums, "wide.csv", columns=["x_1", "x_2"])
    Path("other.csv").write_text("years,kind\n2,emu\n")
    assert asked(animals, "other.csv", columns={"age": ["years"]})[1]["outputs"].tolist() == [22]


def test_names_become_the_numbers_that_they_had_in_the_training(animals: ArrayPredictor) -> None:
    Path("animals.csv").write_text("age,kind,label\n1,emu,9\n2,cat,9\n3,dog,9\n")
    _, outputs, note = asked(animals, "animals.csv")
    assert outputs["outputs"].tolist() == [12, 20, 31]
    assert note == "animals.csv: age, kind are asked; label is left out."
    np.savez("numbers.npz", age=AGES[:2], kind=np.array([2, 0]))
    assert asked(animals, "numbers.npz")[1]["outputs"].tolist() == [2, 10], "they are numbers already"
    np.savez("numbers.npz", age=AGES[:2], kind=np.array([2, 3]))
    with pytest.raises(DataError, match="example 1, feature 'kind': 3 is the number of none of the 3 categories"):
        asked(animals, "numbers.npz")


def test_cells_that_are_empty_are_filled_as_in_the_training_or_as_is_said(animals: ArrayPredictor) -> None:
    Path("gaps.jsonl").write_text('{"age": 1, "kind": null}\n{"age": null, "kind": "cat"}\n')
    _, outputs, _ = asked(animals, "gaps.jsonl", missing={"age": 7})
    assert outputs["outputs"].tolist() == [11, 70]
    assert np.isnan(asked(animals, "gaps.jsonl")[1]["outputs"][1]), "as read_columns has it"
    with pytest.raises(ArgumentError, match="missing: 'agee' is not asked. Did you mean 'age'"):
        asked(animals, "gaps.jsonl", missing={"agee": 7})


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("age\n1\n", {}, r"bad.csv has no column 'kind', but the model takes kind int32\[batch\].*--columns=kind="),
        (
            "agee,kind\n1,cat\n",
            {},
            r"has no column 'age', but the model takes age float32\[batch\].* Did you mean 'agee'",
        ),
        (
            "age,kind\n1,cow\n",
            {},
            r"bad.csv, line 2, feature 'kind': 'cow' is none of the 3 categories .* They are 'cat'",
        ),
        (
            "age,kind\n1,cat\nold,dog\n",
            {},
            r"line 3, feature 'age': the cell 'old' is no float32. Correct it. The model",
        ),
        ("age,kind\n", {}, r"There are no examples in bad.csv"),
        ("", {}, r"bad.csv is empty"),
        ("age,kind\n1,cat\n", {"columns": {"aeg": ["age"]}}, r"the model has no input 'aeg'. Did you mean 'age'"),
        ("age,kind\n1,cat\n", {"columns": {"age": ["ages"]}}, r"bad.csv has no column 'ages'. Did you mean 'age'"),
        (
            "age,kind\n1,cat\n",
            {"columns": ["age"]},
            r"the model has 2 inputs. Say which column is which: --columns=age=…",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(
    animals: ArrayPredictor, text: str, options: dict[str, Any], message: str
) -> None:
    Path("bad.csv").write_text(text)
    with pytest.raises((DataError, ArgumentError), match=message):
        asked(animals, "bad.csv", **options)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": X[:, :2]}, r"feature 'inputs': it has 2 values, but shape \(3,\) asks for 3. The model takes"),
        ({"inputs": X.reshape(5, 2, 3)}, "feature 'inputs'"),
        ({"inputs": np.array(["a", "b"])}, "holds str"),
        (
            {"a": X[:, 0], "b": X[:, 1]},
            r"which of its columns are the input of the model is not known: it takes inputs",
        ),
        ({"inputs": np.zeros((2, 3, 0))}, "feature 'inputs'"),
        ({"a": X, "b": X[:3]}, "one common first axis"),
    ],
)
def test_arrays_of_another_shape_or_kind_are_told_with_what_the_model_takes(
    sums: ArrayPredictor, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez("bad.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        asked(sums, "bad.npz")


def test_a_record_without_a_feature_is_told(sums: ArrayPredictor) -> None:
    with RecordWriter("gaps.tfrecord") as writer:
        writer.write(encode_example({"inputs": X[0]}))
        writer.write(encode_example({"label": 1}))
    with pytest.raises(
        DataError, match=r"record 1, feature 'inputs': it is missing. Fill it in, .* --missing=inputs=0"
    ):
        asked(sums, "gaps.tfrecord")
    assert asked(sums, "gaps.tfrecord", missing={"inputs": 1})[1]["sum"].tolist() == [3, 3]


def test_images_are_asked_and_known_by_their_names() -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(3):
        image.fromarray(np.full((2, 2, 3), number, np.uint8)).save(f"{number}.png")
    signature = Signature(lambda v, x: x.astype(jnp.float32).mean((1, 2, 3)), np.zeros((1, 2, 2, 3), np.uint8))
    model = model_in_memory(variables={}, signatures={"f": signature}, batch_size=2)
    ids, outputs, note = asked(ArrayPredictor(model), "*.png")
    assert (ids, outputs["outputs"].tolist()) == (["0.png", "1.png", "2.png"], [0, 1, 2])
    assert note == "*.png: image (as inputs) is asked; folder is left out; name is kept."
    image.fromarray(np.zeros((4, 4, 3), np.uint8)).save("large.png")
    with pytest.raises(
        DataError, match=r"large.png, image 0, feature 'image'.* The model takes inputs uint8\[batch, 2, 2, 3\]"
    ):
        asked(ArrayPredictor(model), "*.png")


def test_an_output_that_is_not_by_example_is_told() -> None:
    signature = Signature(lambda v, x: {"row": x, "all": x.sum()}, X)
    model = model_in_memory(variables={}, signatures={"f": signature}, batch_size=2)
    with pytest.raises(ModelError, match=r"The output all float32\[\] of f is not by example"):
        ArrayPredictor(model)(X)


def test_whole_numbers_are_not_made_of_fractions(animals: ArrayPredictor) -> None:
    np.savez("bad.npz", age=AGES[:1], kind=np.array([1.5]))
    message = (
        r"example 0, feature 'kind': it holds float64 \(\[1.5\]\), but int32 was asked for. The model takes kind int32"
    )
    with pytest.raises(DataError, match=message):
        asked(animals, "bad.npz")


def test_answers_are_written_as_lines_as_a_table_and_as_arrays(sums: ArrayPredictor) -> None:
    x = np.array([[0.1, 0.2, np.nan], [1, 2, 3]], np.float32)
    np.savez("x.npz", inputs=x, id=np.array(["one", "two"]))
    for suffix in (".jsonl", ".csv", ".npz"):
        opened = sums.open("x.npz")
        with open(f"answers{suffix}", "wb") as output:
            file = open_answers_file(output, suffix=suffix, has_ids=opened.has_ids)
            for answers in opened.answers:
                file.append(answers)
            file.finish()
    first, second = map(json.loads, Path("answers.jsonl").read_text().splitlines())
    assert first == {"id": "one", "sum": "nan", "turned": ["nan", 0.2, 0.1]}
    assert second == {"id": "two", "sum": 6.0, "turned": [3.0, 2.0, 1.0]}
    assert Path("answers.csv").read_text() == (
        "id,sum,turned_0,turned_1,turned_2\none,nan,nan,0.2,0.1\ntwo,6.0,3.0,2.0,1.0\n"
    )
    arrays = np.load("answers.npz")
    assert arrays["id"].tolist() == ["one", "two"]
    np.testing.assert_array_equal(arrays["turned"], x[:, ::-1])
    shown = [line for answers in sums.open("x.npz").answers for line in answer_lines(answers)]
    assert shown[1] == "two  sum 6  turned [3 2 1], the largest at 0"
