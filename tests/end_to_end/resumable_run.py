"""A run to be killed: dropout, batch statistics, shuffled data, every kind of file."""

import sys
from pathlib import Path

import jax

import trellis
from tests import tiny


def main(directory: str, n_steps: str) -> None:
    """Trains up to a step, resuming what the directory holds."""
    model = tiny.Classifier(has_statistics=True)
    loop = tiny.train_loop(
        tiny.train_task(tiny.Classifier(train=True, dropout_rate=0.3, has_statistics=True), data=tiny.stream(seed=7)),
        init=trellis.CheckpointFileReader(dir=directory, target=model.init),
        rnkey=jax.random.key(11),
        collections={"apply": ["dropout"]},
        n_steps=int(n_steps),
        n_steps_per_checkpoint=(5, 20),
        n_fused_steps=3,
        stdout=True,
    )
    process = trellis.serial(
        tiny.eval_loop(model),
        trellis.EventWriter(output_dir=directory),
        trellis.SummaryWriter(output_dir=Path(directory) / "tensorboard"),
        trellis.CheckpointFileWriter(output_dir=directory),
        trellis.every(
            20,
            trellis.LowestCheckpointFileWriter(output_dir=directory, metric="loss", keep=2),
            trellis.HighestCheckpointFileWriter(output_dir=directory, metric="accuracy"),
        ),
    )
    loop.attach(process)
    print("started", flush=True)
    for checkpoint in loop:
        process(checkpoint)
        if checkpoint.step == 190:
            # Until the other end is closed, so that a signal never comes too late.
            sys.stdin.read()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
