"""Directories that are whole or not there."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trellis.disk import files_in, sync
from trellis.errors import ServedModelError


def check_free(target: Path) -> None:
    """Raises an error if a directory cannot be written anew without losing something."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ServedModelError(f"output_dir `{target}` is there already and not empty. Choose another directory.")


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """Gives a hidden directory to fill, which gets its name when that is done; if it fails, nothing is left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex}.writing")
    hidden.mkdir()
    try:
        yield hidden
        for path in (*files_in(hidden), hidden):
            sync(path)
        hidden.rename(target)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    sync(target.parent)
