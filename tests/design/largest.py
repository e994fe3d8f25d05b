"""A task and its experiment in a user's own module: which of the first four inputs is the largest."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import gin
import optax

import trellis as cfg
from tests import tiny
from trellis.config import Config


@dataclass
class ModelConfig(Config):
    width: int = 8


@dataclass
class LargestConfig(cfg.TaskConfig):
    """What the published example has: a place to start from, settings of the model and of the data."""

    init_checkpoint: str = ""
    hub_module_url: str = ""
    metric_type: str = "accuracy"
    model: ModelConfig = ModelConfig()
    train_data: cfg.DataConfig = cfg.DataConfig(global_batch_size=16, is_training=True)
    validation_data: cfg.DataConfig = cfg.DataConfig(global_batch_size=64, is_training=False)


class PlainBlock(nn.Module):
    """A block that gin can replace."""

    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.relu(nn.Dense(self.width)(x))


@gin.configurable
class GatedBlock(nn.Module):
    """A block with a gate."""

    width: int
    sharpness: float = 1.0

    @nn.compact
    def __call__(self, x: Any) -> Any:
        gate = nn.sigmoid(self.sharpness * nn.Dense(self.width, name="gate")(x))
        return gate * nn.Dense(self.width)(x)


@gin.configurable
def build_blocks(config: ModelConfig, block_cls: Any = PlainBlock) -> Any:
    """The encoder that the config asks for, of the blocks that gin names."""
    return block_cls(config.width)


class Largest(nn.Module):
    """An encoder and a classifier."""

    encoder: nn.Module

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(4, name="classifier")(self.encoder(x))


@cfg.register_task_cls(LargestConfig)
class LargestTask(cfg.Task):
    """Overrides what users usually override."""

    def build_model(self) -> Any:
        return Largest(build_blocks(self.task_config.model))

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        n_epochs = None if params.is_training else 1
        return tiny.stream(params.global_batch_size, shuffle=params.is_training, n_epochs=n_epochs)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model_outputs, labels).mean()

    def build_metrics(self, training: bool = True) -> Any:
        return {self.task_config.metric_type: cfg.Accuracy()}


@cfg.register_config_factory("largest/classifier")
def largest_classifier() -> cfg.ExperimentConfig:
    """Tells which of four inputs is the largest."""
    rate = {"type": "polynomial", "polynomial": {"initial_learning_rate": 0.05, "end_learning_rate": 0.0}}
    every = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 5)
    return cfg.ExperimentConfig(
        task=LargestConfig(
            train_data=cfg.DataConfig(global_batch_size=32, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=64, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            optimizer_config={"optimizer": {"type": "adamw"}, "learning_rate": rate}, train_steps=10, **every
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
        restrictions=["task.train_data.is_training != None", "task.validation_data.is_training != None"],
    )
