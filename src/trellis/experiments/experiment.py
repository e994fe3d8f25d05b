"""Named configurations of a whole run, and the modules that register them: our own, and a user's."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from trellis.config import Config, Origin, stamp
from trellis.errors import ArgumentError, ConfigError
from trellis.registry import Registry
from trellis.runtime import RuntimeConfig
from trellis.spelling import did_you_mean
from trellis.tasks import TaskConfig
from trellis.trainer import TrainerConfig

# By name, because the package of a domain lies above this one.
BUILT_IN = ("trellis.experiments.digits", "trellis.nlp.experiments")


@dataclass
class ExperimentConfig(Config):
    """Everything that a run depends on: what is learned, how, and where."""

    task: TaskConfig = TaskConfig()
    trainer: TrainerConfig = TrainerConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def __repr__(self) -> str:
        # All of it is hundreds of fields: `as_yaml()` and `trellis config show` have them.
        parts = (f"{name}={type(getattr(self, name)).__name__}(…)" for name in ("task", "trainer", "runtime"))
        return f"{type(self).__name__}({', '.join(parts)})"


class BuildExperiment(Protocol):
    """Makes the config of an experiment: a new one each time, from nothing."""

    def __call__(self) -> ExperimentConfig:
        """Returns the config that an experiment starts from."""


Factory = TypeVar("Factory", bound=BuildExperiment)

_experiments: Registry[BuildExperiment] = Registry(
    "experiment",
    advice="If it is your own, import the module that registers it, or name it with --module.",
    modules=BUILT_IN,
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


def register_experiments(modules: Sequence[str], *, place: str = "--module") -> None:
    """Imports the built-in experiments, then the modules of a user, each a dotted name or a `.py` file.

    Args:
        place: Where the modules were named, for errors.
    """
    _experiments.import_modules()
    for name in dict.fromkeys(modules):
        try:
            _import_file(Path(name)) if name.endswith(".py") else _import_name(name)
        except Exception as error:
            error.add_note(f"That was while importing {place}={name}.")
            raise


def _import_name(name: str) -> None:
    # An installed command does not look where it is called, unlike `python -m`.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
        raise ArgumentError(
            f"There is no module {missing!r} here or among what is installed. "
            f"Give a dotted name that Python can import, or the path of a .py file."
        ) from None


def _import_file(path: Path) -> None:
    if not path.is_file():
        names = [file.name for file in path.parent.glob("*.py")]
        suggestion = did_you_mean(path.name, names, show=lambda close: f"`{path.parent / close}`")
        raise ArgumentError(f"There is no file `{path}`.{suggestion}")
    file = path.resolve()
    loaded = sys.modules.get(file.stem)
    if loaded is not None:
        if loaded.__file__ is not None and Path(loaded.__file__).resolve() == file:
            return
        raise ArgumentError(f"`{path}` has the name of a module that is loaded already. Give the file another name.")
    # As if it was run: the files beside it can be imported.
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # As Python itself does: the next import is to fail the same way, not to find half a module.
        del sys.modules[file.stem]
        raise
