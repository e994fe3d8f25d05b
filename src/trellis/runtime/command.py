"""When the command began that this process runs."""

import os
import time
from contextlib import suppress
from pathlib import Path

_began_at: list[float] = []


def begin_command() -> None:
    """Notes that this process was started to run a command: the time since its start is that of the run."""
    _began_at[:] = [time.perf_counter() - _process_age()]


def take_command_age() -> float:
    """How many seconds ago the command began; 0 if there is none, or if somebody has asked before."""
    return time.perf_counter() - _began_at.pop() if _began_at else 0.0


def _process_age() -> float:
    """How many seconds ago this process was started, where the system tells that; else 0."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        # After the name of the program, which may have anything in it; the 22nd field of all is the start in ticks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return 0.0
