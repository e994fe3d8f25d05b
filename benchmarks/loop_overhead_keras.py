"""The contender on Keras 3 with the JAX backend: `fit` on arrays in memory."""

import os
import time
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "jax"

import keras
from loop_overhead_workloads import (
    CNN_SHAPE,
    CNN_WIDTHS,
    FLAX_CNN_HIDDEN,
    FLAX_CNN_SHAPE,
    FLAX_CNN_WIDTHS,
    LEARNING_RATE,
    LSTM_LENGTH,
    LSTM_WIDTH,
    MLP_WIDTH,
    N_CLASSES,
    N_PIXELS,
    N_SCANNED_STEPS,
    N_TOKENS,
    WORKLOADS,
    Workload,
)

Run = Callable[[int], float]


def build_model(name: str) -> keras.Model:
    """The model of a workload."""
    head = keras.layers.Dense(N_CLASSES)
    if name == "mlp":
        return keras.Sequential([keras.Input((N_PIXELS,)), keras.layers.Dense(MLP_WIDTH, activation="relu"), head])
    if name == "cnn":
        first, second = (
            keras.layers.Conv2D(width, 3, strides=strides, padding="same", activation="relu")
            for width, strides in zip(CNN_WIDTHS, (1, 2), strict=True)
        )
        return keras.Sequential([keras.Input(CNN_SHAPE), first, second, keras.layers.GlobalAveragePooling2D(), head])
    if name == "flax_cnn":
        layers = [
            layer
            for width in FLAX_CNN_WIDTHS
            for layer in (
                keras.layers.Conv2D(width, 3, padding="same", activation="relu"),
                keras.layers.AveragePooling2D(2),
            )
        ]
        hidden = keras.layers.Dense(FLAX_CNN_HIDDEN, activation="relu")
        return keras.Sequential([keras.Input(FLAX_CNN_SHAPE), *layers, keras.layers.Flatten(), hidden, head])
    embedding = keras.layers.Embedding(N_TOKENS, LSTM_WIDTH)
    return keras.Sequential(
        [keras.Input((LSTM_LENGTH,), dtype="int32"), embedding, keras.layers.LSTM(LSTM_WIDTH), head]
    )


def build_compiled_model(name: str, *, steps_per_execution: int) -> keras.Model:
    """The same with its optimizer and loss."""
    model = build_model(name)
    model.compile(
        optimizer=keras.optimizers.Adam(LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
    )
    return model


class _Stopwatch(keras.callbacks.Callback):
    def on_train_begin(self, logs: object = None) -> None:
        self.started = time.perf_counter()

    def on_train_end(self, logs: object = None) -> None:
        self.seconds = time.perf_counter() - self.started


def keras_fit(steps_per_execution: int) -> Callable[[Workload], Run]:
    """`fit`, timed from the start to the end of training, which leaves its own set-up out."""

    def build(workload: Workload) -> Run:
        model = build_compiled_model(workload.name, steps_per_execution=steps_per_execution)
        stopwatch = _Stopwatch()

        def run(n_steps: int) -> float:
            n_epochs, n_left = divmod(n_steps, WORKLOADS[workload.name].n_steps)
            assert n_left == 0, f"{n_steps} steps are not whole epochs"
            model.fit(
                workload.inputs,
                workload.labels,
                batch_size=workload.batch_size,
                epochs=n_epochs,
                shuffle=True,
                verbose=0,
                callbacks=[stopwatch],
            )
            return stopwatch.seconds

        return run

    return build


CONTENDERS: dict[str, Callable[[Workload], Run]] = {
    "Keras fit": keras_fit(1),
    f"Keras fit, steps_per_execution={N_SCANNED_STEPS}": keras_fit(N_SCANNED_STEPS),
}
