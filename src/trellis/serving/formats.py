"""The formats that a model is exported in."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, get_args

from trellis.errors import ArgumentError, MissingPackageError

Format = Literal["jax_export", "saved_model"]
"""`jax_export` is read by `trellis.load_model`, `saved_model` by TensorFlow."""
FORMATS: tuple[Format, ...] = get_args(Format)
FILES_OF: Mapping[Format, str] = {"jax_export": "files", "saved_model": "assets.extra"}
"""Where each has the files that go along with a model."""


def check_format(format: str) -> None:
    """Raises an error if there is no such format, or if this machine cannot write it."""
    if format not in FORMATS:
        raise ArgumentError(f"There is no format {format!r}. There are: {', '.join(FORMATS)}.")
    if format == "saved_model" and find_spec("tensorflow") is None:
        error = MissingPackageError("tensorflow", "tensorflow")
        error.add_note("A SavedModel is written by TensorFlow. The format jax_export, the default, needs none.")
        raise error
