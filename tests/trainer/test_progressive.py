"""The progressive trainer: stages that grow, resumed wherever they were left."""

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import trellis
from tests import tiny
from tests.trainer import small
from tests.trainer.test_resume import contents, history
from trellis.errors import ArgumentError, ConfigError, ModelError, Preempted, RegistryError
from trellis.extensions import checkpoint_storage


@dataclass
class StackingConfig(trellis.ProgressiveConfig):
    """Stages of 8 steps, then as many as it takes."""

    num_stages: int = 2
    num_steps: int = 8


class Stacked(nn.Module):
    """Layers with numbers."""

    n_layers: int

    @nn.compact
    def __call__(self, x: Any, training: bool = False) -> Any:
        """Logits of four classes."""
        for number in range(self.n_layers):
            x = nn.relu(nn.Dense(8, name=f"layer_{number}")(x))
        return nn.Dense(4, name="classifier")(nn.Dropout(0.2, deterministic=not training)(x))


@trellis.register_policy_cls(StackingConfig)
class StackingPolicy(trellis.ProgressivePolicy):
    """Doubles the layers; the second stage has its own rate and batch size."""

    def num_stages(self) -> int:
        return self.config.progressive.num_stages  # type: ignore[union-attr]

    def num_steps(self, stage_id: int) -> int:
        return self.config.progressive.num_steps  # type: ignore[union-attr]

    def get_model(self, stage_id: int, old_model: trellis.BoundModel | None = None) -> trellis.BoundModel:
        params = {} if old_model is None else dict(old_model.params)
        n_layers = 2**stage_id
        if old_model is not None:
            params |= {f"layer_{n_layers // 2 + i}": params[f"layer_{i}"] for i in range(n_layers // 2)}
        return trellis.BoundModel(Stacked(n_layers), params=params)

    def get_optimizer(self, stage_id: int) -> trellis.OptimizationConfig:
        config = self.config.optimizer_config
        return config.replace(learning_rate={"polynomial": {"initial_learning_rate": 0.02}}) if stage_id else config

    def get_train_dataset(self, stage_id: int) -> Any:
        data = self.task.task_config.train_data
        return self.build_inputs(data.replace(global_batch_size=8) if stage_id else data)


def params(n_steps: int = 16, **trainer: Any) -> trellis.ExperimentConfig:
    """Two stages of 8 steps, with intervals that do not divide them."""
    intervals = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 3)
    rate = {"type": "polynomial", "polynomial": {"initial_learning_rate": 0.01, "end_learning_rate": 0.0}}
    config = trellis.ExperimentConfig(
        task=small.SmallConfig(),
        trainer=trellis.ProgressiveTrainerConfig(
            optimizer_config={"optimizer": {"type": "adam"}, "learning_rate": rate},
            progressive=StackingConfig(),
            train_steps=n_steps,
            max_to_keep=20,
            **intervals,
        ),
        runtime=trellis.RuntimeConfig(distribution_strategy="one_device", seed=3),
    )
    config.override({"trainer": trainer})
    return config


def run(model_dir: Path, config: trellis.ExperimentConfig | None = None, **how: Any) -> Any:
    how = {"mode": "train_and_eval", **how}
    return trellis.run_experiment(config or params(), model_dir=model_dir, **how)


def leaves(model_dir: Path, name: str) -> dict[str, Any]:
    return checkpoint_storage.read_arrays(model_dir / name, checkpoint_storage.read_manifest(model_dir / name)["tree"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted, with everything switched on."""
    directory = tmp_path_factory.mktemp("whole")
    run(directory, params(**EVERYTHING))
    return directory


EVERYTHING = {
    "export_only_final_stage_ckpt": False,
    "export_checkpoint_interval": 5,
    "export_max_to_keep": 2,
}


def assert_same(left: Path, right: Path) -> None:
    first, second = contents(left), contents(right)
    assert first.keys() == second.keys()
    for name, (step, metrics, arrays) in first.items():
        assert (step, metrics) == second[name][:2], name
        assert arrays.keys() == second[name][2].keys()
        for path, array in arrays.items():
            np.testing.assert_array_equal(array, second[name][2][path], err_msg=f"{name}: {path}")
    assert history(left) == history(right)


def test_a_stage_starts_with_the_parameters_of_the_one_before_and_an_optimizer_of_its_own(tmp_path: Path) -> None:
    seen = {}

    def look(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        seen[checkpoint.step] = checkpoint.copy()
        return checkpoint

    model, _ = run(tmp_path, extensions=[look])
    assert model.model.n_layers == 2
    assert sorted(seen) == [3, 6, 8, 9, 12, 15, 16]
    assert sorted(seen[8].model_params) == ["classifier", "layer_0"]
    assert sorted(seen[9].model_params) == ["classifier", "layer_0", "layer_1"]
    before = seen[8].model_params["layer_0"]["kernel"]
    for name in ("layer_0", "layer_1"):
        np.testing.assert_allclose(seen[9].model_params[name]["kernel"], before, atol=0.05)
    rates = [line[1]["train"]["learning_rate"] for line in history(tmp_path)]
    expected = [0.01 * (1 - n / 8) for n in (3, 6, 8)] + [0.02 + (0.0 - 0.02) * n / 8 for n in (1, 4, 7, 8)]
    np.testing.assert_allclose(rates, expected, atol=1e-6)
    kinds = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(line["step"], line["stage_id"]) for line in kinds if line["kind"] == "stage"] == [(0, 0), (8, 1)]


@pytest.mark.parametrize("step", [6, 8, 12])
def test_killed_after_any_file_a_run_ends_as_one_that_was_not(tmp_path: Path, whole: Path, step: int) -> None:
    killed = tmp_path / "killed"
    shutil.copytree(whole, killed)
    # What a kill leaves: files up to a step, and points and exports of later ones.
    for file in killed.glob("regular_*"):
        if int(file.name.rpartition("_")[2]) > step:
            shutil.rmtree(file)
    run(killed, params(**EVERYTHING))
    assert_same(whole, killed)


@pytest.mark.parametrize("step", [8, 9])
def test_told_to_stop_a_run_leaves_its_stage_in_good_order(tmp_path: Path, whole: Path, step: int) -> None:
    def stop(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        if checkpoint.step == step and not list(tmp_path.glob("told")):
            (tmp_path / "told").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return checkpoint

    directory = tmp_path / "run"
    with pytest.raises(Preempted):
        run(directory, params(**EVERYTHING), extensions=[stop])
    assert max(int(name.rpartition("_")[2]) for name in small.files(directory)) == step
    run(directory, params(**EVERYTHING), extensions=[stop])
    assert_same(whole, directory)


def test_an_iterator_is_read_from_its_beginning_in_each_stage_and_resumed_in_it(tmp_path: Path) -> None:
    class IteratorPolicy(StackingPolicy):
        def get_train_dataset(self, stage_id: int) -> Any:
            return tiny.batches(8 if stage_id else 16)

    def train(model_dir: Path) -> Any:
        config = params(export_checkpoint=False)
        trainer = trellis.ProgressiveTrainer(
            trellis.get_task(config.task), config=config.trainer, runtime=config.runtime, model_dir=model_dir
        )
        trainer.policy = IteratorPolicy(trainer.task, config=config.trainer, runtime=config.runtime)
        return trainer.train()

    train(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for step in (15, 16):
        shutil.rmtree(tmp_path / "killed" / f"regular_{step}")
    manifest = checkpoint_storage.read_manifest(tmp_path / "killed" / "regular_12")
    assert manifest["position"]["n_batches"] == 4
    train(tmp_path / "killed")
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_told_to_stop_while_a_stage_is_prepared_a_run_saves_nothing_that_is_there(tmp_path: Path) -> None:
    class Slow(StackingPolicy):
        def get_train_dataset(self, stage_id: int) -> Any:
            if stage_id:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().get_train_dataset(stage_id)

    config = params()
    trainer = trellis.ProgressiveTrainer(
        trellis.get_task(config.task), config=config.trainer, runtime=config.runtime, model_dir=tmp_path
    )
    trainer.policy = Slow(trainer.task, config=config.trainer, runtime=config.runtime)
    with pytest.raises(Preempted):
        trainer.train()
    assert small.files(tmp_path) == ["regular_3", "regular_6", "regular_8"]


def test_damaged_files_send_a_run_back_into_the_stage_before(tmp_path: Path, whole: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    for step in (9, 12, 15, 16):
        (damaged / f"regular_{step}" / "manifest.json").write_text("{")
    run(damaged, params(**EVERYTHING))
    expected, found = leaves(whole, "regular_16"), leaves(damaged, "regular_16")
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name])


def test_a_loss_that_blows_up_in_a_stage_goes_back_to_its_start(tmp_path: Path) -> None:
    config = params(recovery_max_trials=1, checkpoint_interval=100)
    config.override({"task": {"bad_batches": [9]}})
    run(tmp_path, config, mode="train")
    assert json.loads((tmp_path / "skipped_data.json").read_text()) == [{"step": 8, "n_batches": 4}]
    assert small.files(tmp_path) == ["regular_16", "regular_8"]


def test_plain_models_are_exported_from_the_last_stage_unless_told_otherwise(tmp_path: Path, whole: Path) -> None:
    assert small.files(whole / "exported_ckpts") == ["regular_15", "regular_16"]
    run(tmp_path, params(checkpoint_interval=5))
    assert small.files(tmp_path / "exported_ckpts") == ["regular_10", "regular_15", "regular_16"]
    exported = leaves(tmp_path, "exported_ckpts/regular_16")
    assert {name.split("/")[0] for name in exported} == {"model_params"}
    np.testing.assert_array_equal(
        exported["model_params/layer_1/kernel"], leaves(tmp_path, "regular_16")["model_params/layer_1/kernel"]
    )


def test_a_file_is_evaluated_with_the_model_of_its_stage(whole: Path) -> None:
    _, metrics = run(whole, mode="eval", run_post_eval=True)
    points = {line[0]: line[1]["eval"] for line in history(whole) if "eval" in line[1]}
    assert metrics["validation_loss"] == points[16]["loss"]
    config = params()
    trainer = trellis.ProgressiveTrainer(
        trellis.get_task(config.task), config=config.trainer, runtime=config.runtime, model_dir=whole
    )
    for step, n_layers in ((8, 1), (9, 2)):
        checkpoint = trainer.read_checkpoint(whole / f"regular_{step}")
        assert trainer.bound_model(checkpoint).model.n_layers == n_layers
        assert trainer.evaluate(checkpoint).metrics["eval"]["loss"] == points[step]["loss"]


def test_a_run_may_end_before_its_last_stage_and_be_taken_up_again(tmp_path: Path) -> None:
    run(tmp_path, params(8, export_checkpoint=False))
    assert small.files(tmp_path)[-1] == "regular_8"
    for _ in range(2):
        assert run(tmp_path, params(16, export_checkpoint=False))[0].model.n_layers == 2
    # An evaluation writes nothing, and may look past the steps to train.
    assert run(tmp_path, params(5), mode="eval")[0].model.n_layers == 2
    assert not (tmp_path / "exported_ckpts").exists()


def test_a_run_that_only_trains_goes_on_after_a_stage_without_validation_data(tmp_path: Path) -> None:
    class TrainingPolicy(StackingPolicy):
        def get_eval_dataset(self, stage_id: int) -> Any:
            raise AssertionError

    for n_steps in (8, 16):
        config = params(n_steps, export_checkpoint=False)
        trainer = trellis.ProgressiveTrainer(
            trellis.get_task(config.task), config=config.trainer, model_dir=tmp_path, evaluate=False
        )
        trainer.policy = TrainingPolicy(trainer.task, config=config.trainer)
        summary = trainer.train()
        assert summary is not None
        assert summary.step == n_steps


def test_what_cannot_work_is_told_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_steps is 17, but the stages of StackingPolicy have 8 \\+ 8 = 16"):
        run(tmp_path, params(17))
    with pytest.raises(ConfigError, match="trainer.progressive is not set"):
        run(tmp_path, params(progressive=None))
    unknown = params()
    unknown.trainer.progressive = trellis.ProgressiveConfig()  # type: ignore[attr-defined]
    with pytest.raises(RegistryError, match="no progressive policy for .*ProgressiveConfig"):
        run(tmp_path, unknown)
    with pytest.raises(ArgumentError, match="has 2 stages, of \\[0, 0\\] steps"):
        run(tmp_path, params(progressive={"num_steps": 0}))
    with pytest.raises(ConfigError, match="trainer.export_checkpoint_interval is 0"):
        run(tmp_path, params(export_checkpoint_interval=0))
    assert small.files(tmp_path) == []


class WrongPolicy(StackingPolicy):
    """Returns what it is told to."""

    model: Any = None
    data: Any = None

    def get_model(self, stage_id: int, old_model: trellis.BoundModel | None = None) -> Any:
        return self.model or super().get_model(stage_id, old_model)

    def get_train_dataset(self, stage_id: int) -> Any:
        return self.data or super().get_train_dataset(stage_id)


def wrong(model_dir: Path, **returned: Any) -> trellis.ProgressiveTrainer:
    """A trainer whose policy returns what it should not."""
    config = params(checkpoint_interval=100)
    trainer = trellis.ProgressiveTrainer(
        trellis.get_task(config.task), config=config.trainer, runtime=config.runtime, model_dir=model_dir
    )
    trainer.policy = WrongPolicy(trainer.task, config=config.trainer, runtime=config.runtime)
    vars(trainer.policy).update(returned)
    return trainer


def test_a_policy_that_returns_what_does_not_fit_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="WrongPolicy.get_model\\(0\\) returned a Stacked"):
        wrong(tmp_path, model=Stacked(1)).train()
    given = {"layer_0": {"bias": np.zeros(3, np.float32)}, "layer_7": np.zeros(2, np.float32)}
    with pytest.raises(ModelError) as caught:
        wrong(tmp_path, model=trellis.BoundModel(Stacked(1), params=given)).train()
    assert "params/layer_0/bias: float32[3] given, float32[8] in the model" in str(caught.value)
    assert "params/layer_7: float32[2] given, — in the model" in str(caught.value)
    iterator = (tiny.stream(16).batch(step) for step in range(100))
    with pytest.raises(ArgumentError, match="get_train_dataset\\(1\\) returned the iterator of the stage before"):
        wrong(tmp_path, data=iterator).train()


def test_the_first_stage_starts_from_parts_that_task_and_policy_give(tmp_path: Path) -> None:
    of_policy = {"classifier": {"bias": np.full(4, 2, np.float32)}}
    trainer = wrong(tmp_path, model=trellis.BoundModel(Stacked(1), params=of_policy))
    of_task = {"params": {"layer_0": {"bias": np.ones(8, np.float32)}}}
    trainer.task.initialize = lambda model: of_task  # type: ignore[method-assign]
    own = Stacked(1).init(jax.random.key(0), tiny.examples()[0])["params"]
    stage = trainer.build_stage(0)
    found = stage.initialize(trellis.BoundModel(stage.model, params=own))["params"]
    np.testing.assert_array_equal(found["layer_0"]["bias"], 1)
    np.testing.assert_array_equal(found["classifier"]["bias"], 2)
    np.testing.assert_array_equal(found["classifier"]["kernel"], own["classifier"]["kernel"])


def test_stages_that_save_nothing_learn_the_same(tmp_path: Path) -> None:
    expected, _ = run(tmp_path / "saved")
    model, _ = run(tmp_path / "not", params(checkpoint_interval=0, export_checkpoint=False))
    tiny.assert_equal(model.params, expected.params)
    assert small.files(tmp_path / "not") == []
    with pytest.raises(ConfigError, match="checkpoint_interval is 0, and trainer.export_checkpoint takes its interval"):
        run(tmp_path, params(checkpoint_interval=0))
