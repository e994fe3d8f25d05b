"""Functions from elsewhere, read by another process first: JAX's reader of them may crash or hang."""

import contextlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from trellis.disk import default_cache_dir, write_whole
from trellis.errors import FileWriteError, ServedModelError
from trellis.serving.manifest import digest

_SECONDS = 60
_BYTES_A_SECOND = 1 << 20
# It reads the function and the program in it, and compiles nothing. No device is touched.
_PROGRAM = """
import sys
from jax import export
print("ready", flush=True)
with open(sys.argv[1], "rb") as file:
    exported = export.deserialize(bytearray(file.read()))
exported.mlir_module()
"""


def try_out(path: Path) -> None:
    """Has a process of its own read a function that is new on this machine; an error if it does not survive that.

    What was tried once is known by its SHA-256, also by other processes, so that it is tried once.
    """
    digested = digest(path)
    if _note(digested["sha256"]).exists():
        return
    seconds = _SECONDS + digested["size"] // _BYTES_A_SECOND
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise _refused(path, f"does not end in {seconds} seconds") from None
    if not done.stdout.startswith(b"ready"):
        return  # No process of its own finds JAX: this one was set up by hand. So there is no trial.
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no word"]
        raise _refused(path, f"ends with {done.returncode} ({said[0]:.200})")
    note_trial(digested["sha256"])


def note_trial(sha256: str) -> None:
    """Remembers a function that can be read."""
    # Where nothing can be written, it is tried again the next time.
    with contextlib.suppress(FileWriteError):
        write_whole(_note(sha256), b"")


def _note(sha256: str) -> Path:
    return default_cache_dir("tried_functions") / f"{sha256}-{version('jaxlib')}"


def _refused(path: Path, problem: str) -> ServedModelError:
    return ServedModelError(
        f"`{path}` is no function that JAX can read: a process that tries {problem}. Export the model again."
    )
