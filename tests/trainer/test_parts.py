"""Frozen parts, rates by group and averages of a run that a config describes."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from tests.trainer import small, test_progressive
from tests.trainer.test_mesh import MESH, NamedTask
from tests.trainer.test_resume import contents
from trellis.errors import ArgumentError, ConfigError
from trellis.extensions import checkpoint_storage
from trellis.optimizers import average_weights
from trellis.trainer import StagedTrainer

FROZEN = {"frozen": ["encoder"]}


def build(model_dir: Path, params: trellis.ExperimentConfig, task: Any = None) -> trellis.Trainer:
    return trellis.Trainer(
        task or trellis.get_task(params.task),
        config=params.trainer,
        runtime=params.runtime,
        model_dir=model_dir,
        save_summary=False,
    )


def before_and_after(trainer: StagedTrainer) -> tuple[Any, trellis.Summary]:
    before = jax.tree.map(np.array, trainer.initialize().model_params)
    summary = trainer.train()
    assert summary is not None
    return before, summary


def assert_frozen(name: str, before: Any, after: Any) -> None:
    tiny.assert_equal(jax.tree.map(np.asarray, after[name]), before[name])
    assert not np.array_equal(after["classifier"]["kernel"], before["classifier"]["kernel"])


@pytest.mark.parametrize(
    ("runtime", "trainer"),
    [
        ({}, {}),
        ({"mixed_precision_dtype": "float16"}, {"n_microbatches": 2, "keep_gradients": True}),
        ({"mixed_precision_dtype": "bfloat16", **MESH}, {"n_microbatches": 2, "keep_gradients": True}),
    ],
    ids=["plainly", "in float16", "on a mesh"],
)
def test_a_frozen_part_stays_as_it_was(runtime: Any, trainer: Any, tmp_path: Path) -> None:
    adamw = {"type": "adamw", "adamw": {"weight_decay_rate": 0.1}}
    optimization = {**FROZEN, "optimizer": adamw, "ema": {"average_decay": 0.5}}
    params = small.params(5, optimizer_config=optimization, **trainer)
    params.override({"runtime": runtime})
    before, summary = before_and_after(build(tmp_path, params, NamedTask(params.task)))
    assert_frozen("encoder", before, summary.model_params)
    names = checkpoint_storage.read_manifest(tmp_path / "regular_5")["tree"]
    assert "model_params/encoder/kernel" in names
    assert not [name for name in names if name.startswith("optimizer_state") and "encoder" in name]
    evaluated = average_weights(summary.model_params, optimizer_state=summary.optimizer_state)
    tiny.assert_equal(jax.tree.map(np.asarray, evaluated["encoder"]), before["encoder"])
    assert not np.array_equal(evaluated["classifier"]["kernel"], summary.model_params["classifier"]["kernel"])


def test_a_run_with_parts_is_resumed_exactly(tmp_path: Path) -> None:
    groups = [{"parameters": ["classifier/bias"], "learning_rate_factor": 0.5}]
    optimization = {"frozen": ["encoder/bias"], "groups": groups, "ema": {"average_decay": 0.9, "start_step": 2}}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    build(whole, small.params(10, optimizer_config=optimization)).train()
    for n_steps in (5, 10):
        build(parts, small.params(n_steps, optimizer_config=optimization)).train()
    tiny.assert_equal(contents(parts)["regular_10"][2], contents(whole)["regular_10"][2])


def test_a_run_does_not_go_on_with_other_frozen_parts(tmp_path: Path) -> None:
    trellis.run_experiment(small.params(5, optimizer_config=FROZEN), mode="train", model_dir=tmp_path)
    with pytest.raises(ConfigError, match=r'trainer.optimizer_config.frozen: \["encoder"\] → \["classifier"\]'):
        trellis.run_experiment(
            small.params(10, optimizer_config={"frozen": ["classifier"]}), mode="train", model_dir=tmp_path
        )


def test_stages_freeze_what_their_own_optimizer_says(tmp_path: Path) -> None:
    class Unfreezing(test_progressive.StackingPolicy):
        def get_optimizer(self, stage_id: int) -> trellis.OptimizationConfig:
            config = super().get_optimizer(stage_id)
            return config if stage_id else config.replace(frozen=["layer_0"])

    params = test_progressive.params(12)
    task = trellis.get_task(params.task)
    trainer = trellis.ProgressiveTrainer(task, config=params.trainer, runtime=params.runtime, model_dir=tmp_path)
    trainer.policy = Unfreezing(task, config=params.trainer, runtime=params.runtime)
    before = jax.tree.map(np.array, trainer.initialize().model_params["layer_0"])
    trainer.train()
    stages = {name: arrays for name, (_, _, arrays) in contents(tmp_path).items() if name.startswith("regular_")}
    np.testing.assert_array_equal(stages["regular_8"]["model_params/layer_0/kernel"], before["kernel"])
    assert not np.array_equal(stages["regular_12"]["model_params/layer_0/kernel"], before["kernel"])


def test_the_learning_rate_of_each_group_is_reported(tmp_path: Path) -> None:
    groups = [
        {"parameters": ["encoder"], "learning_rate_factor": 0.1},
        {"parameters": ["classifier/bias"], "learning_rate_factor": 2.0, "name": "biases"},
    ]
    trellis.run_experiment(small.params(5, optimizer_config={"groups": groups}), mode="train", model_dir=tmp_path)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    metrics = next(event["metrics"]["train"] for event in events if event["kind"] == "summary")
    rates = {name: value for name, value in metrics.items() if name.startswith("learning_rate")}
    assert rates == pytest.approx({"learning_rate": 0.01, "learning_rate/encoder": 0.001, "learning_rate/biases": 0.02})


@pytest.mark.parametrize("field", ["frozen", "ema"])
def test_an_optimizer_of_ones_own_that_leaves_out_what_is_asked_is_refused(field: str, tmp_path: Path) -> None:
    class Own(small.SmallTask):
        @classmethod
        def create_optimizer(cls, *configs: Any, **options: Any) -> Any:
            return optax.adam(1e-3)

    params = small.params(5, optimizer_config=FROZEN if field == "frozen" else {"ema": {}})
    with pytest.raises(ArgumentError, match=rf"optimizer_config.{field} is set, but the optimizer of Own"):
        build(tmp_path, params, Own(params.task)).train()


def test_averages_are_evaluated_kept_as_the_best_and_served(tmp_path: Path) -> None:
    best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "loss"}
    params = small.params(
        10, optimizer_config={"ema": {"average_decay": 0.9}}, best_checkpoint_metric_comp="lower", **best
    )
    trainer = build(tmp_path, params)
    summary = trainer.train()
    assert summary is not None
    averages = average_weights(summary.model_params, optimizer_state=summary.optimizer_state)
    kept = contents(tmp_path)["best/lowest_eval_loss_10"][2]["model_params/classifier/kernel"]
    np.testing.assert_array_equal(kept, averages["classifier"]["kernel"])
    served = trainer.bound_model(trainer.read_checkpoint()).params["classifier"]["kernel"]
    np.testing.assert_array_equal(served, averages["classifier"]["kernel"])
    raw = contents(tmp_path)["regular_10"][2]["model_params/classifier/kernel"]
    np.testing.assert_array_equal(raw, summary.model_params["classifier"]["kernel"])
    assert not np.array_equal(raw, kept)
