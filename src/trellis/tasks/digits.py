"""The task of telling handwritten digits apart: small, real, and on every machine.

`digits.csv.gz` is the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine
Learning Repository, 1998, CC BY 4.0), unchanged, as scikit-learn ships it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from trellis.aliases import Batch
from trellis.data import DataConfig, ExampleStream
from trellis.loops import Accuracy, Mean, MetricFunction, cross_entropy, weighted_mean
from trellis.tasks.batch_view import BatchView, view_of_sides
from trellis.tasks.configs import DigitsConfig, InputContext
from trellis.tasks.task import Task, register_task_cls

_FILE = Path(__file__).with_name("digits.csv.gz")
_N_TRAINING_EXAMPLES = 1500


class DigitsClassifier(nn.Module):
    """Logits of ten digits, from pictures of 64 pixels."""

    hidden_size: int
    dropout_rate: float

    @nn.compact
    def __call__(self, images: Any, training: bool = False) -> Any:
        """The logits."""
        hidden = nn.relu(nn.Dense(self.hidden_size, name="encoder")(images))
        hidden = nn.Dropout(self.dropout_rate, deterministic=not training)(hidden)
        return nn.Dense(10, name="classifier")(hidden)


@register_task_cls(DigitsConfig)
class DigitsTask(Task):
    """Tells digits apart: 1,500 pictures to learn from, 297 to be tested on."""

    def build_model(self) -> DigitsClassifier:
        """A network with one hidden layer."""
        return DigitsClassifier(self.task_config.hidden_size, self.task_config.dropout_rate)

    def build_inputs(self, params: DataConfig, input_context: InputContext | None = None) -> ExampleStream:
        """Pairs (pictures, digits): shuffled and without end for training, else all of them once, in order."""
        images, labels = _read_digits()
        side = slice(None, _N_TRAINING_EXAMPLES) if params.is_training else slice(_N_TRAINING_EXAMPLES, None)
        context = input_context or InputContext()
        return ExampleStream(
            (images[side], labels[side]),
            batch_size=params.global_batch_size,
            seed=context.seed if params.seed is None else params.seed,
            shuffle=bool(params.is_training),
            n_epochs=None if params.is_training else 1,
            drop_remainder=params.drop_remainder,
        )

    def view_batch(self, batch: Batch) -> BatchView:
        """The pictures in their shape."""
        images, labels = batch
        view = view_of_sides(images, labels)
        return replace(view, describe=lambda row: {"picture": images[row].reshape(8, 8), "label": int(labels[row])})

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The cross-entropy."""
        return weighted_mean(cross_entropy(model_outputs, labels))

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """The accuracy."""
        return {"accuracy": Accuracy()}


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    rows = np.loadtxt(_FILE, delimiter=",", dtype=np.uint8)
    images, labels = rows[:, :-1], rows[:, -1]
    return (images / 16).astype(np.float32), labels.astype(np.int32)
