"""A `run_fn` with a training loop written by hand in Flax, which ends with a model for any program that has JAX."""

from itertools import islice
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import export
from penguins import LABEL, as_arrays

from trellis.executor import FnArgs, TensorFlowDatasetOptions


class Classifier(nn.Module):
    """Logits of three species."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(16)(x)))


def run_fn(fn_args: FnArgs) -> None:
    """Trains, evaluates, and exports the model as a function of a batch of any size."""
    settings = {"learning_rate": 0.01, "batch_size": 32} | (fn_args.custom_config or {})
    model, optimizer = Classifier(), optax.adam(settings["learning_rate"])
    params = model.init(jax.random.key(0), jnp.zeros((1, 4)))
    optimizer_state = optimizer.init(params)

    @jax.jit
    def step(params, optimizer_state, x, y):
        def loss_of(params):
            return optax.softmax_cross_entropy_with_integer_labels(model.bind(params)(x), y).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, optimizer_state = optimizer.update(grads, optimizer_state)
        return optax.apply_updates(params, updates), optimizer_state, loss

    for x, y in islice(batches(fn_args, fn_args.train_files, settings["batch_size"]), fn_args.train_steps or 300):
        params, optimizer_state, loss = step(params, optimizer_state, x, y)
    right, n = 0, 0
    for x, y in batches(fn_args, fn_args.eval_files, 32, num_epochs=1):
        right, n = right + int((model.bind(params)(x).argmax(-1) == y).sum()), n + len(y)
    print(f"loss {loss:.4f}, accuracy {right / n:.3f} on {n} examples")

    batch = jax.ShapeDtypeStruct((export.symbolic_shape("n")[0], 4), jnp.float32)
    exported = export.export(jax.jit(lambda x: jax.nn.softmax(model.bind(params)(x))))(batch)
    Path(fn_args.serving_model_dir).mkdir()
    Path(fn_args.serving_model_dir, "model.jax_export").write_bytes(exported.serialize())


def batches(fn_args, files, batch_size, num_epochs=None):
    """Pairs of inputs and labels."""
    options = TensorFlowDatasetOptions(batch_size=batch_size, num_epochs=num_epochs, label_key=LABEL)
    return map(as_arrays, fn_args.data_accessor.numpy_factory(files, options, fn_args.schema_path))
