"""Programs with the calls of Model Garden's page on its training library, one for each example in it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
from tests.design import largest
from trellis import ExperimentConfig, Trainer, get_exp_config, get_task, run_experiment
from trellis.cli.main import main
from trellis.config import Config
from trellis.errors import ConfigError

HERE = f"--module={largest.__name__}"


def small(n_steps: int = 10, **task: Any) -> ExperimentConfig:
    params = get_exp_config("largest/classifier")
    params.override({"task": task, "trainer": {"train_steps": n_steps}})
    return params


def test_a_task_is_registered_by_the_class_of_its_config() -> None:
    task = get_task(small().task)
    assert type(task) is largest.LargestTask
    assert task.task_config.metric_type == "accuracy"


def test_a_task_starts_as_its_initialize_says_and_only_where_there_is_no_checkpoint_file(tmp_path: Path) -> None:
    started = []

    class FromZero(largest.LargestTask):
        def initialize(self, model: trellis.BoundModel) -> Any:
            started.append(self.task_config.init_checkpoint)
            return jax.tree.map(np.zeros_like, dict(model.variables))

    task = FromZero(small(init_checkpoint="").task)
    run_experiment(small(5), task=task, mode="train", model_dir=tmp_path)
    assert started == [""]
    model, _ = run_experiment(small(10), task=task, mode="train", model_dir=tmp_path)
    assert started == [""]
    assert not np.any(model.params["classifier"]["kernel"]), "no gradient reaches a kernel whose inputs are zero"
    assert np.any(model.params["classifier"]["bias"])


def test_the_parameters_of_an_earlier_run_are_a_place_to_start_from(tmp_path: Path) -> None:
    earlier, _ = run_experiment(small(5), mode="train", model_dir=tmp_path / "earlier")
    params = small(5, init_checkpoint=str(tmp_path / "earlier"))
    trainer = Trainer(
        get_task(params.task), config=params.trainer, runtime=params.runtime, model_dir=tmp_path / "later"
    )
    jax.tree.map(np.testing.assert_array_equal, trainer.initialize().model_params, earlier.params)


def test_a_trainer_takes_a_task_and_trains_it(tmp_path: Path) -> None:
    params = get_exp_config("largest/classifier")
    model_dir = tmp_path / "run"
    task = get_task(params.task, logging_dir=str(model_dir))
    trainer = Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir)

    summary = trainer.train()

    assert summary is not None and summary.step == 10
    assert task.logging_dir == str(model_dir)
    assert {"regular_5", "regular_10"} <= {path.name for path in model_dir.iterdir()}


def test_metrics_may_be_computed_on_the_host(tmp_path: Path) -> None:
    class HostMetrics(largest.LargestTask):
        def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
            features, labels = inputs
            return {"right": self.inference_step(features, model).argmax(-1) == labels}

        def aggregate_logs(self, state: Any, step_outputs: Any) -> Any:
            return [*(state or []), *step_outputs["right"]]

        def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> Any:
            return {"accuracy": float(np.mean(aggregated_logs)), "n_seen": len(aggregated_logs)}

    params = small(5)
    _, logs = run_experiment(
        params, task=HostMetrics(params.task), mode="train_and_post_eval", model_dir=tmp_path / "run"
    )
    assert logs["n_seen"] == 256
    assert 0 < logs["accuracy"] <= 1


def test_a_config_is_a_dataclass_and_mappings_become_the_classes_that_it_names() -> None:
    config = largest.LargestConfig(model={"width": 4}, train_data={"input_path": "a*"})  # type: ignore[arg-type]
    assert type(config.model) is largest.ModelConfig
    assert type(config.train_data) is trellis.DataConfig
    assert isinstance(config, Config)
    assert config.as_dict()["model"] == {"width": 4}
    with pytest.raises(ConfigError, match="wdth is not a field of ModelConfig"):
        largest.LargestConfig(model={"wdth": 4})  # type: ignore[arg-type]


def test_an_experiment_is_registered_under_a_name_and_made_anew_each_time() -> None:
    one, other = get_exp_config("largest/classifier"), get_exp_config("largest/classifier")
    one.override({"task": {"model": {"width": 99}}})
    assert (one.task.model.width, other.task.model.width) == (99, 8)
    assert (one.trainer.train_steps, one.task.train_data.global_batch_size) == (10, 32)


def test_a_yaml_file_sets_model_data_and_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wide.yaml").write_text(
        "task:\n  model:\n    width: 12\n  train_data:\n    global_batch_size: 48\ntrainer:\n  train_steps: 40\n"
    )
    flags = ["--experiment=largest/classifier", HERE, "--config_file=wide.yaml", "--model_dir=run"]
    assert main(["plan", *flags]) == 0
    out = capsys.readouterr().out
    assert "batches of 48, (float32[48,8], int32[48])" in out
    assert "Steps      40, which see 1,920 examples" in out
    assert "encoder     108" in out


def test_gin_replaces_the_blocks_of_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gated_encoder.gin").write_text("build_blocks.block_cls = @GatedBlock\nGatedBlock.sharpness = 2.0\n")
    flags = ["--experiment=largest/classifier", HERE, "--model_dir=run", "--mode=train"]
    assert main(["train", *flags, "--gin_file=gated_encoder.gin"]) == 0
    written = (tmp_path / "run/operative_config.train.gin").read_text()
    assert "build_blocks.block_cls = @GatedBlock\n" in written
    assert "GatedBlock.sharpness = 2.0\n" in written
    saved = trellis.CheckpointFileReader(dir=tmp_path / "run", target=lambda *_: {}).read()
    assert saved is not None and "gate" in saved.model_params["encoder"]


def test_a_trivial_experiment_is_run_locally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"--experiment=largest/classifier --model_dir={tmp_path}/sandbox/ --mode=train --alsologtostderr"
    assert main(["train", HERE, *command.split()]) == 0
    assert "Done: step 10 of 10.\n" in capsys.readouterr().out


def test_the_published_file_and_gin_file_of_bert_are_found_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--experiment=bert/local", f"--model_dir={tmp_path}/sandbox/", "--mode=train"]
    assert main(["plan", *flags, "--gin_file=/nlp/gin/talking_gated_encoder.gin"]) == 0
    assert "Model      BertPretrainer: 830,736 parameters" in capsys.readouterr().out
    file = "--config_file=/nlp/bert/experiments/wiki_books_pretrain.yaml"
    assert main(["config", "show", "--experiment=bert/pretraining", file]) == 0
    assert "wiki_books_pretrain.yaml:" in capsys.readouterr().out
