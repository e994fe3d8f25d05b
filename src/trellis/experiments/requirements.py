"""What a run can do, and what each mode needs of a config; known without JAX."""

from collections.abc import Iterator
from typing import Any

from trellis.config import Problem, origin_of
from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig
from trellis.runtime import runtime_problems
from trellis.spelling import nearest

MODES = ("train", "eval", "train_and_eval", "continuous_eval", "continuous_train_and_eval", "train_and_post_eval")
"""What a run can do."""


def check_mode(mode: str) -> None:
    """Raises an error that names the nearest mode, if there is none of this name."""
    if mode not in MODES:
        close = nearest(mode, MODES)
        meant = f" Did you mean {close}?" if close else ""
        raise ArgumentError(f"There is no mode {mode!r}.{meant} Modes are: {', '.join(MODES)}.")


def mode_problems(params: ExperimentConfig, *, mode: str) -> Iterator[Problem]:
    """Yields what is wrong with the numbers of a config, if it is to be run in a mode."""
    config = params.trainer
    least = {"max_to_keep": 1, "n_microbatches": 1, "early_stopping_steps": 0, "validation_steps": -1}
    least |= dict.fromkeys(("steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"), 1)
    least |= {"train_steps": 1} if "train" in mode and config.train_epochs <= 0 else {}
    for name in ("export_checkpoint_interval", "export_max_to_keep"):
        least |= {name: 1} if getattr(config, name, None) is not None else {}
    for name, value in least.items():
        if getattr(config, name) < value:
            yield _problem(config, name, f"is {getattr(config, name)}", f"It has to be {value} or more.")
    if config.validation_steps == 0:
        yield _problem(config, "validation_steps", "is 0", "Give the number of batches, or -1 for all of them.")
    if config.early_stopping_steps and not (
        config.best_checkpoint_export_subdir and config.best_checkpoint_eval_metric
    ):
        needed = "Set best_checkpoint_export_subdir and best_checkpoint_eval_metric, which say what better means."
        yield _problem(config, "early_stopping_steps", "is set, but nothing says what is best", needed)
    yield from runtime_problems(params.runtime)


def _problem(config: Any, name: str, message: str, advice: str) -> Problem:
    return Problem(f"trainer.{name} {message}.", origin_of(config, name), f"trainer.{name}", advice)
