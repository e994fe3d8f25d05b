"""What a summary tells beside numbers: histograms, images and text."""

import struct
import zlib
from abc import ABC
from typing import Any

import numpy as np

from trellis.errors import ArgumentError

_N_BINS = 64
_LARGEST = 1e300
"""Beyond what a training has, and small enough that the width of a bin is a number."""
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}
"""What a PNG file calls a picture of so many channels."""


class Media(ABC):  # noqa: B024  (what can be done with each kind is the business of those who show it)
    """What a summary has under a name beside its metrics: a `Histogram`, an `Image` or a `Text`.

    What it is made of is read when it is made, so that an array may be one of the loop's own.
    """


class Histogram(Media):
    """How often values lie where, such as those of a layer's weights, of any shape.

    NaN and infinities are in no bin: `n_not_finite` counts them.

    Example:
        media = {"kernel": Histogram([0.5, 1.5, 2.0])}  # for summary.with_media(train=media)
    """

    def __init__(self, values: Any, *, n_bins: int = _N_BINS) -> None:
        if n_bins < 1:
            raise ArgumentError(f"Histogram(n_bins={n_bins}) has less than one bin.")
        numbers = _numbers(values, "Histogram").ravel()
        finite = np.clip(numbers[np.isfinite(numbers)], -_LARGEST, _LARGEST)
        self.n_not_finite = int(numbers.size - finite.size)
        """How many values are NaN or infinite."""
        self.sum = float(finite.sum())
        with np.errstate(over="ignore"):
            self.sum_of_squares = float(np.square(finite).sum())
        self.counts, self.edges = _count(finite, n_bins)
        """How many values are in each bin, and where the bins begin and end: one more of those."""

    def __repr__(self) -> str:
        others = f", n_not_finite={self.n_not_finite}" if self.n_not_finite else ""
        return f"Histogram({int(self.counts.sum())} values from {self.edges[0]:.4g} to {self.edges[-1]:.4g}{others})"


class Image(Media):
    """A picture: height × width, or height × width × channels, of which there are 1, 3 or 4.

    Pixels are whole numbers from 0 to 255, or fractions from 0 to 1; what lies outside is cut off, and NaN is black.

    Example:
        media = {"hardest": Image([[0.0, 1.0], [0.5, 0.0]])}
    """

    def __init__(self, pixels: Any) -> None:
        array = _numbers(pixels, "Image")
        array = array[..., None] if array.ndim == 2 else array
        if array.ndim != 3 or array.shape[-1] not in _COLOR_TYPES or not array.size:
            raise ArgumentError(
                f"Image was given an array of shape {np.shape(pixels)}. Give one picture: height × width, or height × "
                f"width × channels, of which there are 1, 3 or 4."
            )
        scale = 255.0 if np.issubdtype(_dtype(pixels), np.inexact) else 1.0
        self.pixels = np.clip(np.nan_to_num(array, posinf=1.0) * scale, 0, 255).round().astype(np.uint8)
        """Height × width × channels, as bytes."""

    def __repr__(self) -> str:
        return f"Image({' × '.join(map(str, self.pixels.shape))})"

    def png(self) -> bytes:
        """The picture as a PNG file."""
        height, width, n_channels = self.pixels.shape
        header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[n_channels], 0, 0, 0)
        # Each row begins with the filter that it has been through: none.
        rows = np.pad(self.pixels.reshape(height, -1), ((0, 0), (1, 0)))
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )


class Text(Media):
    """Text, which TensorBoard and others show as Markdown.

    Example:
        media = {"answers": Text("What is 1 + 1? **3**")}
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ArgumentError(f"Text was given {text!r}, which is a {type(text).__name__}. Give a str.")
        # A surrogate that stands alone cannot be written to a file.
        self.text = text.encode("utf-8", "replace").decode()

    def __repr__(self) -> str:
        return f"Text({len(self.text)} characters)"


def _dtype(values: Any) -> np.dtype[Any]:
    dtype = np.asarray(values).dtype
    # Those of eight or sixteen bits that NumPy itself does not have are fractions.
    return np.dtype(np.float64) if dtype.kind == "V" else dtype


def _numbers(values: Any, name: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    try:
        array = np.asarray(values)
        if array.dtype.kind in "cSUM":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} was given a {type(values).__name__} that holds no real numbers.") from None


def _count(values: Any, n_bins: int) -> tuple[Any, Any]:
    if not values.size:
        return np.zeros(1, np.int64), np.zeros(2)
    try:
        return np.histogram(values, bins=n_bins)
    except ValueError:
        # So close together that there are no numbers between them to part bins.
        return np.histogram(values, bins=1)
