"""Trains a Flax NNX module, with dropout and batch statistics, to read the seven segments of dim digital displays."""

import numpy as np
import optax
from flax import nnx

import trellis
from trellis.bridges import NNXModel

LIT = ["abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg"]


class Classifier(nnx.Module):
    """Two layers."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(7, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.logits = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.logits(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


def displays(n, seed):
    """The brightness of the segments of `n` displays, and the digits that they show."""
    random = np.random.default_rng(seed)
    digits = random.integers(10, size=n)
    lit = np.array([[segment in LIT[digit] for segment in "abcdefg"] for digit in digits])
    return (lit + random.normal(scale=0.25, size=lit.shape)).astype(np.float32), digits.astype(np.int32)


def cross_entropy(logits, digits):
    """The loss."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, digits).mean()


def accuracy(logits, digits):
    """The share of displays that are read right."""
    return (logits.argmax(-1) == digits).mean()


model = NNXModel(Classifier)
data = trellis.ExampleStream(displays(n=10_000, seed=0), batch_size=64)
unseen = trellis.ExampleStream(displays(n=1_000, seed=1), batch_size=500, n_epochs=1)
loop = trellis.TrainLoop(
    init=model.init,
    task=trellis.TrainTask(apply=model.apply, optimizer=optax.adam(1e-2), loss=cross_entropy, data=data),
    collections={"apply": ["dropout"]},
    n_steps=1000,
    n_steps_per_checkpoint=200,
)
evaluate = trellis.EvalLoop(task=trellis.EvalTask(apply=model.eval_apply, metrics={"accuracy": accuracy}, data=unseen))
for checkpoint in loop:
    print(f"Step {checkpoint.step}: accuracy {evaluate(checkpoint).metrics['eval']['accuracy']:.1%}")

classifier = model.bind({"params": checkpoint.model_params, **checkpoint.model_state})
segments, digits = displays(n=8, seed=2)
print(f"Displays that show {digits} are read as {classifier(segments).argmax(-1)}.")
