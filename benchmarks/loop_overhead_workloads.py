"""What every contender trains: the sizes of small models, and the same data in memory."""

from dataclasses import dataclass

import numpy as np

LEARNING_RATE = 1e-3
N_CLASSES = 10
N_SCANNED_STEPS = 50

N_PIXELS, MLP_WIDTH = 784, 128
N_TOKENS, LSTM_WIDTH, LSTM_LENGTH = 256, 32, 16

CNN_SHAPE, CNN_WIDTHS = (32, 32, 3), (16, 32)
FLAX_CNN_SHAPE, FLAX_CNN_WIDTHS, FLAX_CNN_HIDDEN = (28, 28, 1), (32, 64), 256


@dataclass(frozen=True)
class Sizes:
    """How much of a workload is measured at once."""

    batch_size: int
    n_steps: int
    """Those of one measurement: an epoch, so that a peer that thinks in epochs starts only one."""
    is_scanned: bool = True
    """Whether several steps are put into one scan: not those of convolutions, which XLA makes slow there on CPUs."""

    @property
    def n_examples(self) -> int:
        """How many there are."""
        return self.batch_size * self.n_steps


WORKLOADS = {
    "mlp": Sizes(32, 1000),
    "lstm": Sizes(32, 1000),
    "cnn": Sizes(128, 50, is_scanned=False),
    "flax_cnn": Sizes(32, 50, is_scanned=False),
}

_N_STEPS_IN_TABLE = 100 * N_SCANNED_STEPS


@dataclass(frozen=True)
class Workload:
    """Inputs and labels as NumPy arrays, and the order in which the hand-written loops visit them."""

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    order: np.ndarray

    @property
    def batch_size(self) -> int:
        """How many examples a batch has."""
        return WORKLOADS[self.name].batch_size

    def indices(self, step: int, n: int = 1) -> np.ndarray:
        """The examples of `n` steps: a slice of a table made beforehand, so that no baseline pays for shuffling."""
        start = step % _N_STEPS_IN_TABLE * self.batch_size
        return self.order[start : start + n * self.batch_size]

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch of one step, gathered."""
        indices = self.indices(step)
        return np.take(self.inputs, indices, axis=0), np.take(self.labels, indices, axis=0)

    def stacked_batches(self, step: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The batches of `n` steps, gathered by one index."""
        indices = self.indices(step, n).reshape(n, self.batch_size)
        return np.take(self.inputs, indices, axis=0), np.take(self.labels, indices, axis=0)


def build_workload(name: str, *, n_examples: int | None = None) -> Workload:
    """Images, or the LSTM's token sequences, the same in every process."""
    sizes = WORKLOADS[name]
    n_examples = n_examples or sizes.n_examples
    generator = np.random.default_rng(0)
    if name == "lstm":
        inputs = generator.integers(0, N_TOKENS, size=(n_examples, LSTM_LENGTH), dtype=np.int32)
    else:
        shape = {"mlp": (N_PIXELS,), "cnn": CNN_SHAPE, "flax_cnn": FLAX_CNN_SHAPE}[name]
        inputs = generator.normal(size=(n_examples, *shape)).astype(np.float32)
    labels = generator.integers(0, N_CLASSES, size=n_examples, dtype=np.int32)
    n_epochs = -(-_N_STEPS_IN_TABLE * sizes.batch_size // n_examples)
    order = np.concatenate([generator.permutation(n_examples) for _ in range(n_epochs)])
    return Workload(name, inputs, labels, order)
