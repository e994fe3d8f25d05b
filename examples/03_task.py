"""Trains a task of one's own: registers it with its experiment, then runs what the command line says.

python examples/03_task.py --params_override=task.hidden_size=32,trainer.train_steps=500
"""

import argparse
from dataclasses import dataclass

import flax.linen as nn
import numpy as np
import optax

import trellis
from trellis.experiments import resolve


@dataclass
class SpiralsConfig(trellis.TaskConfig):
    """Which of three spiral arms a point lies on."""

    hidden_size: int = 64
    noise: float = 0.15
    train_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=64, is_training=True, seed=1)
    validation_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=64, is_training=False, seed=2)


class Classifier(nn.Module):
    """Two hidden layers."""

    hidden_size: int

    @nn.compact
    def __call__(self, points):
        """Logits of the three arms."""
        for _ in range(2):
            points = nn.relu(nn.Dense(self.hidden_size)(points))
        return nn.Dense(3)(points)


@trellis.register_task_cls(SpiralsConfig)
class SpiralsTask(trellis.Task):
    """Tells the arms apart."""

    def build_model(self):
        return Classifier(self.task_config.hidden_size)

    def build_inputs(self, params, input_context=None):
        random = np.random.default_rng(params.seed)
        arm, radius = random.integers(3, size=2000), random.uniform(0.1, 1, size=2000)
        angle = 4 * radius + 2 * np.pi / 3 * arm + random.normal(size=2000) * self.task_config.noise
        points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
        examples = points.astype(np.float32), arm.astype(np.int32)
        n_epochs = None if params.is_training else 1
        return trellis.ExampleStream(examples, batch_size=params.global_batch_size, n_epochs=n_epochs)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return optax.softmax_cross_entropy_with_integer_labels(model_outputs, labels).mean()

    def build_metrics(self, training=True):
        return {"accuracy": trellis.Accuracy()}


@trellis.register_config_factory("spirals/classifier")
def spirals_classifier():
    """Three spiral arms, as a config that files and flags can change."""
    adam = {"optimizer": {"type": "adam"}, "learning_rate": {"type": "constant", "constant": {"learning_rate": 3e-3}}}
    every = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 250)
    trainer = trellis.TrainerConfig({"optimizer_config": adam, "train_steps": 1000, **every})
    return trellis.ExperimentConfig(task=SpiralsConfig(), trainer=trainer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_dir", default="runs/03_task")
    parser.add_argument("--params_override", default="")
    flags = parser.parse_args()
    params = resolve("spirals/classifier", params_override=flags.params_override)
    _, metrics = trellis.run_experiment(params, mode="train_and_post_eval", model_dir=flags.model_dir)
    print(metrics)
