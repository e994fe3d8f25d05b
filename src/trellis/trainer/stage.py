"""The stretch of a training that a Trainer runs: its model, its data, where it starts."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from trellis.aliases import Batch, Variables
from trellis.data import Replay, is_stream
from trellis.extensions import CheckpointFileReader
from trellis.loops import Checkpoint, CheckpointSource
from trellis.runtime import RuntimeConfig
from trellis.tasks import BoundModel, InputContext, Model, Task


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a stretch of a training runs on. A training that is not progressive is one stage."""

    model: Model
    build_train_data: Callable[[], Any]
    build_validation_data: Callable[[], Any]
    initialize: Callable[[BoundModel], Variables]
    """From the model with its own variables to the variables before the first step."""
    start_step: int = 0
    """How many steps were completed before. Checkpoint files of this step and earlier ones are not of this stage."""
    periods: tuple[int, ...] = ()
    """Yields a checkpoint at multiples of these too."""


class Start(CheckpointSource):
    """The newest checkpoint file of the run; if there is none, what the stage starts from."""

    def __init__(self, reader: CheckpointFileReader, *, initialize: Callable[[], Checkpoint]) -> None:
        self.target = reader.target
        self._reader = reader
        self._initialize = initialize

    def __call__(self, initializer: Checkpoint) -> Checkpoint:
        """The checkpoint to start from."""
        found = self._reader(initializer)
        return self._initialize() if found is initializer else found


def whole_stage(task: Task, *, runtime: RuntimeConfig) -> Stage:
    """The one stage of a training from the first step to the last."""
    config = task.task_config
    return Stage(
        model=task.build_model(),
        build_train_data=lambda: build_task_inputs(task, params=config.train_data, runtime=runtime),
        build_validation_data=lambda: build_task_inputs(task, params=config.validation_data, runtime=runtime),
        initialize=task.initialize,
    )


def build_task_inputs(task: Task, *, params: Any, runtime: RuntimeConfig) -> Any:
    """The stream of a task for a data config."""
    takes_context = "input_context" in inspect.signature(task.build_inputs).parameters
    context = {"input_context": InputContext(seed=runtime.seed)} if takes_context else {}
    return task.build_inputs(params, **context)


def peeked(data: Any) -> tuple[Batch, Any]:
    """The first batch, and data that still has it."""
    if is_stream(data):
        return data.batch(0), data
    if isinstance(data, Iterator):
        first = next(data)
        return first, chain([first], data)
    return next(iter(Replay(data, n_batches=1, place="Task.build_inputs"))), data
