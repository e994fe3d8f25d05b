"""A task small enough to train in a test: which of the first four inputs is the largest."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import trellis


class Classifier(nn.Module):
    """A layer, and by wish dropout and batch statistics."""

    train: bool = False
    dropout_rate: float = 0.0
    has_statistics: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Logits of four classes."""
        x = nn.Dense(16, use_bias=not self.has_statistics)(x)
        if self.has_statistics:
            x = nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(x)
        x = nn.Dropout(self.dropout_rate, deterministic=not self.train)(nn.relu(x))
        return nn.Dense(4)(x)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over the batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def accuracy(logits: Any, labels: Any) -> Any:
    """The share of right answers."""
    return (logits.argmax(-1) == labels).mean()


def examples(n: int = 256, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels."""
    x = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
    return x, x[:, :4].argmax(-1).astype(np.int32)


def stream(batch_size: int = 16, **options: Any) -> trellis.ExampleStream:
    """Shuffled batches for ever."""
    return trellis.ExampleStream(examples(), batch_size=batch_size, **options)


def batches(batch_size: int = 16, n: int | None = None) -> Any:
    """The same batches from a generator, which ends after `n`."""
    source, step = stream(batch_size), 0
    while n is None or step < n:
        yield source.batch(step)
        step += 1


def train_task(model: nn.Module | None = None, **options: Any) -> trellis.TrainTask:
    """A task with Adam."""
    model = model or Classifier(train=True)
    given = {"optimizer": optax.adam(1e-2), "loss": cross_entropy, "data": stream()} | options
    return trellis.TrainTask(apply=model.apply, **given)


def train_loop(task: trellis.TrainTask | None = None, **options: Any) -> trellis.TrainLoop:
    """A quiet loop on one device."""
    given = {"init": Classifier().init, "devices": jax.devices()[:1], "stdout": False, "n_fused_steps": 10} | options
    return trellis.TrainLoop(task=task or train_task(), **given)


def eval_loop(model: nn.Module | None = None, **options: Any) -> trellis.EvalLoop:
    """Accuracy and loss on all examples."""
    task = trellis.EvalTask(
        apply=(model or Classifier()).apply,
        metrics={"accuracy": accuracy, "loss": cross_entropy},
        data=options.pop("data", stream(batch_size=100, shuffle=False, n_epochs=1)),
    )
    return trellis.EvalLoop(task=task, **{"devices": jax.devices()[:1]} | options)


def arrays(tree: Any) -> list[np.ndarray]:
    """Copies of the leaves of a tree."""
    return [np.array(leaf, copy=True) for leaf in jax.tree.leaves(tree)]


def assert_equal(one: Any, other: Any) -> None:
    """Asserts that two trees are equal to the bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def checkpoint(step: int = 5, seed: int = 0, **values: Any) -> trellis.Summary:
    """A summary made by hand, with metrics as `eval={"loss": 1.0}`."""
    params = {"Dense_0": {"kernel": jax.random.normal(jax.random.key(seed), (3, 2)), "bias": jnp.zeros(2)}}
    optimizer_state = optax.adam(1e-3).init(params)
    fields = {"grads": None, "loss": 0.5, "n_completed_steps": 1, "elapsed_time": 0.1, "step": step}
    groups = {name: values.pop(name) for name in ("train", "eval") if name in values}
    return trellis.Summary(params, {}, optimizer_state, **fields | values, metrics=groups)
