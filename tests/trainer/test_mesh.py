"""A mesh from a config: the numbers of one device, in any precision, and a resume to the bit."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
import trellis.experiments.digits


def params(n_steps: int, **runtime: Any) -> trellis.ExperimentConfig:
    config = trellis.get_exp_config("digits/classifier")
    intervals = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 10)
    rate = {"type": "constant", "constant": {"learning_rate": 1e-2}}
    trainer = {"train_steps": n_steps, "n_microbatches": 2, "best_checkpoint_export_subdir": "", **intervals}
    trainer["optimizer_config"] = {"ema": {"average_decay": 0.9}, "warmup": {"type": None}, "learning_rate": rate}
    config.override({"task": {"hidden_size": 32}, "trainer": trainer, "runtime": runtime})
    return config


def train(params: trellis.ExperimentConfig, model_dir: Path) -> trellis.Summary:
    task = trellis.get_task(params.task)
    summary = trellis.Trainer(
        task, config=params.trainer, runtime=params.runtime, model_dir=model_dir, save_summary=False
    ).train()
    assert summary is not None
    return summary


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_mesh_has_the_metrics_of_one_device(dtype: Any, tmp_path: Path) -> None:
    one = train(params(10, distribution_strategy="off", mixed_precision_dtype=dtype), tmp_path / "one")
    mesh = train(params(10, mesh={"data": 2, "fsdp": 4}, mixed_precision_dtype=dtype), tmp_path / "mesh")
    # In low precision the order of a sum can change its last digit of two or three.
    rounding = 1e-5 if dtype is None else 1e-2
    assert mesh.loss == pytest.approx(one.loss, rel=rounding)
    assert mesh.metrics["eval"]["loss"] == pytest.approx(one.metrics["eval"]["loss"], rel=rounding)
    kernel = mesh.model_params["encoder"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(16, 32)}
    assert kernel.dtype == np.float32


def test_a_run_on_a_mesh_is_resumed_to_the_bit(tmp_path: Path) -> None:
    mesh = {"mesh": {"data": 2, "fsdp": 4}}
    whole = train(params(20, **mesh), tmp_path / "whole")
    train(params(10, **mesh), tmp_path / "parts")
    parts = train(params(20, **mesh), tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, whole.model_params, parts.model_params)
    jax.tree.map(np.testing.assert_array_equal, whole.optimizer_state, parts.optimizer_state)
    assert whole.metrics["eval"] == parts.metrics["eval"]
