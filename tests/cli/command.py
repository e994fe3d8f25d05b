"""The command, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.xla_flags import QUICK

REPOSITORY = Path(__file__).parents[2]
WITHOUT_JAX = (
    "import sys; from trellis.cli.main import main; code = main();"
    "loaded = {'jax', 'jaxlib', 'flax', 'optax', 'orbax', 'numpy', 'pyarrow'} & set(sys.modules);"
    "sys.exit(f'loaded: {loaded}' if loaded else code)"
)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "XLA_FLAGS": QUICK, "COLUMNS": "100"}


def trellis(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with warnings as errors."""
    return _run("-W", "error", "-m", "trellis", *arguments)


def trellis_without_jax(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process that fails if JAX, or what comes with it, was imported."""
    return _run("-c", WITHOUT_JAX, *arguments)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
