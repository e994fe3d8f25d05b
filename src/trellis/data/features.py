"""What the examples of a file hold, and its conversion into columns."""

import abc
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trellis.data.files import is_image
from trellis.data.images import decode_image
from trellis.data.ragged import TEXT_DTYPES, Ragged, offsets_of, row_at
from trellis.errors import ArgumentError, DataError

Column = NDArray[Any] | Ragged
Missing = float | str
"""What stands for a value that an example does not have."""

_TEXT_NAMES: dict[object, str] = {str: "str", bytes: "bytes", "str": "str", "bytes": "bytes"}


class Feature(NamedTuple):
    """What a column holds: the dtype of its values, and the shape of one example.

    The dtype is a NumPy name, "str" or "bytes". The shape is `()` for one value (and for any text), `(28, 28)` for an
    array, and `(None,)` for any number of values; a feature that is absent from an example has none.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        sizes = ", ".join("any" if length is None else str(length) for length in self.shape)
        return f"{self.dtype}[{sizes}]" if self.shape else self.dtype

    @property
    def is_text(self) -> bool:
        """Whether the values are `str` or `bytes`."""
        return self.dtype in TEXT_DTYPES

    @property
    def is_ragged(self) -> bool:
        """Whether examples may differ in length."""
        return self.is_text or self.shape == (None,)


@dataclass(frozen=True)
class Cells:
    """The values of one feature in consecutive examples, as the file holds them."""

    values: Ragged
    is_present: NDArray[np.bool_]
    """Which examples have the feature: of texts some may be empty, of numbers none."""
    item_shape: tuple[int, ...] | None = None
    """The shape of one item of the lists in the file; None if it holds no lists."""
    is_single: bool = False
    """Whether the file has one cell for each example, so that an absent one is a cell without a value."""

    @property
    def is_text(self) -> bool:
        """Whether the values are `str` or `bytes`."""
        return self.values.dtype in TEXT_DTYPES


class ExampleBlock(abc.ABC):
    """Consecutive examples of one file.

    Args:
        unit: What a file counts: records, rows or lines.
        first: The number of the first example.
    """

    def __init__(self, path: Path, *, unit: str, first: int, n_examples: int) -> None:
        self.path = path
        self._unit = unit
        self._first = first
        self._n_examples = n_examples

    def __len__(self) -> int:
        return self._n_examples

    def place(self, index: int) -> str:
        """Returns where in the file an example of this block is, for an error."""
        return f"{self._unit} {self._first + index}"

    @property
    @abc.abstractmethod
    def names(self) -> list[str]:
        """The features that some of the examples have."""

    @abc.abstractmethod
    def cells(self, name: str, *, dtype: str | None) -> Cells:
        """Returns the values of a feature, or none if no example has it.

        Args:
            dtype: What to read text as, where a file holds only text.
        """

    def error(self, problem: str, *, index: int, name: str) -> DataError:
        """Makes an error that names the place of an example's feature."""
        return DataError(f"{self.path}, {self.place(index)}, feature {name!r}: {problem}")


def parse_feature(pair: tuple[DTypeLike, Sequence[int | None]], *, name: str) -> Feature:
    """Returns a feature from a pair of dtype and shape; raises ArgumentError if no column can hold it."""
    try:
        dtype, shape = pair
        if dtype is None:
            # NumPy would take it for float64.
            raise TypeError("no dtype")
        feature = Feature(_TEXT_NAMES[dtype] if dtype in _TEXT_NAMES else np.dtype(dtype).name, tuple(shape))
    except (TypeError, ValueError) as error:
        form = "(dtype, shape), such as (np.int64, ()) or (str, ())"
        raise ArgumentError(f"Feature {name!r} is {pair!r}. Give a pair of {form}.") from error
    if not feature.is_text and np.dtype(feature.dtype).kind not in "biuf":
        raise ArgumentError(f"Feature {name!r} is of {feature.dtype}. A column holds bools, numbers, str or bytes.")
    is_fixed = all(isinstance(size, int) and size > 0 for size in feature.shape)
    if feature.shape and (feature.is_text or not (is_fixed or feature.is_ragged)):
        raise ArgumentError(
            f"Feature {name!r} of {feature.dtype} has shape {feature.shape}. "
            "A text has shape (); numbers have positive sizes, or (None,) for any length."
        )
    return feature


def infer_features(block: ExampleBlock, *, missing: Mapping[str, Missing]) -> dict[str, Feature]:
    """Returns the features that fit the examples of a block, and what stands for absent ones."""
    return {name: _inferred(block.cells(name, dtype=None), missing.get(name, np.nan)) for name in block.names}


def column_of(block: ExampleBlock, *, name: str, feature: Feature, missing: Missing | None = None) -> Column:
    """Returns a feature of a block's examples as a column; raises DataError if it is absent or of another kind.

    Args:
        missing: What stands for an absent one; None is NaN for a float that has a cell, and an error for all others.
    """
    cells = block.cells(name, dtype=feature.dtype)
    if cells.is_text and cells.is_single and missing is not None:
        # In a table an empty cell of text is a text, until somebody says what stands for it.
        cells = replace(cells, is_present=cells.values.lengths > 0)
    if cells.values.dtype == "bytes" and feature.shape and not feature.is_ragged and cells.is_present.all():
        return _array_column(block, name, cells.values, feature)
    if feature.is_text != cells.is_text and cells.is_present.any():
        raise _mistyped(block, name, cells, feature)
    if not cells.is_present.all() and (feature.is_text or not feature.is_ragged):
        if missing is None and cells.is_single and feature.shape == () and np.dtype(feature.dtype).kind == "f":
            missing = np.nan
        if missing is None:
            index = int(np.argmin(cells.is_present))
            raise block.error(f"it is missing. {_way_out_of_absence(name, feature, cells)}", index=index, name=name)
        cells = _filled(cells, feature, missing, name=name)
    if feature.is_text:
        return _text_column(block, name, cells.values, feature)
    return _number_column(block, name, cells, feature)


def _way_out_of_absence(name: str, feature: Feature, cells: Cells) -> str:
    fill = "''" if feature.is_text else 0
    ways = [f"Fill it in, say what stands for it (missing={{{name!r}: {fill}}})"]
    if not feature.is_text:
        if feature.shape == () and cells.is_single:
            ways.append(f"ask for {_request(name, 'float32', ())}, where an empty cell is NaN")
        ways.append(f"ask for {_request(name, feature.dtype, '(None,)')}, where an absent one is empty")
    return f"{', '.join([*ways, 'or leave it out of features'])}."


def _filled(cells: Cells, feature: Feature, missing: Missing, *, name: str) -> Cells:
    """The cells with a value in the place of each absent one."""
    is_present = np.ones_like(cells.is_present)
    if feature.is_text:
        if not isinstance(missing, str | bytes):
            raise ArgumentError(f"missing[{name!r}] is {missing!r}, but the column holds text. Give a text.")
        absent = np.flatnonzero(~cells.is_present)
        rows = [cells.values[index] for index in range(len(is_present))]
        for index in absent:
            rows[index] = missing
        return Cells(Ragged.from_rows(rows, dtype=cells.values.dtype if cells.is_text else feature.dtype), is_present)
    try:
        fill = np.asarray(missing).astype(feature.dtype)
        is_fit = isinstance(missing, int | float) and (fill == missing or missing != missing)
    except (ValueError, OverflowError):
        is_fit = False
    if not is_fit:
        raise ArgumentError(f"missing[{name!r}] is {missing!r}, which is no {feature.dtype}.")
    size = math.prod(length or 0 for length in feature.shape)
    lengths = np.where(cells.is_present, cells.values.lengths, size)
    # Whole numbers stay whole, and a fraction or NaN among them makes them floats.
    kind = np.result_type(cells.values.values.dtype, np.float64 if isinstance(missing, float) else np.int64)
    values = np.full(int(lengths.sum()), missing, kind)
    values[np.repeat(cells.is_present, lengths)] = cells.values.values
    return replace(cells, values=Ragged(values, offsets=offsets_of(lengths)), is_present=is_present)


def _array_column(block: ExampleBlock, name: str, texts: Ragged, feature: Feature) -> Column:
    """Arrays whose bytes the file holds one after the other, as `ndarray.tobytes` writes them, or encoded images."""
    shape = tuple(length or 0 for length in feature.shape)
    dtype = np.dtype(feature.dtype).newbyteorder("<")
    n_bytes = math.prod(shape) * dtype.itemsize
    is_raw = texts.lengths == n_bytes
    if is_raw.all():
        return texts.values.view(dtype).astype(feature.dtype, copy=False).reshape(len(texts), *shape)
    rows = []
    for index in range(len(texts)):
        content = texts.values[texts.offsets[index] : texts.offsets[index + 1]].tobytes()
        if is_raw[index]:
            rows.append(np.frombuffer(content, dtype).reshape(shape))
            continue
        if not is_image(content):
            problem = f"it has {len(content)} bytes, but {feature.dtype} of shape {shape} are {n_bytes}, and it is no "
            way_out = f"PNG or JPEG. Ask for the shape that it has, or for {_request(name, 'bytes', ())}."
            raise block.error(problem + way_out, index=index, name=name)
        image = decode_image(content, place=f"{block.path}, {block.place(index)}, feature {name!r}")
        if image.reshape(-1).shape[0] != math.prod(shape) or dtype != np.uint8:
            problem = f"it is an image, uint8 of shape {image.shape}, but {feature.dtype} of {shape} was asked for."
            way_out = f"Ask for {_request(name, 'uint8', image.shape)}, or write images of one size."
            raise block.error(f"{problem} {way_out}", index=index, name=name)
        rows.append(image.reshape(shape))
    return np.stack(rows).astype(feature.dtype, copy=False)


def _inferred(cells: Cells, missing: Missing) -> Feature:
    dtype = cells.values.dtype
    sizes = np.unique(cells.values.lengths)
    if cells.is_text:
        return Feature(dtype)
    if cells.is_single and sizes.tolist() == [0, 1]:
        # Whole numbers have no place for NaN.
        return Feature(dtype if np.dtype(dtype).kind == "f" or isinstance(missing, int) else "float64")
    if len(sizes) > 1 or sizes[0] == 0:
        return Feature(dtype, (None,))
    if cells.item_shape is None:
        return Feature(dtype, () if sizes[0] == 1 else (int(sizes[0]),))
    return Feature(dtype, (int(sizes[0]) // math.prod(cells.item_shape), *cells.item_shape))


def _text_column(block: ExampleBlock, name: str, texts: Ragged, feature: Feature) -> Ragged:
    if feature.dtype == "str" and texts.dtype == "bytes":
        starts = texts.offsets[:-1][texts.lengths > 0]
        try:
            texts.values.tobytes().decode()
            # A byte of the form 10xxxxxx continues a character: first in a text, it continues one of the text before.
            wrong = starts[texts.values[starts] & 0xC0 == 0x80]
        except UnicodeDecodeError as error:
            wrong = np.array([error.start])
        if len(wrong):
            problem = f"its bytes are not UTF-8. Ask for {_request(name, 'bytes', ())}."
            raise block.error(problem, index=row_at(texts.offsets, place=wrong[0]), name=name)
    return Ragged(texts.values, offsets=texts.offsets, dtype=feature.dtype)


def _number_column(block: ExampleBlock, name: str, cells: Cells, feature: Feature) -> Column:
    ragged = cells.values
    if ragged.values.dtype.kind == "f" and np.dtype(feature.dtype).kind != "f" and len(ragged.values):
        raise _mistyped(block, name, cells, feature)
    if feature.is_ragged and cells.item_shape:
        problem = f"it holds lists of items of shape {cells.item_shape}, but only plain lists may differ in length."
        raise block.error(f"{problem} Flatten them, or leave it out of features.", index=0, name=name)
    if feature.is_ragged:
        return Ragged(_converted(block, name, ragged, feature), offsets=ragged.offsets)
    shape = tuple(length or 0 for length in feature.shape)
    is_wrong = ragged.lengths != math.prod(shape)
    if is_wrong.any():
        index = int(np.argmax(is_wrong))
        if cells.item_shape:
            n_items = ragged.lengths[index] // max(math.prod(cells.item_shape), 1)
            problem = f"it has the shape {(int(n_items), *cells.item_shape)}, but {shape} was asked for, or came first."
            raise block.error(f"{problem} Write arrays and images of one size.", index=index, name=name)
        problem = f"it has {ragged.lengths[index]} values, but shape {shape} asks for {math.prod(shape)}."
        way_out = f"If lengths differ, ask for {_request(name, feature.dtype, '(None,)')}."
        raise block.error(f"{problem} {way_out}", index=index, name=name)
    if cells.item_shape and cells.item_shape != shape[1:]:
        actual = (math.prod(shape) // math.prod(cells.item_shape), *cells.item_shape)
        way_out = f"Ask for {_request(name, feature.dtype, actual)}."
        raise block.error(f"it has shape {actual}, but {shape} was asked for. {way_out}", index=0, name=name)
    return _converted(block, name, ragged, feature).reshape(len(block), *shape)


def _converted(block: ExampleBlock, name: str, ragged: Ragged, feature: Feature) -> NDArray[Any]:
    values = ragged.values
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(feature.dtype, copy=False)
        if converted.dtype.kind == "f":
            is_lost = np.isfinite(values) & ~np.isfinite(converted)
        else:
            # A value that wraps around comes back equal, but had another sign in between.
            is_lost = (converted.astype(values.dtype) != values) | ((converted < 0) != (values < 0))
    if is_lost.any():
        place = int(np.argmax(is_lost))
        problem = f"the value {values[place]} does not fit {feature.dtype}. Ask for a wider dtype."
        raise block.error(problem, index=row_at(ragged.offsets, place=place), name=name)
    return converted


def _mistyped(block: ExampleBlock, name: str, cells: Cells, feature: Feature) -> DataError:
    index = int(np.argmax(cells.is_present))
    row = cells.values[index]
    shown = reprlib.repr(row if isinstance(row, str | bytes) else row.tolist())
    actual = cells.values.dtype
    problem = f"it holds {actual} ({shown}), but {feature.dtype} was asked for."
    way_out = f"Ask for {_request(name, actual, () if cells.is_text else feature.shape)}."
    return block.error(f"{problem} {way_out}", index=index, name=name)


def _request(name: str, dtype: str, shape: object) -> str:
    """Returns what a user would write to ask for a feature."""
    return f"features={{{name!r}: ({dtype if dtype in TEXT_DTYPES else f'np.{dtype}'}, {shape}), ...}}"
