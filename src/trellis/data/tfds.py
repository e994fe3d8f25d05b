"""TensorFlow Datasets, read once by their own package into a file of rows."""

import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trellis.disk import default_cache_dir, whole_file
from trellis.errors import DataError, MissingPackageError
from trellis.user_cache import hold


def write_tfds_rows(name: str, *, split: str, data_dir: str = "") -> Path:
    """Writes a split of a data set to a JSONL file in the cache, if it is not there yet; returns the file.

    Args:
        name: As `tensorflow_datasets` knows it, such as `glue/mrpc`.
        split: Such as `train`, or `train[:10%]`.
        data_dir: Where the data set is prepared; the default is that of the package.
    """
    try:
        # Imported by its name, as Trellis does not depend on it.
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError:
        raise MissingPackageError("tensorflow-datasets", "tfds") from None
    try:
        builder = tfds.builder(name, data_dir=data_dir or None)
        builder.download_and_prepare()
        settings = [builder.info.full_name, split, str(builder.data_dir)]
        key = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()
        file = default_cache_dir("tfds") / f"{key}.jsonl"
        if hold(file):
            return file
        examples = tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
    except (ValueError, OSError, RuntimeError, LookupError, AssertionError) as error:
        problem = str(error).strip().partition("\n")[0]
        raise DataError(
            f"tensorflow_datasets cannot read the split {split!r} of {name!r}: {problem} Check both names, and the "
            f"directory ({data_dir or 'the default one'})."
        ) from error
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as output:
        for example in examples:
            output.write(f"{json.dumps(_as_json(example), ensure_ascii=False)}\n".encode())
    hold(file)
    return file


def _as_json(value: Any) -> Any:
    """A value as JSON has it: bytes are text, arrays are lists."""
    if isinstance(value, Mapping):
        return {name: _as_json(part) for name, part in value.items()}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"A value of the data set is no text ({error}). Only text and numbers are read.") from error
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    # What is left is of NumPy.
    return _as_json(value.tolist()) if type(value).__module__ == "numpy" else value
