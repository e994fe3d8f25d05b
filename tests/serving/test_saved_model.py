"""SavedModels: TensorFlow answers as the model does, without Trellis and without JAX."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests import tiny
from trellis.errors import ArgumentError, MissingPackageError
from trellis.serving import Signature, export_model

MODEL = tiny.Classifier()
X = tiny.examples(48)[0]
METADATA: Any = {"step": 7, "categories": {"kind": ["cat", "dog"]}, "missing": {"age": 7}}
PROGRAM = """
import sys
sys.modules["jax"] = sys.modules["trellis"] = None  # neither can be imported
import numpy as np
import tensorflow as tf
model = tf.saved_model.load("served")
x = np.load("x.npy")
assert all(model.signatures["inference_step"](inputs=tf.constant(x[:n]))["outputs"].shape[0] == n for n in (1, 5))


def example(**features):
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def floats(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def ints(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def names(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


serve = model.signatures["serving_default"]
assert list(serve.structured_input_signature[1]) == ["examples"]
served = serve(examples=tf.constant([example(inputs=floats(row), label=ints(1)) for row in x]))["outputs"]
np.testing.assert_array_equal(served, model.signatures["inference_step"](inputs=x)["outputs"])
table = model.signatures["table_examples"]
rows = [example(age=floats([1.5]), kind=names(b"dog"), size=ints(3)), example(kind=names(b"cat"), size=ints(4))]
np.testing.assert_array_equal(table(examples=tf.constant(rows))["outputs"], [15 + 1 + 3, 70 + 0 + 4])
for wrong, told in (
    (example(kind=names(b"cow"), size=ints(1)), "kind is none of the 2 categories"),
    (example(kind=names(b"cat"), size=ints(2**40)), "size has a number that int32 cannot hold"),
    (example(kind=names(b"cat")), "size"),
):
    try:
        table(examples=tf.constant([wrong]))
    except tf.errors.InvalidArgumentError as error:
        assert told in str(error), error
    else:
        raise AssertionError(told)
best = model.signatures["classify"](features_x=x, features_y=x)["best"]
np.savez("out.npz", logits=model.signatures["inference_step"](inputs=x)["outputs"], best=best)
"""


@pytest.fixture(scope="module")
def variables() -> Any:
    return MODEL.init(jax.random.key(0), X)


def classify(variables: Any, inputs: Any) -> Any:
    features = inputs["features"]
    return {"best": MODEL.apply(variables, (features["x"] + features["y"]) / 2).argmax(-1)}


def test_tensorflow_answers_as_the_model_does_for_batches_of_any_size(tmp_path: Path, variables: Any) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow, an extra of 600 MB, is not installed for tests")
    (tmp_path / "words.txt").write_text("a\nb\n")
    export_model(
        tmp_path / "served",
        variables=variables,
        signatures={
            "inference_step": Signature(MODEL.apply, X),
            "classify": Signature(classify, {"features": {"x": X, "y": X}, "unused": X}),
            "table": Signature(
                lambda v, row: row["age"] * 10 + (row["kind"] + row["size"]).astype(np.float32),
                {"age": X[:, 0], "kind": np.zeros(48, np.int32), "size": np.zeros(48, np.int32)},
            ),
        },
        files={"words.txt": tmp_path / "words.txt"},
        metadata=METADATA,
        format="saved_model",
    )
    np.save(tmp_path / "x.npy", X)
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outputs = np.load(tmp_path / "out.npz")
    expected = jax.jit(MODEL.apply)(variables, X)
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outputs["best"], expected.argmax(-1))
    extra = tmp_path / "served/assets.extra"
    assert (extra / "words.txt").read_text() == "a\nb\n"
    assert json.loads((extra / "metadata.json").read_text()) == METADATA
    n_bytes = sum(array.nbytes for array in jax.tree.leaves(variables))
    (data,) = (tmp_path / "served/variables").glob("variables.data-*")
    assert data.stat().st_size >= n_bytes


def test_without_tensorflow_nothing_is_begun(tmp_path: Path, variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.serving.manifest.find_spec", lambda _: None)

    def refuse(*_: Any) -> Any:
        raise AssertionError("Nothing is to be traced.")

    with pytest.raises(MissingPackageError, match="tensorflow is not installed. It comes with: pip install") as caught:
        export_model(
            tmp_path / "served", variables=variables, signatures={"a": Signature(refuse, X)}, format="saved_model"
        )
    assert "The format jax_export, the default, needs none." in caught.value.__notes__[0]
    assert not list(tmp_path.iterdir())


def test_a_format_that_is_not_known_is_refused(tmp_path: Path, variables: Any) -> None:
    with pytest.raises(ArgumentError, match="There is no format 'onnx'. There are: jax_export, saved_model."):
        export_model(tmp_path / "served", variables=variables, signatures={}, format="onnx")  # type: ignore[arg-type]
