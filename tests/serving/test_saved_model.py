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
PROGRAM = """
import sys
sys.modules["jax"] = sys.modules["trellis"] = None  # neither can be imported
import numpy as np
import tensorflow as tf
model = tf.saved_model.load("served")
x = np.load("x.npy")
assert all(model.signatures["serving_default"](inputs=tf.constant(x[:n]))["outputs"].shape[0] == n for n in (1, 5))
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
        },
        files={"words.txt": tmp_path / "words.txt"},
        metadata={"step": 7},
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
    assert json.loads((extra / "metadata.json").read_text()) == {"step": 7}
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
