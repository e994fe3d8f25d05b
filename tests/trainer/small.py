"""A small task and its config, for tests of what runs it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

import trellis
from tests import tiny


@dataclass
class SmallConfig(trellis.TaskConfig):
    """Data that may hold a bad batch, at whose step the loss is not a number."""

    bad_batches: list[int] | None = None
    train_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=16, is_training=True)
    validation_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=100, is_training=False)


class SmallModel(nn.Module):
    """Two layers with names."""

    @nn.compact
    def __call__(self, x: Any, training: bool = False) -> Any:
        """Logits of four classes."""
        x = nn.relu(nn.Dense(8, name="encoder")(x))
        return nn.Dense(4, name="classifier")(nn.Dropout(0.2, deterministic=not training)(x))


class SpoiltStream:
    """A stream with batches of NaN."""

    def __init__(self, stream: trellis.ExampleStream, bad_batches: list[int]) -> None:
        self._stream, self._bad = stream, bad_batches

    def batch(self, step: int) -> Any:
        """The batch of one step."""
        x, y = self._stream.batch(step)
        return (np.full_like(x, np.nan) if step in self._bad else x), y


@trellis.register_task_cls(SmallConfig)
class SmallTask(trellis.Task):
    """Which of the first four inputs is the largest."""

    def build_model(self) -> Any:
        return SmallModel()

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        if not params.is_training:
            return tiny.stream(params.global_batch_size, shuffle=False, n_epochs=1)
        stream = tiny.stream(params.global_batch_size, seed=input_context.seed)
        bad = self.task_config.bad_batches
        return SpoiltStream(stream, bad) if bad else stream

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return tiny.cross_entropy(model_outputs, labels)

    def build_metrics(self, training: bool = True) -> Any:
        return {"accuracy": trellis.Accuracy()}

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
        logs = super().validation_step(inputs, model, metrics)
        return {**logs, "right": jnp.argmax(model(inputs[0]), axis=-1) == inputs[1]}

    def aggregate_logs(self, state: Any, step_outputs: Any) -> Any:
        return [*(state or []), step_outputs["right"]]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
        assert [len(part) for part in aggregated_logs] == [100, 100, 56]
        return {"host_accuracy": float(np.concatenate(aggregated_logs).mean()), "at": float(global_step or -1)}


@trellis.register_config_factory("tests/small")
def small() -> trellis.ExperimentConfig:
    """The config that a file changes."""
    return params()


def params(n_steps: int = 20, *, task: dict[str, Any] | None = None, **trainer: Any) -> trellis.ExperimentConfig:
    """A config with intervals of 5 steps."""
    intervals = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 5)
    rate = {"type": "constant", "constant": {"learning_rate": 1e-2}}
    config = trellis.ExperimentConfig(
        task=SmallConfig(),
        trainer=trellis.TrainerConfig(
            optimizer_config={"optimizer": {"type": "adam"}, "learning_rate": rate}, train_steps=n_steps, **intervals
        ),
        runtime=trellis.RuntimeConfig(distribution_strategy="one_device"),
    )
    config.override({"task": task or {}, "trainer": trainer})
    return config


def files(directory: Path) -> list[str]:
    """The names of the checkpoint files."""
    return sorted(
        path.parent.name for path in directory.glob("*_*/manifest.json") if not path.parent.name.startswith(".")
    )
