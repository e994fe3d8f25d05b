"""What a run leaves to tell what it was: its config, where each value came from, and the versions of what ran it."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trellis.disk import write_whole
from trellis.experiments.experiment import ExperimentConfig, params_text
from trellis.experiments.reports import show_config

_PACKAGES = ("trellis", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorboardX")


def write_params(params: ExperimentConfig, directory: Path) -> None:
    """Writes down what is about to run."""
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / "params.yaml", params_text(params).encode())
    write_whole(directory / "provenance.yaml", show_config(params).encode())
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
    write_whole(directory / "versions.json", f"{json.dumps(versions, indent=2)}\n".encode())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
