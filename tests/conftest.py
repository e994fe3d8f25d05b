"""Eight CPU devices, no silent broadcasting, and nothing left behind by any test."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.xla_flags import QUICK

# Set here, before any test imports JAX, and inherited by the processes that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {QUICK}"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["PYTHON_COLORS"] = "0"  # tracebacks read alike on every Python


def pytest_configure(config: pytest.Config) -> None:
    """Keeps what runs of tests keep for later runs away from what the user's own runs have kept, and removes it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the processes that share the tests out have that of the first
        cache = tempfile.TemporaryDirectory(prefix="trellis-tests-")
        config.add_cleanup(cache.cleanup)
        os.environ["XDG_CACHE_HOME"] = cache.name


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compiles the same small models once for all tests of this process: that is most of the time they take.

    Not for other processes: JAX does not write its cache atomically, so one that is killed would spoil it.
    """
    if "jax" in sys.modules:
        import jax

        cache = tempfile.TemporaryDirectory(prefix="trellis-tests-")
        session.config.add_cleanup(cache.cleanup)
        jax.config.update("jax_compilation_cache_dir", cache.name)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(autouse=True)
def _nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets a test write where it likes, away from the repository, and refuses one that keeps a signal for itself."""
    monkeypatch.chdir(tmp_path)
    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    yield
    assert {name: signal.getsignal(name) for name in handlers} == handlers, "a signal handler was left behind"


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Has Ctrl-C raise KeyboardInterrupt, also where a shell has started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
