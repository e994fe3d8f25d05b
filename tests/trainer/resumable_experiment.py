"""An experiment to be killed: averages, accumulation, dropout, best export, every kind of file."""

import sys
from typing import Any

import trellis
import trellis.experiments.digits


def params(n_steps: int) -> trellis.ExperimentConfig:
    """Intervals that do not divide each other."""
    config = trellis.get_exp_config("digits/classifier")
    config.override(
        {
            "task": {"hidden_size": 16, "dropout_rate": 0.3},
            "trainer": {
                "optimizer_config": {"ema": {"average_decay": 0.9}},
                "train_steps": n_steps,
                "steps_per_loop": 10,
                "summary_interval": 10,
                "checkpoint_interval": 15,
                "validation_interval": 20,
                "max_to_keep": 3,
                "n_microbatches": 2,
            },
            "runtime": {"distribution_strategy": "one_device", "seed": 5},
        }
    )
    return config


def wait_near_end(checkpoint: Any) -> Any:
    """Waits until the other end of the standard input is closed, so that a signal never comes too late."""
    if checkpoint.step == 190:
        sys.stdin.read()
    return checkpoint


def main(directory: str, n_steps: str) -> None:
    """Trains up to a step, resuming what the directory holds."""
    config = params(int(n_steps))
    trellis.run_experiment(config, mode="train_and_eval", model_dir=directory, extensions=[wait_near_end])
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
