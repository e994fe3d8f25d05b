"""Tasks, exported: the model that was evaluated, with the functions and files that the task offers."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
from tests import tiny
from tests.trainer import small, test_progressive
from trellis.errors import ArgumentError
from trellis.experiments import export_experiment
from trellis.tasks import export_task

X = tiny.examples()[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A run whose optimizer averages, with its config and its model."""
    model_dir = tmp_path_factory.mktemp("run")
    params = small.params(10, optimizer_config={"ema": {"average_decay": 0.9}})
    model, _ = trellis.run_experiment(params, mode="train", model_dir=model_dir)
    return model_dir, params, model


def test_a_run_is_exported_with_the_averages_that_are_evaluated(run: Any, tmp_path: Path) -> None:
    model_dir, params, model = run
    served = trellis.load_model(export_experiment(params, model_dir=model_dir, output_dir=tmp_path / "served"))
    np.testing.assert_array_equal(served(X[:9]), jax.jit(model)(X[:9]))
    assert served.manifest.metadata == {"task": "SmallTask", "model": "SmallModel", "step": 10}
    assert list(served.signatures) == ["inference_step"]


def test_an_older_checkpoint_file_is_exported_if_it_is_named(run: Any, tmp_path: Path) -> None:
    model_dir, params, model = run
    older = model_dir / "regular_5"
    served = trellis.load_model(
        export_experiment(params, model_dir=model_dir, output_dir=tmp_path / "served", checkpoint_file=older)
    )
    assert served.manifest.metadata["step"] == 5
    assert not np.array_equal(served(X), jax.jit(model)(X))
    with pytest.raises(ArgumentError, match="regular_6` is no checkpoint file. Give one, such as"):
        export_experiment(
            params, model_dir=model_dir, output_dir=tmp_path / "other", checkpoint_file=model_dir / "regular_6"
        )
    with pytest.raises(ArgumentError, match="There is no checkpoint file in model_dir"):
        export_experiment(params, model_dir=tmp_path / "empty", output_dir=tmp_path / "other")


def test_a_task_offers_functions_and_files_of_its_own(run: Any, tmp_path: Path) -> None:
    class Offering(small.SmallTask):
        def serving_functions(self) -> Any:
            return {**super().serving_functions(), "classify": self.classify}

        def serving_files(self) -> Any:
            return {"labels.txt": str(tmp_path / "labels.txt")}

        def classify(self, inputs: Any, model: Any) -> Any:
            return {"label": self.inference_step(inputs, model).argmax(-1)}

    (tmp_path / "labels.txt").write_text("a b c d")
    served = trellis.load_model(
        export_task(Offering(small.SmallConfig()), model=run[2], inputs=X, output_dir=tmp_path / "served")
    )
    np.testing.assert_array_equal(served(X, signature="classify")["label"], served(X).argmax(-1))
    assert served.files["labels.txt"].read_text() == "a b c d"


def test_a_progressive_run_is_exported_as_its_stage_has_it(tmp_path: Path) -> None:
    params = test_progressive.params(9, export_checkpoint=False)
    model, _ = trellis.run_experiment(params, mode="train", model_dir=tmp_path / "run")
    for step, n_layers in ((9, 2), (8, 1)):
        file = tmp_path / "run" / f"regular_{step}"
        path = export_experiment(
            params, model_dir=tmp_path / "run", output_dir=tmp_path / f"served_{step}", checkpoint_file=file
        )
        names = (path / "parameters.safetensors").read_bytes()[:2000]
        assert [f"layer_{n}".encode() in names for n in (0, 1)] == [True, n_layers == 2]
    served = trellis.load_model(tmp_path / "served_9")
    np.testing.assert_array_equal(served(X), jax.jit(model)(X))
