"""Examples of files that hold arrays: NumPy's archives, and images."""

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data.features import Cells, ExampleBlock
from trellis.data.images import decode_image
from trellis.data.ragged import Ragged, offsets_of
from trellis.errors import DataError


class ArrayFileExamples(ExampleBlock):
    """All examples of one file, as arrays by name whose first axis is the examples."""

    def __init__(self, path: Path, arrays: dict[str, NDArray[Any]], *, unit: str) -> None:
        super().__init__(path, unit=unit, first=0, n_examples=len(next(iter(arrays.values()))))
        self._arrays = arrays

    @property
    def names(self) -> list[str]:
        return list(self._arrays)

    def cells(self, name: str, *, dtype: str | None) -> Cells:
        if name not in self._arrays:
            return Cells(Ragged(np.zeros(0), offsets=np.zeros(len(self) + 1, np.int64)), np.zeros(len(self), bool))
        array = self._arrays[name]
        is_present = np.ones(len(self), bool)
        if array.dtype.kind in "SU":
            text_dtype = "str" if array.dtype.kind == "U" else "bytes"
            return Cells(Ragged.from_rows(array.tolist(), dtype=text_dtype), is_present)
        size = math.prod(array.shape[1:])
        ragged = Ragged(np.ascontiguousarray(array).reshape(-1), offsets=offsets_of(np.full(len(array), size)))
        return Cells(ragged, is_present, array.shape[2:] if array.ndim > 1 else None)


def read_npz_examples(path: Path) -> ArrayFileExamples:
    """Reads the arrays of an `.npz` file, which all have one length, or that of an `.npy`, which is called as it is."""
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            arrays = {path.stem: loaded}
        else:
            with loaded as archive:
                arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: no archive of arrays, or damaged ({error}). Write it with np.savez(path, x=x, y=y), of numbers "
            f"or text."
        ) from error
    lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items()) or "none"
        raise DataError(
            f"{path}: its arrays need one common first axis, the examples, but theirs have the lengths {listed}. Write "
            f"the others to another file."
        )
    for name, array in arrays.items():
        if array.dtype.kind not in "biufSU" or (array.dtype.kind in "SU" and array.ndim > 1):
            raise DataError(
                f"{path}, array {name!r}: it is {array.dtype} of shape {array.shape}, but a column holds numbers, or "
                f"one text for each example."
            )
    return ArrayFileExamples(path, arrays, unit="example")


def read_image_example(path: Path) -> ArrayFileExamples:
    """Reads an image file as one example: its pixels, the name of the file, and that of the folder it is in."""
    pixels = decode_image(path.read_bytes(), place=str(path))
    arrays = {"image": pixels[None], "name": np.array([path.name]), "folder": np.array([path.resolve().parent.name])}
    return ArrayFileExamples(path, arrays, unit="image")
