"""The experiment on handwritten digits."""

from trellis.experiments.experiment import ExperimentConfig, register_config_factory
from trellis.optimizers import (
    CosineLrConfig,
    LinearWarmupConfig,
    LrConfig,
    OptimizationConfig,
    OptimizerConfig,
    WarmupConfig,
)
from trellis.tasks import DigitsConfig
from trellis.trainer import TrainerConfig


@register_config_factory("digits/classifier")
def digits_classifier() -> ExperimentConfig:
    """A small network on handwritten digits: a few seconds on any machine."""
    return ExperimentConfig(
        task=DigitsConfig(),
        trainer=TrainerConfig(
            optimizer_config=OptimizationConfig(
                optimizer=OptimizerConfig(type="adam"),
                learning_rate=LrConfig(type="cosine", cosine=CosineLrConfig(initial_learning_rate=3e-3)),
                warmup=WarmupConfig(type="linear", linear=LinearWarmupConfig(warmup_steps=50)),
            ),
            train_steps=500,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=100,
            validation_interval=100,
            best_checkpoint_export_subdir="best",
            best_checkpoint_eval_metric="accuracy",
        ),
        restrictions=["task.train_data.is_training != None", "task.validation_data.is_training != None"],
    )
