"""The contenders on JAX: raw loops and Trellis, with the same linen model, loss and optimizer."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from loop_overhead_workloads import (
    CNN_WIDTHS,
    FLAX_CNN_HIDDEN,
    FLAX_CNN_WIDTHS,
    LEARNING_RATE,
    LSTM_WIDTH,
    MLP_WIDTH,
    N_CLASSES,
    N_SCANNED_STEPS,
    N_TOKENS,
    Workload,
)

import trellis

Run = Callable[[int], float]

_NEVER = 10**9
"""A step that no measurement reaches."""


class MLP(nn.Module):
    """784-128-10."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        return nn.Dense(N_CLASSES)(nn.relu(nn.Dense(MLP_WIDTH)(inputs)))


class LSTM(nn.Module):
    """Embedded tokens, one layer, a classifier on the last output; inputs are projected at once, as Keras does it."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        projected = nn.Dense(4 * LSTM_WIDTH)(nn.Embed(N_TOKENS, LSTM_WIDTH)(tokens))
        recurrent = self.param("recurrent", nn.initializers.orthogonal(), (LSTM_WIDTH, 4 * LSTM_WIDTH))

        def advance(carry: tuple[jax.Array, jax.Array], inputs: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            cell, hidden = carry
            into, forget, new, out = jnp.split(inputs + hidden @ recurrent, 4, axis=-1)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(into) * jnp.tanh(new)
            return (cell, nn.sigmoid(out) * jnp.tanh(cell)), None

        start = jnp.zeros((tokens.shape[0], LSTM_WIDTH))
        (_, hidden), _ = jax.lax.scan(advance, (start, start), projected.swapaxes(0, 1))
        return nn.Dense(N_CLASSES)(hidden)


class CNN(nn.Module):
    """Two convolutions, the second with strides, and a classifier on the mean of all places."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        first, second = CNN_WIDTHS
        images = nn.relu(nn.Conv(first, (3, 3))(images))
        images = nn.relu(nn.Conv(second, (3, 3), strides=2)(images))
        return nn.Dense(N_CLASSES)(images.mean((1, 2)))


class FlaxCNN(nn.Module):
    """The one of Flax's tutorial: two convolutions with average pooling, and two layers."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        for width in FLAX_CNN_WIDTHS:
            images = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(images)), (2, 2), strides=(2, 2))
        hidden = nn.relu(nn.Dense(FLAX_CNN_HIDDEN)(images.reshape(images.shape[0], -1)))
        return nn.Dense(N_CLASSES)(hidden)


def build_model(name: str) -> nn.Module:
    """The linen model of a workload."""
    models: dict[str, type[nn.Module]] = {"mlp": MLP, "lstm": LSTM, "cnn": CNN, "flax_cnn": FlaxCNN}
    return models[name]()


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean loss of a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def build_step(model: nn.Module, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """A training step as one writes it by hand."""

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, optimizer_state = state
        inputs, labels = batch
        loss, grads = jax.value_and_grad(lambda params: cross_entropy(model.apply(params, inputs), labels))(params)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), loss

    return step


def build_state(model: nn.Module, optimizer: optax.GradientTransformation, workload: Workload) -> Any:
    """Parameters and the optimizer's state, made by one compiled call."""

    def build(key: jax.Array, inputs: jax.Array) -> Any:
        params = model.init(key, inputs)
        return params, optimizer.init(params)

    return jax.jit(build)(jax.random.key(0), workload.batch(0)[0])


def raw_jit(workload: Workload) -> Run:
    """One call of a jitted step for each batch, state donated, never waiting."""
    model, optimizer = build_model(workload.name), optax.adam(LEARNING_RATE)
    jitted = jax.jit(build_step(model, optimizer), donate_argnums=0)
    state, position = build_state(model, optimizer, workload), 0

    def run(n_steps: int) -> float:
        nonlocal state, position
        started = time.perf_counter()
        for step in range(position, position + n_steps):
            state, loss = jitted(state, workload.batch(step))
        jax.block_until_ready((state, loss))
        position += n_steps
        return time.perf_counter() - started

    return run


def raw_scan(workload: Workload) -> Run:
    """One call of a jitted scan for each 50 batches, state donated, never waiting."""
    model, optimizer = build_model(workload.name), optax.adam(LEARNING_RATE)
    step = build_step(model, optimizer)
    jitted = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches), donate_argnums=0)
    state, position = build_state(model, optimizer, workload), 0

    def run(n_steps: int) -> float:
        nonlocal state, position
        started = time.perf_counter()
        for first in range(position, position + n_steps, N_SCANNED_STEPS):
            state, losses = jitted(state, workload.stacked_batches(first, N_SCANNED_STEPS))
        jax.block_until_ready((state, losses))
        position += n_steps
        return time.perf_counter() - started

    return run


def trellis_loop(n_steps_per_checkpoint: int, n_fused_steps: int | None = None) -> Callable[[Workload], Run]:
    """A TrainLoop that is only iterated, as a user writes it: one iteration, which goes on from slice to slice."""

    def build(workload: Workload) -> Run:
        model = build_model(workload.name)
        stream = trellis.ExampleStream((workload.inputs, workload.labels), batch_size=workload.batch_size)
        loop = trellis.TrainLoop(
            init=model.init,
            task=trellis.TrainTask(
                apply=model.apply, optimizer=optax.adam(LEARNING_RATE), loss=cross_entropy, data=stream
            ),
            rnkey=jax.random.key(0),
            n_steps_per_checkpoint=n_steps_per_checkpoint,
            n_fused_steps=n_fused_steps,
            stdout=False,
        )

        checkpoints = loop(n_steps=_NEVER)

        def run(n_steps: int) -> float:
            started = time.perf_counter()
            for checkpoint in itertools.islice(checkpoints, n_steps // n_steps_per_checkpoint):
                assert checkpoint.loss < jnp.inf
            jax.block_until_ready(checkpoint.model_params)
            return time.perf_counter() - started

        return run

    return build


CONTENDERS: dict[str, Callable[[Workload], Run]] = {
    "raw jit": raw_jit,
    "Trellis unfused": trellis_loop(100, n_fused_steps=1),
    "raw scan": raw_scan,
    "Trellis fused, 50 a checkpoint": trellis_loop(50),
    "Trellis fused, 100 a checkpoint": trellis_loop(100),
    "Trellis": trellis_loop(10),
}
