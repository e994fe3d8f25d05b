"""The fields and defaults that existing files and programs rely on."""

from typing import Any

import pytest

from trellis.config import Config, without_effect
from trellis.config.fields import branches
from trellis.data import DataConfig
from trellis.errors import ConfigError
from trellis.experiments import ExperimentConfig
from trellis.optimizers import EMAConfig, OptimizationConfig
from trellis.runtime import RuntimeConfig
from trellis.tasks import DifferentialPrivacyConfig, TaskConfig
from trellis.trainer import ProgressiveTrainerConfig, TrainerConfig

CLIP = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}

TRAINER: dict[str, Any] = {
    "optimizer_config": OptimizationConfig().as_dict(),
    "train_tf_while_loop": True,
    "train_tf_function": True,
    "eval_tf_function": True,
    "eval_tf_while_loop": False,
    "allow_tpu_summary": False,
    "steps_per_loop": 1000,
    "summary_interval": 1000,
    "checkpoint_interval": 1000,
    "max_to_keep": 5,
    "continuous_eval_timeout": 3600,
    "train_steps": 0,
    "validation_steps": -1,
    "validation_interval": 1000,
    "best_checkpoint_export_subdir": "",
    "best_checkpoint_eval_metric": "",
    "best_checkpoint_metric_comp": "higher",
    "loss_upper_bound": 1e6,
    "recovery_begin_steps": 0,
    "recovery_max_trials": 0,
    "validation_summary_subdir": "validation",
    "preemption_on_demand_checkpoint": True,
}
OUR_TRAINER: dict[str, Any] = {
    "n_microbatches": 1,
    "keep_gradients": False,
    "lora": None,
    "n_fused_steps": None,
    "train_epochs": 0.0,
    "early_stopping_steps": 0,
    "blow_up_factor": 10.0,
    "report_details": False,
    "trackers": [],
}
RUNTIME: dict[str, Any] = {
    "distribution_strategy": "mirrored",
    "enable_xla": False,
    "gpu_thread_mode": None,
    "dataset_num_private_threads": None,
    "per_gpu_thread_count": 0,
    "tpu": None,
    "num_gpus": 0,
    "worker_hosts": None,
    "task_index": -1,
    "all_reduce_alg": None,
    "num_packs": 1,
    "mixed_precision_dtype": None,
    "loss_scale": None,
    "run_eagerly": False,
    "batchnorm_spatial_persistent": False,
    "tpu_enable_xla_dynamic_padder": None,
    "num_cores_per_replica": 1,
    "default_shard_dim": -1,
    "use_tpu_mp_strategy": False,
}
OUR_RUNTIME: dict[str, Any] = {"mesh": {"data": -1, "fsdp": 1, "model": 1}, "seed": 0, "exact": True}
DATA: dict[str, Any] = {
    "input_path": "",
    "tfds_name": "",
    "tfds_split": "",
    "global_batch_size": 0,
    "is_training": None,
    "drop_remainder": True,
    "shuffle_buffer_size": 100,
    "cache": False,
    "cycle_length": None,
    "block_length": 1,
    "ram_budget": None,
    "deterministic": None,
    "sharding": True,
    "enable_tf_data_service": False,
    "tf_data_service_address": None,
    "tf_data_service_job_name": None,
    "tfds_data_dir": "",
    "tfds_as_supervised": False,
    "tfds_skip_decoding_feature": "",
    "enable_shared_tf_data_service_between_parallel_trainers": False,
    "apply_tf_data_service_before_batching": False,
    "trainer_id": None,
    "seed": None,
    "prefetch_buffer_size": None,
    "autotune_algorithm": None,
}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (TrainerConfig(), TRAINER | OUR_TRAINER),
        (RuntimeConfig(), RUNTIME | OUR_RUNTIME),
        (DataConfig(), DATA),
        (
            TaskConfig(),
            {
                "init_checkpoint": "",
                "init_parts": [],
                "model": None,
                "train_data": DATA,
                "validation_data": DATA,
                "name": None,
                "differential_privacy_config": None,
                "allow_image_summary": False,
            },
        ),
        (DifferentialPrivacyConfig(), {"clipping_norm": 100000000.0, "noise_multiplier": 0.0}),
        (
            EMAConfig(),
            CLIP
            | {
                "name": "ExponentialMovingAverage",
                "trainable_weights_only": True,
                "average_decay": 0.99,
                "start_step": 0,
                "dynamic_decay": True,
            },
        ),
        (
            ProgressiveTrainerConfig(),
            TRAINER
            | OUR_TRAINER
            | {
                "progressive": None,
                "export_checkpoint": True,
                "export_checkpoint_interval": None,
                "export_max_to_keep": None,
                "export_only_final_stage_ckpt": True,
            },
        ),
    ],
)
def test_fields_and_defaults_are_the_published_ones(config: Config, fields: dict[str, Any]) -> None:
    assert config.as_dict() == fields


def test_an_experiment_has_a_task_a_trainer_and_a_runtime() -> None:
    config = ExperimentConfig()
    assert list(config.as_dict()) == ["task", "trainer", "runtime"]
    assert config.as_dict()["trainer"]["optimizer_config"] == {
        "optimizer": {"type": None},
        "ema": None,
        "learning_rate": {"type": None},
        "warmup": {"type": None},
        "frozen": [],
        "groups": [],
    }


def test_model_parallelism_is_the_published_mapping() -> None:
    assert RuntimeConfig().model_parallelism() == {"num_cores_per_replica": 1, "default_shard_dim": -1}


def test_input_paths_are_text_a_list_or_named() -> None:
    assert DataConfig(input_path="a*,b*").input_path == "a*,b*"
    assert DataConfig(input_path=["a", "b"]).input_path == ["a", "b"]
    assert DataConfig(input_path={"x": "a", "y": ["b", "c"]}).as_dict()["input_path"] == {"x": "a", "y": ["b", "c"]}
    with pytest.raises(ConfigError, match="input_path takes text or a list, each text or a mapping"):
        DataConfig(input_path=3)  # type: ignore[arg-type]


def test_every_field_without_effect_exists() -> None:
    configs = [ProgressiveTrainerConfig(), RuntimeConfig(), TaskConfig()]
    for config in configs:
        for _, branch in branches(config):
            assert set(branch.no_effect) <= set(vars(branch))


def test_fields_that_nothing_reads_are_said_to_have_no_effect() -> None:
    settings = {
        "runtime": {"worker_hosts": "a:1,b:1", "task_index": 1, "run_eagerly": True},
        "task": {"allow_image_summary": True, "train_data": {"prefetch_buffer_size": 8}},
    }
    config = ExperimentConfig()
    config.override(settings)
    assert [idle.path for idle in without_effect(config)] == [
        "task.allow_image_summary",
        "task.train_data.prefetch_buffer_size",
        "runtime.worker_hosts",
        "runtime.task_index",
        "runtime.run_eagerly",
    ]


def test_loss_scale_is_dynamic_or_a_number() -> None:
    assert RuntimeConfig(loss_scale="dynamic").loss_scale == "dynamic"
    assert RuntimeConfig(loss_scale=128).loss_scale == 128.0
    with pytest.raises(ConfigError, match="loss_scale takes dynamic or a number or null, not 'fixed'."):
        RuntimeConfig(loss_scale="fixed")  # type: ignore[arg-type]
