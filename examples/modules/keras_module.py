"""A `run_fn` with Keras's own `fit`, on its JAX backend: no TensorFlow."""

import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import keras
from penguins import LABEL, as_arrays

from trellis.executor import FnArgs, TensorFlowDatasetOptions


def build_model(learning_rate: float) -> keras.Model:
    """A compiled model."""
    layers = [keras.Input([4]), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def run_fn(fn_args: FnArgs) -> None:
    """Fits, starting from a base model if there is one, and saves."""
    # What a tuner has found, if there was one.
    tuned = (fn_args.hyperparameters or {}).get("values", {})
    keras.utils.set_random_seed(0)
    if fn_args.base_model:
        model = keras.saving.load_model(Path(fn_args.base_model, "model.keras"))
    else:
        model = build_model(tuned.get("learning_rate", 0.01))
    model.fit(
        batches(fn_args, fn_args.train_files),
        steps_per_epoch=fn_args.train_steps or 300,
        validation_data=batches(fn_args, fn_args.eval_files),
        validation_steps=fn_args.eval_steps or 3,
        shuffle=False,  # batches come shuffled
        verbose=2,
    )
    Path(fn_args.serving_model_dir).mkdir()
    model.save(Path(fn_args.serving_model_dir, "model.keras"))


def batches(fn_args, files):
    """Pairs of inputs and labels, for ever."""
    options = TensorFlowDatasetOptions(batch_size=32, label_key=LABEL)
    yield from map(as_arrays, fn_args.data_accessor.numpy_factory(files, options, fn_args.schema_path))
