"""Arrays by name in one file of the safetensors format, which holds nothing but numbers."""

from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from trellis.errors import ServedModelError
from trellis.json_text import parse_json

_DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


def can_store(dtype: np.dtype) -> bool:
    """Whether a file can hold an array of a type."""
    return dtype.name in _DTYPES.values()


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a file."""
    from safetensors.numpy import save_file

    for name, array in arrays.items():
        if not can_store(array.dtype):
            raise ServedModelError(f"The variable {name} is of type {array.dtype}, which cannot be stored.")
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file, as views of it: the disk is read when an array is.

    The package of the format would copy every array, and has no NumPy type for float8.
    """
    try:
        content = np.memmap(path, np.uint8, "r")
        n_header = int.from_bytes(content[:8].tobytes(), "little")
        header = parse_json(content[8 : 8 + n_header].tobytes())
        header.pop("__metadata__", None)
        arrays = {}
        for name, entry in header.items():
            start, stop = (8 + n_header + offset for offset in entry["data_offsets"])
            arrays[name] = content[start:stop].view(jnp.dtype(_DTYPES[entry["dtype"]])).reshape(entry["shape"])
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ServedModelError(f"`{path}` is damaged ({error!r:.80}). Export the model again.") from error
    return arrays
