"""A law over encoders: in half precision, where GPUs have a kernel of cuDNN, an export has none of it."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.export import _export as jax_export

from tests.contracts.test_text_runs import folder, small_experiment
from trellis.experiments import ExperimentConfig, get_exp_config
from trellis.nlp.models import transformer
from trellis.serving.export import PLATFORMS, export_functions
from trellis.tasks import BoundModel, get_task
from trellis.tasks.export import _signatures
from trellis.trainer import Trainer

__all__ = ["folder"]  # a fixture

_CALL = re.compile(r"stablehlo\.custom_call @([\w$.\"]+)")


def cudnn_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None, *, is_causal: bool
) -> jax.Array:
    """Stands for the kernel, which JAX lowers only where a GPU is."""
    shape = jax.ShapeDtypeStruct(query.shape, query.dtype)
    attended: jax.Array = jax.ffi.ffi_call("__cudnn$fmhaSoftmax", shape)(query, key, value)
    return attended


def calls_of_export(params: ExperimentConfig, model_dir: Path) -> set[str]:
    """The custom calls in what is exported of an experiment in half precision, for all platforms."""
    params.override({"runtime": {"mixed_precision_dtype": "bfloat16"}})
    task = get_task(params.task, logging_dir=str(model_dir))
    trainer = Trainer(config=params.trainer, task=task, model_dir=model_dir, runtime=params.runtime)
    stage = trainer.build_stage(0)
    state = stage.train_loop.state_shapes()
    zeros: Any = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (state.params, state.model_state))
    model = BoundModel(stage._computing_model(), params=zeros[0], model_state=zeros[1])
    signatures = _signatures(task, model, task.serving_inputs(trainer.inference_inputs()))
    _, exported = export_functions(dict(model.variables), signatures, platforms=PLATFORMS)
    texts = [function.mlir_module() for function in exported.values()]
    assert all("bf16" in text for text in texts)
    return {name.strip('"') for text in texts for name in _CALL.findall(text)}


@pytest.mark.parametrize("name", ["bert/pretraining", "albert/sentence_prediction", "mobilebert/squad"])
def test_no_export_of_text_calls_what_jax_does_not_guarantee(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(transformer, "_cudnn_takes", lambda query, key: True)
    monkeypatch.setattr(transformer, "_by_cudnn", cudnn_attention)
    calls = calls_of_export(small_experiment(name, folder, tmp_path), tmp_path / "run")
    assert calls <= set(jax_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)


def test_nor_does_one_of_digits(tmp_path: Path) -> None:
    calls = calls_of_export(get_exp_config("digits/classifier"), tmp_path)
    assert calls <= set(jax_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)
