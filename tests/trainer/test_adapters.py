"""A run with adapters that a config describes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from tests import tiny
from tests.trainer import small
from tests.trainer.test_resume import contents
from trellis.errors import ArgumentError, CheckpointMismatchError, ConfigError
from trellis.experiments import export_experiment, plan_experiment
from trellis.extensions import checkpoint_storage

LORA = {"rank": 2, "alpha": 4.0, "targets": ["encoder"], "also": ["classifier"]}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run whose model the others start from."""
    directory = tmp_path_factory.mktemp("start")
    trellis.run_experiment(small.params(5), mode="train", model_dir=directory)
    return str(directory / "regular_5")


def params(start: str, n_steps: int = 10, **options: Any) -> trellis.ExperimentConfig:
    lora = LORA | options.pop("lora", {})
    return small.params(n_steps, task={"init_checkpoint": start}, lora=lora, **options)


def test_a_run_trains_adapters_and_answers_with_the_merged_model(start: str, tmp_path: Path) -> None:
    options = {"optimizer_config": {"ema": {"average_decay": 0.5}}, "n_microbatches": 2}
    model, metrics = trellis.run_experiment(
        params(start, **options), mode="train_and_post_eval", model_dir=tmp_path / "run"
    )
    names = checkpoint_storage.read_manifest(tmp_path / "run/regular_10")["tree"]
    assert not [name for name in names if name.endswith("encoder/kernel")]
    assert model.params["encoder"].keys() == {"kernel", "bias"}
    loss, accuracy = _measured(model)
    assert (metrics["validation_loss"], metrics["accuracy"]) == pytest.approx((loss, accuracy), rel=1e-5)
    change = model.params["encoder"]["kernel"] - _weights(start)["encoder"]["kernel"]
    assert np.linalg.matrix_rank(change, tol=1e-5) == 2
    np.testing.assert_array_equal(model.params["encoder"]["bias"], _weights(start)["encoder"]["bias"])
    _, again = trellis.run_experiment(
        params(start, **options), mode="eval", model_dir=tmp_path / "run", run_post_eval=True
    )
    assert again["accuracy"] == metrics["accuracy"]
    served = export_experiment(params(start, **options), model_dir=tmp_path / "run", output_dir=tmp_path / "served")
    x = tiny.examples()[0][:8]
    np.testing.assert_allclose(trellis.load_model(served)(x), model(x), rtol=1e-5, atol=1e-6)


def _weights(path: str) -> Any:
    arrays = checkpoint_storage.read_arrays(Path(path), checkpoint_storage.read_manifest(Path(path))["tree"])
    names = {name: name.split("/")[1:] for name in arrays if name.startswith("model_params")}
    return {
        part: {leaf: arrays[f"model_params/{part}/{leaf}"] for leaf in ("kernel", "bias")} for part, _ in names.values()
    }


def _measured(model: Any) -> tuple[float, float]:
    x, labels = tiny.examples()
    logits = model(x)
    return float(tiny.cross_entropy(logits, labels)), float(tiny.accuracy(logits, labels))


def test_a_run_with_adapters_is_resumed_exactly(start: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    dropout = {"lora": {"dropout": 0.25}}
    trellis.run_experiment(params(start, 10, **dropout), mode="train", model_dir=whole)
    for n_steps in (5, 10):
        trellis.run_experiment(params(start, n_steps, **dropout), mode="train", model_dir=parts)
    tiny.assert_equal(contents(parts)["regular_10"][2], contents(whole)["regular_10"][2])


def test_the_weights_may_move_but_not_change(start: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trellis.run_experiment(params(start, 5), mode="train", model_dir=run)
    moved = tmp_path / "moved/regular_5"
    moved.parent.mkdir()
    Path(start).rename(moved)
    try:
        with pytest.raises(ConfigError, match=r"task.init_checkpoint names a checkpoint that is not there"):
            trellis.run_experiment(params(start, 5), mode="eval", model_dir=run)
        _, metrics = trellis.run_experiment(params(str(moved), 10), mode="train_and_post_eval", model_dir=run)
        assert metrics["accuracy"] > 0.3
    finally:
        moved.rename(start)
    other = tmp_path / "other"
    trellis.run_experiment(small.params(5, optimizer_config={"frozen": ["classifier"]}), mode="train", model_dir=other)
    with pytest.raises(CheckpointMismatchError, match=rf"arrays of `{other}` differ: encoder/"):
        trellis.run_experiment(params(str(other), 15), mode="train", model_dir=run)


def test_a_run_does_not_start_from_adapters_alone(start: str, tmp_path: Path) -> None:
    trellis.run_experiment(params(start, 5), mode="train", model_dir=tmp_path / "run")
    with pytest.raises(CheckpointMismatchError, match="holds adapters alone .* Export the run, which merges them"):
        trellis.run_experiment(params(str(tmp_path / "run"), 5), mode="train", model_dir=tmp_path / "next")


def test_another_alpha_is_another_run(start: str, tmp_path: Path) -> None:
    trellis.run_experiment(params(start, 5), mode="train", model_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"trainer.lora.alpha: 4.0 → 8.0"):
        trellis.run_experiment(params(start, 10, lora={"alpha": 8.0}), mode="train", model_dir=tmp_path)


def test_the_plan_counts_what_is_trained(start: str, tmp_path: Path) -> None:
    report = str(plan_experiment(params(start), mode="train", model_dir=tmp_path / "run").report)
    assert "SmallModel: 140 parameters" in report
    assert "68 of them trained (adapters of rank 2 for 1 matrix; whole: classifier)" in report
    assert "frozen weights 288 B" in report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": {"rank": 0}}, "trainer.lora.rank is 0"),
        ({"lora": {"targets": []}}, r"trainer.lora.targets is \[\]"),
        ({"lora": {"init_adapter": "nowhere"}}, "names a directory that is not there: `nowhere`"),
        ({"optimizer_config": {"frozen": ["encoder"]}}, "beside trainer.lora, which freezes the weights itself"),
    ],
)
def test_a_config_that_cannot_work_is_told_before_anything_else(
    start: str, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trellis.run_experiment(params(start, **options), mode="train", model_dir=tmp_path / "run")


def test_an_adapter_of_peft_is_for_models_that_peft_knows(start: str, tmp_path: Path) -> None:
    given = params(start, lora={"init_adapter": str(tmp_path)})
    with pytest.raises(ArgumentError, match="SmallTask has no model that PEFT knows"):
        trellis.run_experiment(given, mode="train", model_dir=tmp_path / "run")


def test_a_run_without_adapters_has_none_to_export(start: str, tmp_path: Path) -> None:
    run = Path(start).parent
    with pytest.raises(ArgumentError, match=r"has trained no adapters \(trainer.lora is null\)"):
        export_experiment(small.params(5), model_dir=run, output_dir=tmp_path / "out", format="peft")
