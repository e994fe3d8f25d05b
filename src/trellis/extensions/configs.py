"""What configs say of extensions, known without JAX: where runs can be tracked."""

import importlib.util
from typing import Literal

ServiceName = Literal["wandb", "mlflow", "trackio"]


def is_missing(name: str) -> bool:
    """Whether the package of a service is not installed."""
    spec = importlib.util.find_spec(name)
    # A folder of this name, as wandb leaves one where it is used, is no package.
    return spec is None or spec.origin is None
