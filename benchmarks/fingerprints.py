"""What the fingerprints of a run cost: the share of the steps between two checkpoint files that they take.

    python benchmarks/fingerprints.py --rounds 20

Two states: that of a small network, whose steps are trained and timed beside it, and one as large as BERT-base with
Adam, of which only the bytes count. Times are the least of several rounds: the rest is what else the machine does.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import trellis
from trellis.extensions import fingerprint

INTERVAL = 1000
LARGE_SHAPES = [(30522, 768), *[(768, 768)] * 48, *[(768, 3072)] * 24, *[(768,)] * 150]


def least_time(work: Callable[[], Any], rounds: int) -> float:
    """The least seconds that some work takes, after one time that is not counted."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:])


class Network(nn.Module):
    """A multilayer perceptron, 784-128-10."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(10)(nn.relu(nn.Dense(128)(x)))


def small(rounds: int) -> tuple[float, float]:
    """Seconds of a fingerprint, and of the steps between two."""
    generator = np.random.default_rng(0)
    images = generator.normal(size=(4096, 784)).astype(np.float32)
    labels = generator.integers(10, size=4096).astype(np.int32)
    task = trellis.TrainTask(
        apply=Network().apply,
        optimizer=optax.adam(1e-3),
        loss=lambda logits, labels: optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(),
        data=trellis.ExampleStream((images, labels), batch_size=32),
    )
    loop = trellis.TrainLoop(
        init=Network().init, task=task, n_steps_per_checkpoint=INTERVAL, n_steps=10**9, stdout=False, grads=False
    )
    steps = least_time(loop.next_checkpoint, 3)
    checkpoint = loop.next_checkpoint()
    trees = [checkpoint.model_params, checkpoint.optimizer_state, checkpoint.last_batch()]
    return least_time(lambda: [fingerprint(tree).digits for tree in trees], rounds), steps


def large(rounds: int) -> tuple[float, float]:
    """Seconds of a fingerprint, and gigabytes of the state."""
    state = {f"{kind}{number}": jnp.ones(shape) for kind in "pmv" for number, shape in enumerate(LARGE_SHAPES)}
    n_bytes = sum(leaf.nbytes for leaf in jax.block_until_ready(state).values())
    return least_time(lambda: fingerprint(state).digits, rounds), n_bytes / 1e9


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    seconds, steps = small(rounds)
    share = seconds / steps
    print(f"784-128-10: {1e3 * seconds:.2f} ms; {INTERVAL} steps take {1e3 * steps:.0f} ms: {share:.2%}")
    seconds, gigabytes = large(rounds)
    least = 200 * seconds / INTERVAL
    print(f"as BERT-base: {seconds:.2f} s for {gigabytes:.2f} GB; 0.5 % or less if a step takes {1e3 * least:.0f} ms")


if __name__ == "__main__":
    main()
