"""Arrays by name in one file: the safetensors format, which holds nothing but numbers and is read without copying."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from trellis.errors import ServedModelError

_DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
_NAMES = {code: name for name, code in _DTYPES.items()}


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays in the order of their names."""
    header, offset = {}, 0
    for name, array in sorted(arrays.items()):
        if array.dtype.name not in _DTYPES:
            raise ServedModelError(f"The variable {name} is of type {array.dtype}, which cannot be stored.")
        stop = offset + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    # So that the arrays begin at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, array in sorted(arrays.items()):
            file.write(np.ascontiguousarray(array).tobytes())


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, as views of it that are read when they are looked at."""
    content = np.memmap(path, np.uint8, "r")
    n_header = int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8 : 8 + n_header].tobytes())
    header.pop("__metadata__", None)
    return {name: _view(content[8 + n_header :], entry) for name, entry in header.items()}


def _view(content: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray:
    start, stop = entry["data_offsets"]
    return content[start:stop].view(jnp.dtype(_NAMES[entry["dtype"]])).reshape(entry["shape"])
