"""What every contender trains: the sizes of two small models, and the same data in memory."""

from dataclasses import dataclass

import numpy as np

BATCH_SIZE = 32
LEARNING_RATE = 1e-3
N_CLASSES = 10
N_EXAMPLES = 32_000
N_SCANNED_STEPS = 50

N_PIXELS, MLP_WIDTH = 784, 128
N_TOKENS, LSTM_WIDTH, LSTM_LENGTH = 256, 32, 16

WORKLOADS = ("mlp", "lstm")

_N_STEPS_IN_TABLE = 100 * N_SCANNED_STEPS


@dataclass(frozen=True)
class Workload:
    """Inputs and labels as NumPy arrays, and the order in which the hand-written loops visit them."""

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    order: np.ndarray

    def indices(self, step: int, n: int = 1) -> np.ndarray:
        """The examples of `n` steps: a slice of a table made beforehand, so that no baseline pays for shuffling."""
        start = step % _N_STEPS_IN_TABLE * BATCH_SIZE
        return self.order[start : start + n * BATCH_SIZE]

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch of one step, gathered."""
        indices = self.indices(step)
        return np.take(self.inputs, indices, axis=0), np.take(self.labels, indices, axis=0)

    def stacked_batches(self, step: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The batches of `n` steps, gathered by one index."""
        indices = self.indices(step, n).reshape(n, BATCH_SIZE)
        return np.take(self.inputs, indices, axis=0), np.take(self.labels, indices, axis=0)


def build_workload(name: str, *, n_examples: int = N_EXAMPLES) -> Workload:
    """The data of the MLP (images) or of the LSTM (token sequences), the same in every process."""
    generator = np.random.default_rng(0)
    if name == "mlp":
        inputs = generator.normal(size=(n_examples, N_PIXELS)).astype(np.float32)
    else:
        inputs = generator.integers(0, N_TOKENS, size=(n_examples, LSTM_LENGTH), dtype=np.int32)
    labels = generator.integers(0, N_CLASSES, size=n_examples, dtype=np.int32)
    n_epochs = -(-_N_STEPS_IN_TABLE * BATCH_SIZE // n_examples)
    order = np.concatenate([generator.permutation(n_examples) for _ in range(n_epochs)])
    return Workload(name, inputs, labels, order)
