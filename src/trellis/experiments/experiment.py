"""Named configurations of a whole run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from trellis.config import Config, Origin, stamp
from trellis.errors import ConfigError
from trellis.registry import Registry
from trellis.runtime import RuntimeConfig
from trellis.tasks import TaskConfig
from trellis.trainer import TrainerConfig


@dataclass
class ExperimentConfig(Config):
    """Everything that a run depends on: what is learned, how, and where."""

    task: TaskConfig = TaskConfig()
    trainer: TrainerConfig = TrainerConfig()
    runtime: RuntimeConfig = RuntimeConfig()


class BuildExperiment(Protocol):
    """Makes the config of an experiment: a new one each time, from nothing."""

    def __call__(self) -> ExperimentConfig:
        """Returns the config that an experiment starts from."""


Factory = TypeVar("Factory", bound=BuildExperiment)

_experiments: Registry[BuildExperiment] = Registry(
    "experiment", advice="If it is your own, name the module that registers it with --module."
)


def register_config_factory(name: str) -> Callable[[Factory], Factory]:
    """Returns a decorator that makes a function the factory of the experiment called `name`.

    Example:
        >>> from trellis.tasks import DigitsConfig
        >>> @register_config_factory("digits/long")
        ... def digits_long() -> ExperimentConfig:
        ...     return ExperimentConfig(task=DigitsConfig(), trainer=TrainerConfig(train_steps=2000))
        >>> get_exp_config("digits/long").trainer.train_steps
        2000
    """
    return _experiments.register(name)


def get_exp_config(name: str) -> ExperimentConfig:
    """Returns a new config of the experiment called `name`, whose values know that they come from its factory."""
    config = _experiments.get(name)()
    if not isinstance(config, Config):
        raise ConfigError(f"The factory of experiment {name!r} returned {config!r}. It has to return its config.")
    stamp(config, Origin(f"factory {name}"), name=name)
    return config


def experiment_summaries() -> dict[str, str]:
    """Returns the registered names, sorted, each with the first line of its factory's docstring."""
    documented = {name: (_experiments.get(name).__doc__ or "").strip() for name in _experiments.names()}
    return {name: text.splitlines()[0] if text else "" for name, text in documented.items()}
