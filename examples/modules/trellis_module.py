"""A `run_fn` with Trellis's own loops: it evaluates as it goes, and a run that was stopped goes on where it was."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import export
from penguins import FEATURES, LABEL

import trellis
from trellis.data import read_columns
from trellis.executor import FnArgs

MODEL = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)])


def cross_entropy(logits, labels):
    """The mean over a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def accuracy(logits, labels):
    """The share of right answers."""
    return (logits.argmax(-1) == labels).mean()


def run_fn(fn_args: FnArgs) -> None:
    """Trains up to `train_steps`, with checkpoint files in `model_run_dir`, and exports what was best."""
    train, held_out = read(fn_args, fn_args.train_files), read(fn_args, fn_args.eval_files)
    loop = trellis.TrainLoop(
        init=trellis.CheckpointFileReader(dir=fn_args.model_run_dir, target=MODEL.init),
        task=trellis.TrainTask(
            apply=MODEL.apply,
            optimizer=optax.adam(0.01),
            loss=cross_entropy,
            data=trellis.ExampleStream(train, batch_size=32),
        ),
        rnkey=jax.random.key(0),
        n_steps=fn_args.train_steps or 300,
        n_steps_per_checkpoint=100,
    )
    task = trellis.EvalTask(
        apply=MODEL.apply,
        metrics={"accuracy": accuracy},
        data=trellis.ExampleStream(held_out, batch_size=32, shuffle=False, n_epochs=1),
    )
    process = trellis.serial(
        trellis.EvalLoop(task=task),
        trellis.SummaryLogger(),
        trellis.HighestCheckpointFileWriter(fn_args.model_run_dir, metric="accuracy"),
        trellis.CheckpointFileWriter(fn_args.model_run_dir),
    )
    loop.attach(process)
    for checkpoint in loop:
        process(checkpoint)

    best = trellis.HighestCheckpointFileReader(fn_args.model_run_dir, target=MODEL.init, metric="accuracy").read()
    assert best is not None
    batch = jax.ShapeDtypeStruct((export.symbolic_shape("n")[0], len(FEATURES)), jnp.float32)
    model = MODEL.bind({"params": best.model_params})
    answer = jax.jit(lambda x: jax.nn.softmax(model(x)))
    Path(fn_args.serving_model_dir).mkdir()
    Path(fn_args.serving_model_dir, "model.jax_export").write_bytes(export.export(answer)(batch).serialize())


def read(fn_args, files):
    """All inputs [n, 4] and labels [n] of a split, decoded once and memory-mapped."""
    features = {**dict.fromkeys(FEATURES, (np.float32, ())), LABEL: (np.int32, ())}
    columns = read_columns(files, features=features, cache_dir=Path(fn_args.model_run_dir, "columns"))
    return np.stack([columns[name] for name in FEATURES], axis=1), columns[LABEL]
