"""What a config asks of a task."""

import inspect

from trellis.errors import ArgumentError
from trellis.tasks import Task
from trellis.trainer.configs import TrainerConfig


def check_task(task: Task, *, config: TrainerConfig) -> None:
    """Raises an error if the task's own step cannot do what the config asks for."""
    takes_parts = "n_microbatches" in inspect.signature(task.train_step).parameters
    if config.n_microbatches != 1 and not takes_parts:
        raise ArgumentError(
            f"trainer.n_microbatches is {config.n_microbatches}, but {type(task).__name__}.train_step takes no "
            f"n_microbatches. Let it cut the batch into so many parts, or leave trainer.n_microbatches at 1."
        )
