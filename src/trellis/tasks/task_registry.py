"""Which task belongs to which config."""

import importlib
from collections.abc import Callable
from typing import TypeVar

from trellis.errors import ArgumentError
from trellis.registry import Registry
from trellis.tasks.configs import TaskConfig
from trellis.tasks.task import Task

TaskClass = TypeVar("TaskClass", bound=type[Task])

_tasks: Registry[Callable[..., Task]] = Registry(
    "task", advice="Import the module that has its task, which register_task_cls makes known."
)


def register_task_cls(task_config_cls: type[TaskConfig]) -> Callable[[TaskClass], TaskClass]:
    """Returns a decorator that makes a class the task of configs of a class and its subclasses.

    Example:
        @register_task_cls(DigitsConfig)
        class DigitsTask(Task): ...
    """
    return _tasks.register(task_config_cls)


def get_task(task_config: TaskConfig, *, logging_dir: str | None = None, name: str | None = None) -> Task:
    """Returns the task that is registered for a config's class, or for its nearest parent."""
    if not isinstance(task_config, TaskConfig):
        raise ArgumentError(f"get_task was given {task_config!r}, but it takes a TaskConfig, such as params.task.")
    if task_config.task_module:
        importlib.import_module(task_config.task_module)
    return _tasks.get(type(task_config))(task_config, logging_dir=logging_dir, name=name)
