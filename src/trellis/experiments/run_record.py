"""The record of a run: its config, where each value came from, and the versions of what runs it."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trellis.config import registered_name
from trellis.disk import write_whole
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.reports import show_config

_PACKAGES = ("trellis", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorboardX")


def write_params(params: ExperimentConfig, directory: Path) -> None:
    """Writes down what is about to run; `read_params` reads the config again."""
    name = registered_name(params)
    heading = f"# Experiment: {name}\n" if name else ""
    versions = {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}}
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / "params.yaml", f"{heading}{params.as_yaml()}".encode())
    write_whole(directory / "provenance.yaml", show_config(params).encode())
    write_whole(directory / "versions.json", f"{json.dumps(versions, indent=2)}\n".encode())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
