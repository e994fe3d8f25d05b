"""Columns written to disk batch by batch."""

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, NDArray

from trellis.data.columns import MANIFEST, VERSION, as_column, column_files, feature_of
from trellis.data.features import Column, Feature
from trellis.data.ragged import Ragged
from trellis.errors import ArgumentError, DataError

_ABANDONED_SECONDS = 24 * 60 * 60


class ColumnsWriter:
    """Writes a directory of columns, which appears whole when the writer is left without an error, or not at all.

    Batches are written as they come, so memory does not grow with them. The first decides what the columns hold.

    Example:
        with ColumnsWriter("columns/train") as writer:
            writer.append({"label": np.array([0, 1]), "text": ["no", "yes"]})
        columns = Columns.open("columns/train")

    Args:
        source: What the columns are made of, such as a fingerprint; kept in the manifest.
    """

    def __init__(self, directory: str | os.PathLike[str], *, source: str = "") -> None:
        self.directory = Path(directory)
        self._source = source
        if self.directory.exists() and any(self.directory.iterdir()) and not self._is_written():
            raise ArgumentError(f"{self.directory} exists and is not empty. Delete it, or write to another directory.")
        self._n_examples = 0
        self._features: dict[str, Feature] = {}
        self._files: dict[str, _ArrayFile] = {}
        self._longest: dict[str, int] = {}
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(self.directory)
        self._partial = self.directory.with_name(f".{self.directory.name}.{secrets.token_hex(4)}.partial")
        self._partial.mkdir()

    def append(self, batch: Mapping[str, ArrayLike | Ragged]) -> None:
        """Adds examples: the same columns in each batch, of any number of examples."""
        columns = {name: as_column(values, name=name) for name, values in batch.items()}
        features = {name: feature_of(column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ArgumentError(f"The columns of a batch need one length, but theirs are {lengths}.")
        if not self._features:
            self._start(features, columns)
        if features != self._features:
            raise ArgumentError(f"The columns of this batch are {features}, but those of the first {self._features}.")
        for name, column in columns.items():
            self._append_column(name, column)
        self._n_examples += next(iter(lengths.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            for file in self._files.values():
                file.close()
            shutil.rmtree(self._partial, ignore_errors=True)

    def _start(self, features: dict[str, Feature], columns: Mapping[str, Column]) -> None:
        self._features = features
        for name, column in columns.items():
            values = column.values if isinstance(column, Ragged) else column
            names = column_files(name, feature=features[name])
            self._files[names[0]] = _ArrayFile(self._partial / names[0], dtype=values.dtype, shape=values.shape[1:])
            if features[name].is_ragged:
                self._longest[name] = 0
                self._files[names[1]] = _ArrayFile(self._partial / names[1], dtype=np.dtype(np.int64), shape=())
                self._files[names[1]].append(np.zeros(1, np.int64))

    def _append_column(self, name: str, column: Column) -> None:
        names = column_files(name, feature=self._features[name])
        if isinstance(column, Ragged):
            n_before = self._files[names[0]].n_rows
            self._files[names[0]].append(column.values)
            self._files[names[1]].append(column.offsets[1:] + n_before)
            self._longest[name] = max(self._longest[name], column.longest)
        else:
            self._files[names[0]].append(column)

    def _commit(self) -> None:
        if not self._features:
            raise DataError(f"No examples were written to {self.directory}. Append at least one batch.")
        manifest = {
            "version": VERSION,
            "count": self._n_examples,
            "source": self._source,
            "columns": {
                name: {"dtype": feature.dtype, "shape": feature.shape, "longest": self._longest.get(name)}
                for name, feature in self._features.items()
            },
            "files": {name: file.finish() for name, file in self._files.items()},
        }
        with (self._partial / MANIFEST).open("w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        try:
            self._partial.rename(self.directory)
        except OSError:
            if not self._is_written():
                raise

    def _is_written(self) -> bool:
        """Whether another process has written the same columns meanwhile, which are as good as these."""
        path = self.directory / MANIFEST
        return bool(self._source) and path.is_file() and json.loads(path.read_text())["source"] == self._source


class _ArrayFile:
    """An `.npy` file that grows; its header is written again when the number of rows is known."""

    def __init__(self, path: Path, *, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.n_rows = 0
        self._dtype = dtype
        self._shape = shape
        self._file = path.open("xb")
        self._write_header()

    def append(self, rows: NDArray[Any]) -> None:
        """Adds rows."""
        np.ascontiguousarray(rows, self._dtype).tofile(self._file)
        self.n_rows += len(rows)

    def finish(self) -> int:
        """Brings the file to the disk, and returns how many bytes it has."""
        self._file.seek(0, os.SEEK_END)
        n_bytes = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        return n_bytes

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write_header(self) -> None:
        # NumPy leaves room in a header for the first axis to grow, so that the last one is as long as the first.
        descr = npy.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.n_rows, *self._shape)}
        npy.write_array_header_1_0(self._file, header)


def _remove_abandoned(directory: Path) -> None:
    """Removes what killed writers of the same columns left, once nothing has been written to it for a day."""
    for partial in directory.parent.glob(f".{directory.name}.*.partial"):
        changed = max((path.stat().st_mtime for path in (partial, *partial.glob("*"))), default=0)
        if time.time() - changed > _ABANDONED_SECONDS:
            shutil.rmtree(partial, ignore_errors=True)
