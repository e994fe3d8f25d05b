"""A mesh from a config: the numbers of one device, in any precision, from a file too, and a resume to the bit."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import trellis
from tests.trainer import small

MESH = {"distribution_strategy": "mirrored", "mesh": {"data": 2, "fsdp": 2, "model": 2}}


class NamedModel(nn.Module):
    """A layer that names its axes, and one that does not."""

    @nn.compact
    def __call__(self, x: Any, training: bool = False) -> Any:
        """Logits of four classes."""
        kernel_init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        x = nn.relu(nn.Dense(128, name="encoder", kernel_init=kernel_init)(x))
        return nn.Dense(4, name="classifier")(nn.Dropout(0.2, deterministic=not training)(x))


class NamedTask(small.SmallTask):
    def build_model(self) -> Any:
        return NamedModel()


def build(model_dir: Path, n_steps: int, **runtime: Any) -> trellis.Trainer:
    params = small.params(n_steps, n_microbatches=2, optimizer_config={"ema": {"average_decay": 0.9}})
    params.override({"runtime": runtime})
    task = NamedTask(params.task)
    return trellis.Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir, save_summary=False)


def train(trainer: trellis.Trainer) -> trellis.Summary:
    summary = trainer.train()
    assert summary is not None
    return summary


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_mesh_has_the_metrics_of_one_device(dtype: Any, tmp_path: Path) -> None:
    one = train(build(tmp_path / "one", 5, mixed_precision_dtype=dtype))
    mesh = train(build(tmp_path / "mesh", 5, mixed_precision_dtype=dtype, **MESH))
    # In low precision the order of a sum can change its last digit of two or three.
    rounding = 1e-5 if dtype is None else 1e-2
    assert mesh.loss == pytest.approx(one.loss, rel=rounding)
    assert mesh.metrics["eval"]["loss"] == pytest.approx(one.metrics["eval"]["loss"], rel=rounding)
    for kernel in (mesh.model_params["encoder"]["kernel"], mesh.optimizer_state.average["encoder"]["kernel"]):
        assert {shard.data.shape for shard in kernel.addressable_shards} == {(4, 64)}
        assert kernel.dtype == np.float32


def test_a_run_on_a_mesh_is_resumed_to_the_bit_and_evaluated_anywhere(tmp_path: Path) -> None:
    whole = train(build(tmp_path / "whole", 10, **MESH))
    train(build(tmp_path / "parts", 5, **MESH))
    parts = train(build(tmp_path / "parts", 10, **MESH))
    jax.tree.map(np.testing.assert_array_equal, whole.model_params, parts.model_params)
    jax.tree.map(np.testing.assert_array_equal, whole.optimizer_state, parts.optimizer_state)
    assert whole.metrics["eval"] == parts.metrics["eval"]
    for runtime in (MESH, {}):
        loss = build(tmp_path / "whole", 10, **runtime).evaluate().metrics["eval"]["loss"]
        assert loss == pytest.approx(whole.metrics["eval"]["loss"], rel=1e-5)
