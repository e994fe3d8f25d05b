"""The record of a run: its config, the origins of its values and the versions of packages, written and read."""

import json
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trellis.config import merge, raise_if_any, read_file, registered_name
from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig, experiment_summaries, get_exp_config
from trellis.experiments.reports import show_config

_PACKAGES = ("trellis", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorboardX")


def write_params(params: ExperimentConfig, directory: Path) -> None:
    """Writes down what is about to run: its config, where each value came from, and the versions of what runs it."""
    # Reading a record needs no JAX, and this does.
    from trellis.extensions import replace_file

    name = registered_name(params)
    heading = f"# Experiment: {name}\n" if name else ""
    versions = {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}}
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / "params.yaml", f"{heading}{params.as_yaml()}".encode())
    replace_file(directory / "provenance.yaml", show_config(params).encode())
    replace_file(directory / "versions.json", f"{json.dumps(versions, indent=2)}\n".encode())


def recorded_experiment(config_file: str) -> str | None:
    """Returns the experiment that a run's `params.yaml` names in its first line; None if a file names none."""
    path = Path(config_file)
    first_line = path.read_text().partition("\n")[0] if path.is_file() else ""
    match = re.fullmatch(r"# Experiment: (\S+)", first_line)
    return match[1] if match else None


def read_params(model_dir: str | os.PathLike[str]) -> ExperimentConfig:
    """Returns the config that a run was trained with, after its `params.yaml`.

    Its class is that of the experiment that the file names or, if it names none, of the first that has all its fields.
    """
    file = Path(model_dir, "params.yaml")
    if not file.is_file():
        raise ArgumentError(f"There is no `{file}`. Give the model_dir of a run that was trained.")
    setting, problems = read_file(file)
    raise_if_any(problems)
    recorded = recorded_experiment(str(file))
    for name in [recorded] if recorded else experiment_summaries():
        config = get_exp_config(name)
        if not merge(config, setting):
            config.lock()
            return config
    raise ArgumentError(
        f"No registered experiment has all the fields of `{file}`. If the run's experiment is your own, name the "
        f"module that registers it with --module."
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
