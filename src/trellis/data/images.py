"""Encoded images to arrays."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.errors import DataError, MissingPackageError


def decode_image(content: bytes, *, place: str) -> NDArray[Any]:
    """Decodes a PNG or JPEG into uint8 `[height, width, channels]`.

    There is one channel for grey, there are three for colours, and four with transparency.

    Args:
        place: Where the bytes are from, for an error.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingPackageError("pillow", "images") from None
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            # Palettes, sixteen bits and the colours of printers become what networks read.
            mode = image.mode if image.mode in ("L", "RGB", "RGBA") else "L" if image.mode in ("1", "I;16") else "RGB"
            array = np.asarray(image.convert(mode))
    except UnidentifiedImageError:
        # Its text has the address of our own buffer.
        raise DataError(f"{place}: not a PNG or JPEG, or damaged. Write it again, or leave it out.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{place}: not a PNG or JPEG, or damaged ({error}). Write it again, or leave it out."
        ) from error
    return array[..., None] if array.ndim == 2 else array
