"""Where compiled programs are kept from run to run."""

from pathlib import Path

import jax

from trellis.disk import default_cache_dir
from trellis.runtime.console import print_line
from trellis.user_cache import COMPILED, hold


def keep_programs() -> Path | None:
    """Has JAX keep what it compiles for an accelerator, so that only the first of many runs waits for it; says where.

    A run that goes on after an interruption then also computes with the very program that it was begun with, where
    another compilation might choose other kernels. On a CPU, where compiled programs do not fit every other machine of
    the same home directory, nothing is kept, and nothing is changed if JAX was given a directory already.

    Returns:
        The directory; None if JAX is left as it was.
    """
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None or jax.default_backend() == "cpu":
        return None
    directory = default_cache_dir(COMPILED)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    hold(directory)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    # The small ones too: a start has dozens of them, and each takes longer to compile than to read.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    print_line(f"Compiled programs are kept in {directory} for runs to come.")
    return directory
