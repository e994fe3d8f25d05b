"""Examples as named columns, in memory or memory-mapped, gathered without Python per example."""

import errno
import hashlib
import json
import os
import random
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import google_crc32c
import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, NDArray

from trellis.data.features import Column, Feature, Missing
from trellis.data.ragged import TEXT_DTYPES, Padding, Ragged
from trellis.disk import hidden_path, local_path, remove_whole, sweep, sync_all
from trellis.errors import ArgumentError, DataError, FileWriteError, TrellisError
from trellis.json_text import parse_json
from trellis.remote import fetched
from trellis.spelling import did_you_mean
from trellis.user_cache import hold

MANIFEST = "columns.json"
_VERSION = 2
_WITHOUT_CHECKSUMS = 1
"""The version of columns that were written before there were checksums in the manifest; they are read, too."""
_BLOCK_BYTES = 1 << 22
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM)
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
_LONGEST_STEM = 200
_MOST_CHECKED_BLOCKS = 256
"""How many blocks are looked at when columns are opened: a gigabyte, in a third of a second."""


class Columns:
    """Examples by column: a column is an array whose first axis is the examples, or a `Ragged`; all have one length.

    Example:
        columns = Columns.open("columns/train")
        columns = columns.select(["input_ids", "label"]).padded({"input_ids": Padding(length=128)})
        batch = columns.take(np.array([5, 3, 8]))
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        paddings: Mapping[str, Padding] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        missing: Mapping[str, Missing] | None = None,
    ) -> None:
        self.missing = dict(missing or {})
        """What stands for an absent value, by column."""
        self.categories = {name: list(names) for name, names in (categories or {}).items()}
        """The names that the numbers of a column stand for, by column."""
        self._columns = dict(columns)
        self._paddings = dict(paddings or {})
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) != 1:
            raise ArgumentError(f"The lengths of the columns are {lengths}. Give columns of one length.")
        self._n_examples = next(iter(lengths.values()))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, ArrayLike | Ragged]) -> Self:
        """Makes columns in memory of arrays, of lists of `str` or `bytes`, or of `Ragged`s."""
        return cls({name: _as_column(array, name=name) for name, array in arrays.items()})

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Self:
        """Memory-maps columns that a `ColumnsWriter` wrote.

        Up to a gigabyte is compared with its checksums; of more than that, another part each time.
        """
        directory = fetched(directory, name="directory")
        manifest = _read_manifest(directory)
        try:
            _check_files(directory, manifest["files"])
            return cls({name: _opened(directory, name, entry) for name, entry in manifest["columns"].items()})
        except (DataError, MemoryError):
            raise
        except (OSError, ValueError, TypeError, LookupError, AttributeError, EOFError) as error:
            if isinstance(error, OSError) and error.errno not in (None, *_ABSENT):
                # There is no room to map it, or no right to read it: no reason to write it again.
                raise
            raise _damaged(directory, f"{directory / MANIFEST} does not fit its files ({error})") from error

    def __len__(self) -> int:
        return self._n_examples

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {feature}" for name, feature in self.features.items())
        return f"{len(self)} examples: {columns}"

    def __getitem__(self, name: str) -> Any:
        """Returns a column: an array, or a `Ragged` where rows differ in length."""
        if name not in self._columns:
            raise ArgumentError(f"There is no column {name!r}. The columns are: {', '.join(self._columns)}.")
        return self._columns[name]

    def ragged(self, name: str) -> Ragged:
        """Returns a column whose rows differ in length."""
        column = self[name]
        if not isinstance(column, Ragged):
            raise ArgumentError(f"The rows of column {name!r} all have the shape {column.shape[1:]}. Use columns[...].")
        return column

    @property
    def features(self) -> dict[str, Feature]:
        """What each column holds."""
        return {name: _feature_of(column) for name, column in self._columns.items()}

    def select(self, names: Sequence[str]) -> Self:
        """Returns some of the columns."""
        paddings = {name: padding for name, padding in self._paddings.items() if name in names}
        categories = {name: self.categories[name] for name in names if name in self.categories}
        missing = {name: self.missing[name] for name in names if name in self.missing}
        columns = {name: self[name] for name in names}
        return type(self)(columns, paddings=paddings, categories=categories, missing=missing)

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
        all_paddings = self._paddings | dict(paddings)
        return type(self)(self._columns, paddings=all_paddings, categories=self.categories, missing=self.missing)

    def numbered(self, categories: Mapping[str, Sequence[str] | None]) -> Self:
        """Returns the same columns, with numbers in the place of the names that columns of text hold.

        Args:
            categories: The names of a column in the order of their numbers; None is all that it holds, sorted.
        """
        names_of: dict[str, Sequence[str]] = dict(self.categories)
        columns = dict(self._columns)
        for name, given in categories.items():
            column = self[name]
            if not isinstance(column, Ragged) or column.dtype != "str":
                kind = _feature_of(column).dtype
                raise ArgumentError(f"Column {name!r} holds {kind}, but categories are text. Leave it as it is.")
            columns[name], names_of[name] = _numbered(column, given, name=name)
        return type(self)(columns, paddings=self._paddings, categories=names_of, missing=self.missing)

    def with_missing(self, missing: Mapping[str, Missing]) -> Self:
        """Returns the same columns, which tell what stands in them for an absent value."""
        return type(self)(self._columns, paddings=self._paddings, categories=self.categories, missing=missing)

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
        self.directory = local_path(directory, name="directory")
        self._source = source
        if self.directory.exists() and any(self.directory.iterdir()) and not self._is_written():
            raise ArgumentError(f"{self.directory} exists and is not empty. Delete it, or write to another directory.")
        self._n_examples = 0
        self._features: dict[str, Feature] = {}
        self._longest: dict[str, int] = {}
        self._files: dict[str, _ArrayFile] = {}
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        sweep(self.directory.parent)
        self._hidden = hidden_path(self.directory.parent)
        self._hidden.mkdir()

    def append(self, batch: Mapping[str, ArrayLike | Ragged]) -> None:
        """Adds examples: the same columns in each batch, of any number of examples."""
        columns = {name: _as_column(values, name=name) for name, values in batch.items()}
        features = {name: _feature_of(column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ArgumentError(f"The columns of a batch need one length, but theirs are {lengths}.")
        if not self._features:
            self._features = features
        if features != self._features:
            raise ArgumentError(f"The columns of this batch are {features}, but those of the first {self._features}.")
        for name, column in columns.items():
            if isinstance(column, Ragged):
                self._append_ragged(name, column)
            else:
                self._file(_file_of(name), like=column).append(column)
        self._n_examples += next(iter(lengths.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for file in self._files.values():
                file.close()
            if kind is None:
                self._commit()
        finally:
            shutil.rmtree(self._hidden, ignore_errors=True)

    def _append_ragged(self, name: str, column: Ragged) -> None:
        values = self._file(_file_of(name, part=".values"), like=column.values)
        offsets = self._file(_file_of(name, part=".offsets"), like=column.offsets)
        # A batch starts where the one before ended, so its first offset is there already.
        offsets.append(column.offsets[1 if offsets.n_rows else 0 :] + values.n_rows)
        values.append(column.values)
        self._longest[name] = max(self._longest.get(name, 0), column.longest)

    def _file(self, name: str, *, like: NDArray[Any]) -> "_ArrayFile":
        if name not in self._files:
            self._files[name] = _ArrayFile(self._hidden / name, dtype=like.dtype, shape=like.shape[1:])
        return self._files[name]

    def _commit(self) -> None:
        if not self._features:
            raise DataError(f"No examples were written to {self.directory}. Append at least one batch.")
        manifest = {
            "version": _VERSION,
            "count": self._n_examples,
            "source": self._source,
            "columns": {
                name: {"dtype": feature.dtype, "shape": feature.shape, "longest": self._longest.get(name)}
                for name, feature in self._features.items()
            },
            "files": {name: _checksums(self._hidden / name) for name in self._files},
        }
        (self._hidden / MANIFEST).write_text(json.dumps(manifest, indent=1))
        sync_all(self._hidden)
        if self._source:
            # Before it can be found: nobody is to prune a cache between its making and its first use.
            hold(self._hidden)
        try:
            self._hidden.rename(self.directory)
        except OSError:
            if not self._is_written():
                raise

    def _is_written(self) -> bool:
        """Whether another process has written the same columns meanwhile, which are as good as these."""
        path = self.directory / MANIFEST
        return bool(self._source) and path.is_file() and _read_manifest(self.directory).get("source") == self._source


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
        # Not by `tofile`, whose error does not say what is in the way.
        self._file.write(np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).data)
        self.n_rows += len(rows)

    def close(self) -> None:
        """Writes how many rows there are, and closes the file."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        # NumPy leaves room in a header for the first axis to grow, so that the last one is as long as the first.
        descr = npy.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.n_rows, *self._shape)}
        npy.write_array_header_1_0(self._file, header)


def cached_columns(directory: Path, blocks: Iterable[Mapping[str, ArrayLike | Ragged]]) -> Columns:
    """Memory-maps the columns in a directory; where there are none, or damaged ones, they are written first.

    Args:
        directory: Its name tells what is in it: two processes that write it at once write the same.
        blocks: Batches for a `ColumnsWriter`; none is asked for if the columns are there.
    """
    if hold(directory) and directory.is_dir() and any(directory.iterdir()):
        try:
            return Columns.open(directory)
        except DataError as error:
            warnings.warn(f"A cache is made anew: {error.args[0]}", stacklevel=2)
            remove_whole(directory)
    try:
        with ColumnsWriter(directory, source=directory.name) as writer:
            for block in blocks:
                writer.append(block)
    except OSError as error:
        if isinstance(error, TrellisError) or error.errno not in _FULL:
            raise
        way_out = "Make room, or name another directory for the cache."
        raise FileWriteError(f"`{directory}` could not be written: {error.strerror}. {way_out}") from error
    return Columns.open(directory)


def _checksums(file: Path) -> dict[str, Any]:
    """A file's size, and the CRC-32C of each of its blocks."""
    with file.open("rb", buffering=0) as stream:
        blocks = iter(lambda: stream.read(_BLOCK_BYTES), b"")
        return {"crc32c": list(map(google_crc32c.value, blocks)), "size": stream.tell()}


def _check_files(directory: Path, files: Mapping[str, Any]) -> None:
    """Raises DataError for a file that is missing, of another size, or damaged in a block that is looked at."""
    expected: list[tuple[Path, int, int]] = []
    for name, entry in files.items():
        file = directory / name
        n_bytes = entry["size"] if isinstance(entry, dict) else entry
        size = file.stat().st_size if file.is_file() else 0
        if size != n_bytes:
            raise _damaged(directory, f"{file} has {size} bytes, but {n_bytes} were written")
        if isinstance(entry, dict):
            if len(entry["crc32c"]) != -(-size // _BLOCK_BYTES):
                raise _damaged(directory, f"{directory / MANIFEST} lacks checksums of {file}")
            expected += ((file, number, value) for number, value in enumerate(entry["crc32c"]))
    # Which blocks are looked at changes nothing that is computed, so they may be of chance.
    chosen = random.SystemRandom().sample(expected, min(len(expected), _MOST_CHECKED_BLOCKS))
    for file, number, value in sorted(chosen):
        with file.open("rb", buffering=0) as stream:
            stream.seek(number * _BLOCK_BYTES)
            content = stream.read(_BLOCK_BYTES)
        if google_crc32c.value(content) != value:
            place = f"bytes {number * _BLOCK_BYTES} to {(number + 1) * _BLOCK_BYTES}"
            raise _damaged(directory, f"{file} is not as it was written ({place})")


def _damaged(directory: Path, problem: str) -> DataError:
    return DataError(f"{problem}. Delete {directory} and write the columns again.")


def _opened(directory: Path, name: str, entry: Mapping[str, Any]) -> Column:
    if not Feature(entry["dtype"], tuple(entry["shape"])).is_ragged:
        return _mapped(directory / _file_of(name))
    values = _mapped(directory / _file_of(name, part=".values"))
    offsets = _mapped(directory / _file_of(name, part=".offsets"))
    return Ragged(values, offsets=offsets, dtype=entry["dtype"], longest=entry["longest"])


def _numbered(column: Ragged, given: Sequence[str] | None, *, name: str) -> tuple[NDArray[np.int32], list[str]]:
    # Arrow tells names apart without a string of Python for each.
    import pyarrow

    buffers = [None, pyarrow.py_buffer(np.ascontiguousarray(column.offsets)), pyarrow.py_buffer(column.values)]
    texts = pyarrow.Array.from_buffers(pyarrow.large_string(), len(column), buffers)
    encoded = texts.dictionary_encode()
    found: list[str] = encoded.dictionary.to_pylist()
    names = sorted(found) if given is None else list(given)
    numbers = {text: number for number, text in enumerate(names)}
    if len(numbers) != len(names):
        twice = next(text for text in names if names.count(text) > 1)
        raise ArgumentError(f"categories[{name!r}] names {twice!r} twice. Each name has one number.")
    indices = encoded.indices.to_numpy()
    for index, text in enumerate(found):
        if text not in numbers:
            row = int(np.argmax(indices == index))
            raise DataError(
                f"Column {name!r}, example {row}: {text!r} is none of its {len(names)} categories."
                f"{did_you_mean(text, names)} Correct it, or add it to categories[{name!r}]."
            )
    return np.array([numbers[text] for text in found], np.int32)[indices], names


def _as_column(values: ArrayLike | Ragged, *, name: str) -> Column:
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
        description = f"dtype {array.dtype} and shape {array.shape}"
        way_out = "A column has numbers or text, one row for each example."
        raise ArgumentError(f"Column {name!r} has {description}. {way_out}")
    return array


def _feature_of(column: Column) -> Feature:
    """Returns what a column holds."""
    if isinstance(column, Ragged):
        return Feature(column.dtype, () if column.dtype in TEXT_DTYPES else (None,))
    return Feature(column.dtype.name, column.shape[1:])


def _file_of(name: str, *, part: str = "") -> str:
    """Returns the name of a file of a column."""
    # Dots are escaped too, so that the files of two columns never have one name.
    stem = quote(name, safe=" ").replace(".", "%2E")
    if len(stem) > _LONGEST_STEM:
        # A file system takes names of 255 bytes.
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        stem = f"{stem[: _LONGEST_STEM - 33]}-{digest}"
    return f"{stem}{part}.npy"


def _read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the manifest of a directory of columns; raises DataError if there is no whole one."""
    path = directory / MANIFEST
    try:
        manifest = parse_json(path.read_text())
    except FileNotFoundError as error:
        problem = f"{directory} holds no whole columns: {MANIFEST}, which is written last, is not there"
        raise DataError(f"{problem}. Write the columns again.") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}). Delete {directory} and write the columns again.") from error
    if not isinstance(manifest, dict):
        raise _damaged(directory, f"{path} is damaged")
    version = manifest.get("version")
    if version not in (_VERSION, _WITHOUT_CHECKSUMS):
        raise DataError(f"{path} has version {version}, but this Trellis reads {_VERSION}. Write the columns again.")
    return manifest


def _mapped(path: Path) -> NDArray[Any]:
    array = np.load(path, mmap_mode="r")
    # The plain array under the memmap: the subclass costs time in every operation.
    return np.asarray(array)
