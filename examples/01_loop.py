"""Trains a language model on text that every machine has: the documentation of Python's own standard library.

Stop it whenever you like and run it again: it goes on where it was, and ends as if it had never been stopped.
"""

import argparse
import json
import math
import os
import shlex
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trellis
from trellis.nlp.data import byte_sequences, load_local_corpus
from trellis.nlp.models import RNNLM


def cross_entropy(logits, targets):
    """The surprise at the right bytes, in nats: the loss, and as a metric the log-perplexity `lnpp`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def train(args):
    """Trains up to step `args.n_steps`, from the newest checkpoint file if there is one."""
    train_bytes, validation_bytes = byte_sequences(load_local_corpus(), length=64)
    model = RNNLM(vocab_size=256, d_model=args.d_model)

    loop = trellis.TrainLoop(
        init=trellis.CheckpointFileReader(dir=args.output_dir, target=model.init),
        task=trellis.TrainTask(
            apply=model.clone(deterministic=False).apply,
            optimizer=optax.adam(4e-3),
            loss=cross_entropy,
            data=trellis.ExampleStream((train_bytes, train_bytes), batch_size=32),
        ),
        collections={"apply": ["dropout"]},
        rnkey=jax.random.key(0),
        n_steps=args.n_steps,
        n_steps_per_checkpoint=args.n_steps_per_checkpoint,
    )
    process = trellis.serial(
        trellis.ProgressBar(),
        trellis.EvalLoop(
            task=trellis.EvalTask(
                apply=model.apply,
                metrics={"lnpp": cross_entropy},
                data=trellis.ExampleStream((validation_bytes, validation_bytes), batch_size=32, shuffle=False),
            ),
            n_steps=20,
        ),
        trellis.SummaryLogger(),
        trellis.SummaryWriter(args.output_dir),
        trellis.EventWriter(args.output_dir),
        trellis.CheckpointFileWriter(output_dir=args.output_dir),
        trellis.LowestCheckpointFileWriter(output_dir=args.output_dir, metric="lnpp"),
    )
    loop.attach(process)
    for checkpoint in loop:
        process(checkpoint)
    return model


def continue_text(model, params, start, n_bytes=200):
    """Writes on from the start of a text, byte by byte."""
    given = np.frombuffer(start.encode(), np.uint8)
    n_given, n = len(given), len(given) + n_bytes

    def write_one(index, tokens):
        logits = model.apply({"params": params}, tokens)[0, index]
        key = jax.random.fold_in(jax.random.key(0), index)
        return tokens.at[0, index].set(jax.random.categorical(key, logits / 0.5))

    tokens = jax.lax.fori_loop(n_given, n, write_one, jnp.zeros((1, n), jnp.int32).at[0, :n_given].set(given))
    return bytes(tokens[0].tolist()).decode(errors="replace").rstrip()


def report(args, model):
    """Says what was achieved, from the files of the run."""
    events = map(json.loads, Path(args.output_dir, "events.jsonl").read_text().splitlines())
    lnpp = {event["step"]: event["metrics"]["eval"]["lnpp"] for event in events if event["kind"] == "summary"}
    best = trellis.LowestCheckpointFileReader(dir=args.output_dir, target=model.init, metric="lnpp").read()
    assert best is not None
    print("On text that it was not trained on (a model that knows nothing has a perplexity of 256 per byte):")
    for step in sorted({min(lnpp), max(lnpp)}):
        print(f"  step {step}: lnpp {lnpp[step]:.3f}, a perplexity of {math.exp(lnpp[step]):.1f} per byte")
    print(f"\nThe best model, that of step {best.step}, continues a text:\n")
    print(continue_text(model, best.model_params, start="Return the "))
    print(f"\nThe run is in {args.output_dir}: checkpoint files, all metrics in events.jsonl, and their curves, by")
    print(f"  tensorboard --logdir {shlex.quote(args.output_dir)}")


def main():
    """Reads the flags, trains and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--output_dir", default="runs/01_loop", help="where to write, and to resume from")
    parser.add_argument("--n_steps", type=int, default=600, help="the step to stop at, counted over all runs")
    parser.add_argument("--n_steps_per_checkpoint", type=int, default=100, help="how often to measure and save")
    parser.add_argument("--d_model", type=int, default=128, help="the width of the two LSTM layers")
    args = parser.parse_args()

    print(f"Training an LSTM to tell the next byte of Python's own documentation, up to step {args.n_steps}.")
    print(f"It writes to {args.output_dir}, and resumes from there if it was stopped.\n")
    report(args, train(args))
    flags = {name: value for name, value in vars(args).items() if value != parser.get_default(name)}
    longer = [f"--{name}={value}" for name, value in {**flags, "n_steps": 2 * args.n_steps}.items()]
    print("To train on:")
    print(f"  {shlex.join([os.path.relpath(sys.executable), sys.argv[0], *longer])}")


if __name__ == "__main__":
    main()
