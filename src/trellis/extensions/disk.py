"""Files that are whole or not there, in directories that can be written to."""

import errno
import os
import uuid
from pathlib import Path

import jax

from trellis.errors import ArgumentError


def check_writable(directory: Path) -> None:
    """Makes a directory if need be; an error if nothing can be written there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ArgumentError(
            f"Nothing can be written to output_dir `{directory}`: {error.strerror}. Choose another directory."
        ) from error


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file anew, whole or not at all; several processes may write the same at once."""
    # By another name: TensorBoard would read a file that is left behind with `tfevents` in its name.
    partial = path.with_name(f"{path.suffix}{jax.process_index() or ''}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def describe_failure(error: Exception) -> str:
    """What the system said, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # TensorStore tells what the system said at the end of a long trace.
    said = [text for text in map(os.strerror, (errno.ENOSPC, errno.EROFS, errno.EACCES)) if text in str(error)]
    return (said or str(error).splitlines() or [type(error).__name__])[0]
