"""A law over all experiments: what GPUs run of a step adds up in the same order each time, without XLA's slow cure."""

import re
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from tests.contracts.test_text_runs import folder
from tests.nlp.small_experiments import SHIPPED, small_experiment
from trellis.experiments import ExperimentConfig, get_exp_config
from trellis.runtime import Placement, StepKeys, lookups
from trellis.tasks import get_task
from trellis.trainer import Trainer

__all__ = ["folder"]  # a fixture

_SCATTER = re.compile(r'"stablehlo\.(?:select_and_)?scatter"\(.*?<\{.*?\}>', re.DOTALL)
_RANDOM = re.compile(r"stablehlo\.rng ")


def programs(params: ExperimentConfig, model_dir: Path) -> Iterator[str]:
    """Yields the steps of training and evaluation as they are lowered for a GPU."""
    task = get_task(params.task, logging_dir=str(model_dir))
    trainer = Trainer(config=params.trainer, task=task, model_dir=model_dir, runtime=params.runtime)
    stage = trainer.build_stage(0)
    training = stage.train_loop
    traced = training.traced
    state = training.state_shapes()
    batch = traced.outline.batch
    root = jax.random.key(0)
    step = jax.jit(traced.step).trace(state, traced.no_totals, batch, root)
    yield step.lower(lowering_platforms=("cuda",)).as_text()
    evaluation = stage.eval_loop
    step = evaluation._step.trace(state.params, state.model_state, {}, evaluation.peek(), StepKeys(root, 0))
    yield step.lower(lowering_platforms=("cuda",)).as_text()


def disordered(text: str) -> list[str]:
    """The operations that add up in whatever order threads arrive, or draw from something other than a key."""
    scatters = [found for found in _SCATTER.findall(text) if "unique_indices = true" not in found]
    return scatters + _RANDOM.findall(text)


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "platform", "gpu")
    # So that the small vocabularies of the tests are summed up as large ones are.
    monkeypatch.setattr(lookups, "_FEW_ROWS", 64)


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "digits/classifier"])
def test_no_step_of_text_adds_up_in_any_order(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    params = small_experiment(name, folder, tmp_path)
    for text in programs(params, tmp_path / "run"):
        assert "stablehlo.dot_general" in text
        assert disordered(text) == []


def test_nor_does_one_of_digits(tmp_path: Path) -> None:
    assert [disordered(text) for text in programs(get_exp_config("digits/classifier"), tmp_path)] == [[], []]


def test_what_adds_up_in_any_order_is_seen() -> None:
    def embed(table: jax.Array, ids: jax.Array) -> jax.Array:
        return table.at[ids].get().sum()

    shapes = jax.ShapeDtypeStruct((5, 2), "float32"), jax.ShapeDtypeStruct((3,), "int32")
    text = jax.jit(jax.grad(embed)).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert len(disordered(text)) == 1
