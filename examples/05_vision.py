"""Trains a small convolutional network with batch statistics to read handwritten digits, shifted a little each time.

python examples/05_vision.py --output_dir=runs/05_vision
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import trellis
from trellis.tasks import DigitsConfig


class Reader(nn.Module):
    """Two convolutions, each normalised by the statistics of its batch; evaluated, by their running averages."""

    train: bool = False

    @nn.compact
    def __call__(self, images):
        """Logits of ten digits."""
        for n_channels in (16, 32):
            images = nn.Conv(n_channels, (3, 3), use_bias=False)(images)
            images = nn.relu(nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(images))
            images = nn.max_pool(images, (2, 2), strides=(2, 2))
        return nn.Dense(10)(images.reshape(len(images), -1))


def picture(example):
    """An example of the data set, 64 numbers and a label, as a picture with one channel."""
    pixels, digit = example
    return pixels.reshape(8, 8, 1), digit


def shifted(example, key):
    """The picture, moved by up to one pixel: another way for each key, the same after a resume."""
    image, digit = picture(example)
    row, column = jax.random.randint(key, (2,), 0, 3)
    return jax.lax.dynamic_slice(jnp.pad(image, ((1, 1), (1, 1), (0, 0))), (row, column, 0), (8, 8, 1)), digit


def cross_entropy(logits, digits):
    """The loss."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, digits).mean()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output_dir", default="runs/05_vision")
parser.add_argument("--n_steps", type=int, default=300)
flags = parser.parse_args()

config = DigitsConfig()
digits = trellis.get_task(config)
train, held_out = (digits.build_inputs(side).examples for side in (config.train_data, config.validation_data))
loop = trellis.TrainLoop(
    init=trellis.CheckpointFileReader(dir=flags.output_dir, target=Reader().init),
    task=trellis.TrainTask(
        apply=Reader(train=True).apply,
        optimizer=optax.adam(3e-3),
        loss=cross_entropy,
        data=trellis.ExampleStream(train, batch_size=50, map=jax.jit(jax.vmap(shifted))),
    ),
    n_steps=flags.n_steps,
    n_steps_per_checkpoint=100,
)
evaluate = trellis.EvalLoop(
    task=trellis.EvalTask(
        apply=Reader().apply,
        metrics={"accuracy": trellis.Accuracy()},
        data=trellis.ExampleStream(
            held_out, batch_size=99, shuffle=False, n_epochs=1, map=lambda batch, keys: jax.vmap(picture)(batch)
        ),
    )
)
process = trellis.serial(evaluate, trellis.CheckpointFileWriter(flags.output_dir))
for checkpoint in loop:
    summary = process(checkpoint)
    print(f"Step {summary.step}: accuracy {summary.metrics['eval']['accuracy']:.1%}")
