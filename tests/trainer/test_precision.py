"""Mixed precision from a config: nearly the loss of float32, float32 files, and a scale that is resumed."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
import trellis.experiments.digits
from tests.trainer import small
from trellis.errors import ConfigError
from trellis.optimizers import current_loss_scale


def digits(n_steps: int, **runtime: Any) -> trellis.ExperimentConfig:
    params = trellis.get_exp_config("digits/classifier")
    intervals = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 30)
    params.override(
        {
            "task": {"hidden_size": 16, "dropout_rate": 0.0},
            "trainer": {"train_steps": n_steps, "best_checkpoint_export_subdir": "", **intervals},
            "runtime": {"distribution_strategy": "one_device", **runtime},
        }
    )
    return params


def train(params: trellis.ExperimentConfig, model_dir: Path) -> trellis.Summary:
    task = trellis.get_task(params.task)
    trainer = trellis.Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir)
    summary = trainer.train()
    assert summary is not None
    return summary


@pytest.fixture(scope="module")
def in_float32(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return dict(train(digits(60), tmp_path_factory.mktemp("float32")).metrics["eval"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_digits_are_learned_in_low_precision_nearly_as_in_float32(
    dtype: str, in_float32: dict[str, float], tmp_path: Path
) -> None:
    summary = train(digits(60, mixed_precision_dtype=dtype), tmp_path)
    assert summary.metrics["eval"]["loss"] == pytest.approx(in_float32["loss"], rel=0.02)
    assert summary.metrics["eval"]["loss"] != in_float32["loss"]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(summary.model_params)} == {"float32"}
    scale = current_loss_scale(summary.optimizer_state)
    assert scale is None if dtype == "bfloat16" else scale == 2**15


def test_a_run_in_float16_is_resumed_exactly_with_its_scale_and_averages(tmp_path: Path) -> None:
    runtime = {"mixed_precision_dtype": "float16", "loss_scale": "dynamic", "distribution_strategy": "one_device"}

    def params(n_steps: int) -> trellis.ExperimentConfig:
        config = small.params(n_steps)
        config.override({"runtime": runtime, "trainer": {"optimizer_config": {"ema": {"average_decay": 0.9}}}})
        return config

    whole = train(params(10), tmp_path / "whole")
    train(params(5), tmp_path / "parts")
    parts = train(params(10), tmp_path / "parts")
    for one, other in ((whole.model_params, parts.model_params), (whole.optimizer_state, parts.optimizer_state)):
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert whole.metrics["eval"] == parts.metrics["eval"]


def test_a_loss_scale_without_float16_is_refused_before_anything_runs(tmp_path: Path) -> None:
    params = small.params(5)
    params.override({"runtime": {"mixed_precision_dtype": "bfloat16", "loss_scale": 128.0}})
    with pytest.raises(
        ConfigError, match=r"loss_scale is 128.0, but .*dtype is bfloat16.*\n.*Only float16 needs a loss"
    ):
        trellis.run_experiment(params, mode="train", model_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
