"""Arrays as servers send and take them in JSON: lists of numbers, checked as what a model takes."""

from typing import Any

import numpy as np

from trellis.errors import DataError
from trellis.json_text import parse_json
from trellis.serving.array_answers import plain_numbers
from trellis.serving.manifest import ArraySpec

_N_SHORT = 1_000


def read_document(body: bytes) -> dict[str, Any]:
    """The JSON object that a request is; a DataError says what else it is."""
    if not body:
        raise DataError("The request has no body. It has to be a JSON object.")
    try:
        document = parse_json(body)
    except ValueError as error:
        raise DataError(f"The body of the request is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise DataError(f"The body of the request is {_kind(document)}, but it has to be a JSON object.")
    return document


def read_array(data: Any, spec: ArraySpec) -> np.ndarray:
    """The array that nested lists of numbers are; a DataError says why they are none that the model could take.

    NaN and Infinity are taken for floats, as Triton and TensorFlow Serving take them.
    """
    try:
        array = np.asarray(data)
    except (ValueError, OverflowError):
        raise DataError(f"{spec.name} is ragged: its lists differ in length. The model takes {spec}.") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{spec.name} has {_strange(data)}, but the model takes numbers: {spec}.")
    if not array.size:
        raise DataError(f"{spec.name} is empty. The model takes {spec}, with one example or more.")
    if "float" in spec.dtype and array.dtype.kind in "iuf":
        return _narrowed(array, spec)
    return array


def _narrowed(array: np.ndarray, spec: ArraySpec) -> np.ndarray:
    """Numbers as floats of a model's precision, which they have to fit in."""
    with np.errstate(over="ignore"):
        narrow = array.astype(spec.dtype)
    if np.isinf(narrow.astype(np.float64)).sum() > np.isinf(array).sum():
        raise DataError(f"{spec.name} has numbers that {spec.dtype} cannot hold.")
    return narrow


def _strange(data: Any) -> str:
    """What of nested lists is no number."""
    while isinstance(data, list) and data:
        data = next((item for item in data if _is_strange(item)), data[0])
    return _kind(data)


def _is_strange(item: Any) -> bool:
    return any(map(_is_strange, item)) if isinstance(item, list) else type(item) not in (int, float, bool)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {str: "text", dict: "a JSON object", list: "a list", bool: "a truth value"}
    return kinds.get(type(value), "a number that is too large" if isinstance(value, int) else "a number")


def as_lists(array: np.ndarray) -> Any:
    """An array as JSON has it: floats as short as their precision allows, and `nan` and `inf` by their names."""
    if array.size > _N_SHORT and (array.dtype.kind in "biu" or np.isfinite(array.astype(np.float64)).all()):
        # Shortening costs more than it saves.
        return (array if array.dtype.kind in "biuf" else array.astype(np.float32)).tolist()
    return plain_numbers(array[None])[0]
