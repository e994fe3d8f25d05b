"""Grows a network as it trains: each stage starts with the layers of the one before, twice.

python examples/04_progressive.py --model_dir=runs/04_progressive
trellis train --module=examples/04_progressive.py --experiment=rows/stacking --model_dir=runs/rows
"""

import argparse
from dataclasses import dataclass

import flax.linen as nn
import numpy as np
import optax

import trellis


@dataclass
class RowsConfig(trellis.TaskConfig):
    """Which of four letters comes first of those that a row has twice or more."""

    train_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=64, is_training=True, seed=1)
    validation_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=200, is_training=False, seed=2)


@dataclass
class StackingConfig(trellis.ProgressiveConfig):
    """One layer, then two, then four."""

    num_stages: int = 3
    steps_per_stage: int = 200


class Encoder(nn.Module):
    """Residual layers between an embedding of the row and a classifier."""

    n_layers: int

    @nn.compact
    def __call__(self, letters):
        """Logits of the four letters."""
        x = nn.Dense(64, name="row")(nn.Embed(4, 8, name="letters")(letters).reshape(letters.shape[0], -1))
        for number in range(self.n_layers):
            x = Layer(name=f"layer_{number}")(x)
        return nn.Dense(4, name="classifier")(x)


class Layer(nn.Module):
    """A feedforward block, added to what it was given."""

    @nn.compact
    def __call__(self, x):
        """The same shape."""
        return x + nn.Dense(64)(nn.relu(nn.Dense(64)(nn.LayerNorm()(x))))


@trellis.register_policy_cls(StackingConfig)
class StackingPolicy(trellis.ProgressivePolicy):
    """Doubles the layers at each stage; all other parameters stay as they are."""

    def num_stages(self):
        return self.config.progressive.num_stages

    def num_steps(self, stage_id):
        return self.config.progressive.steps_per_stage

    def get_model(self, stage_id, old_model=None):
        params = {} if old_model is None else dict(old_model.params)
        if old_model is not None:
            n_layers = old_model.model.n_layers
            params |= {f"layer_{n_layers + number}": params[f"layer_{number}"] for number in range(n_layers)}
        return trellis.BoundModel(Encoder(n_layers=2**stage_id), params=params)


@trellis.register_task_cls(RowsConfig)
class RowsTask(trellis.Task):
    """Reads rows of six letters."""

    def build_inputs(self, params, input_context=None):
        rows = np.random.default_rng(params.seed).integers(4, size=(4000, 6), dtype=np.int32)
        counts = (rows[:, :, None] == rows[:, None, :]).sum(axis=2)
        labels = rows[np.arange(len(rows)), (counts > 1).argmax(axis=1)]
        n_epochs = None if params.is_training else 1
        return trellis.ExampleStream((rows, labels), batch_size=params.global_batch_size, n_epochs=n_epochs)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return optax.softmax_cross_entropy_with_integer_labels(model_outputs, labels).mean()

    def build_metrics(self, training=True):
        return {"accuracy": trellis.Accuracy()}


@trellis.register_config_factory("rows/stacking")
def rows_stacking():
    """A network of one layer, then two, then four, on rows of letters."""
    adam = {"optimizer": {"type": "adam"}, "learning_rate": {"type": "constant", "constant": {"learning_rate": 2e-3}}}
    every = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 100)
    settings = {"optimizer_config": adam, "progressive": StackingConfig(), "train_steps": 600, **every}
    return trellis.ExperimentConfig(task=RowsConfig(), trainer=trellis.ProgressiveTrainerConfig(settings))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_dir", default="runs/04_progressive")
    flags = parser.parse_args()
    params = trellis.get_exp_config("rows/stacking")
    model, metrics = trellis.run_experiment(
        params, mode="train_and_eval", run_post_eval=True, model_dir=flags.model_dir
    )
    print(f"{model.model.n_layers} layers: {metrics}")
