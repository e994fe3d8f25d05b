"""What lies in a directory of weights: settings as JSON, arrays as safetensors."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trellis.aliases import JSON
from trellis.errors import CheckpointFileError, MissingPackageError
from trellis.json_text import parse_json


def read_json(file: Path, *, if_missing: str = "Copy the folder again.") -> JSON:
    """Returns what is in a file of JSON.

    Args:
        if_missing: What to do if it is not there, for the error.
    """
    try:
        values: JSON = parse_json(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointFileError(f"`{file}` does not exist. {if_missing}") from None
    except OSError as error:
        raise CheckpointFileError(f"`{file}` cannot be read: {error.strerror}. Copy the folder again.") from None
    except ValueError as error:
        raise CheckpointFileError(f"`{file}` is not JSON: {error}. Copy it again.") from None
    return values


def read_settings(file: Path, *, if_missing: str = "Copy the folder again.") -> dict[str, Any]:
    """Returns the settings in a file, as `read_json` does."""
    settings = read_json(file, if_missing=if_missing)
    if not isinstance(settings, dict):
        raise CheckpointFileError(f"`{file}` holds no settings, but {settings!r:.40}.")
    return settings


def read_safetensors(files: Iterable[Path]) -> dict[str, np.ndarray]:
    """Returns the arrays of files by their names."""
    safetensors = _safetensors()
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        try:
            arrays |= safetensors.numpy.load_file(file)
        except (safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointFileError(f"`{file}` is damaged or cut short: {error}. Copy it again.") from None
    return arrays


def write_safetensors(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as torch's libraries read them."""
    # Not by `save_file`, whose files only their owner may read.
    file.write_bytes(_safetensors().numpy.save(dict(arrays), metadata={"format": "pt"}))


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise MissingPackageError("safetensors", "nlp") from None
    return safetensors
