"""Examples as named columns, in memory or memory-mapped, gathered without Python per example."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trellis.data.features import Column, Feature
from trellis.data.ragged import TEXT_DTYPES, Padding, Ragged
from trellis.errors import ArgumentError, DataError

MANIFEST = "columns.json"
VERSION = 1


class Columns:
    """Examples by column: a column is an array whose first axis is the examples, or a `Ragged`; all have one length.

    Example:
        columns = Columns.open("columns/train")
        columns = columns.select(["input_ids", "label"]).padded({"input_ids": Padding(length=128)})
        batch = columns.take(np.array([5, 3, 8]))
    """

    def __init__(self, columns: Mapping[str, Column], *, paddings: Mapping[str, Padding] | None = None) -> None:
        self._columns = dict(columns)
        self._paddings = dict(paddings or {})
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) != 1:
            raise ArgumentError(f"The lengths of the columns are {lengths}. Give columns of one length.")
        self._n_examples = next(iter(lengths.values()))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, ArrayLike | Ragged]) -> Self:
        """Makes columns in memory of arrays, of lists of `str` or `bytes`, or of `Ragged`s."""
        return cls({name: as_column(array, name=name) for name, array in arrays.items()})

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Self:
        """Memory-maps columns that a `ColumnsWriter` wrote."""
        directory = Path(directory)
        manifest = read_manifest(directory)
        for name, n_bytes in manifest["files"].items():
            file = directory / name
            n_found = file.stat().st_size if file.is_file() else 0
            if n_found != n_bytes:
                problem = f"{file} has {n_found} bytes, but {n_bytes} were written"
                raise DataError(f"{problem}. Delete {directory} and write the columns again.")
        columns: dict[str, Column] = {}
        for name, entry in manifest["columns"].items():
            feature = Feature(entry["dtype"], tuple(entry["shape"]))
            arrays = [_mapped(directory / file) for file in column_files(name, feature=feature)]
            columns[name] = arrays[0]
            if feature.is_ragged:
                columns[name] = Ragged(arrays[0], offsets=arrays[1], dtype=feature.dtype, longest=entry["longest"])
        return cls(columns)

    def __len__(self) -> int:
        return self._n_examples

    def __getitem__(self, name: str) -> Column:
        """Returns a column."""
        if name not in self._columns:
            raise ArgumentError(f"There is no column {name!r}. The columns are: {', '.join(self._columns)}.")
        return self._columns[name]

    @property
    def features(self) -> dict[str, Feature]:
        """What each column holds."""
        return {name: feature_of(column) for name, column in self._columns.items()}

    def select(self, names: Sequence[str]) -> Self:
        """Returns some of the columns."""
        paddings = {name: padding for name, padding in self._paddings.items() if name in names}
        return type(self)({name: self[name] for name in names}, paddings=paddings)

    def padded(self, paddings: Mapping[str, Padding]) -> Self:
        """Returns the same columns; `take` pads the ragged ones that are named in this way."""
        for name, padding in paddings.items():
            column = self[name]
            if not isinstance(column, Ragged) or column.dtype == "str":
                raise ArgumentError(f"Column {name!r} is no ragged column of numbers or bytes, so it cannot be padded.")
            if padding.length is not None and padding.length < 1:
                raise ArgumentError(f"Column {name!r} is to be padded to length {padding.length}; it takes at least 1.")
            value = np.asarray(padding.value, np.float64)
            if not np.array_equal(value.astype(column.values.dtype).astype(np.float64), value, equal_nan=True):
                raise ArgumentError(f"Column {name!r} of {column.values.dtype} cannot be padded with {padding.value}.")
        return type(self)(self._columns, paddings=self._paddings | dict(paddings))

    def take(self, indices: ArrayLike) -> dict[str, NDArray[Any]]:
        """Gathers examples by number, in any order and shape; the first axes of each array are those of `indices`.

        Ragged columns are padded as `padded` said; by default with zeros, to the longest row of the column. Bytes
        become uint8, and `str` an array of strings.
        """
        rows = np.asarray(indices)
        if rows.dtype.kind not in "iu" and rows.size:
            raise ArgumentError(f"Examples are taken by their numbers, not by {rows.dtype}.")
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise ArgumentError(f"There is no example {wrong}: the {len(self)} examples are numbered from 0.")
        return {name: self._gathered(name, column, rows.astype(np.int64)) for name, column in self._columns.items()}

    def _gathered(self, name: str, column: Column, rows: NDArray[Any]) -> NDArray[Any]:
        if not isinstance(column, Ragged):
            return np.take(column, rows, axis=0)
        try:
            return column.take(rows, padding=self._paddings.get(name, Padding()))
        except DataError as error:
            error.add_note(f"in column {name!r}")
            raise


def as_column(values: ArrayLike | Ragged, *, name: str) -> Column:
    """Returns an array, or a list of text, as a column."""
    if isinstance(values, Ragged):
        return values
    if isinstance(values, Sequence) and values and {type(value) for value in values} in ({str}, {bytes}):
        return Ragged.from_rows(values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ArgumentError(f"Column {name!r} has rows of differing length. Give Ragged.from_rows(rows).") from error
    if array.dtype.kind in "SU" and array.ndim == 1:
        return Ragged.from_rows(array.tolist(), dtype="str" if array.dtype.kind == "U" else "bytes")
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        found = f"dtype {array.dtype} and shape {array.shape}"
        raise ArgumentError(f"Column {name!r} has {found}. A column has numbers or text, one row for each example.")
    return array


def feature_of(column: Column) -> Feature:
    """Returns what a column holds."""
    if isinstance(column, Ragged):
        return Feature(column.dtype, () if column.dtype in TEXT_DTYPES else (None,))
    return Feature(column.dtype.name, column.shape[1:])


def column_files(name: str, *, feature: Feature) -> list[str]:
    """Returns the names of the files of a column."""
    # Dots are escaped too, so that the files of two columns never have one name.
    stem = quote(name, safe=" ").replace(".", "%2E")
    return [f"{stem}.values.npy", f"{stem}.offsets.npy"] if feature.is_ragged else [f"{stem}.npy"]


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the manifest of a directory of columns; raises DataError if there is no whole one."""
    path = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        problem = f"{directory} holds no whole columns: {MANIFEST}, which is written last, is not there"
        raise DataError(f"{problem}. Write the columns again.") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}). Delete {directory} and write the columns again.") from error
    if manifest.get("version") != VERSION:
        found = manifest.get("version")
        raise DataError(f"{path} has version {found}, but this Trellis reads {VERSION}. Write the columns again.")
    return manifest


def _mapped(path: Path) -> NDArray[Any]:
    array = np.load(path, mmap_mode="r")
    # The plain array under the memmap: the subclass costs time in every operation.
    return np.asarray(array)
