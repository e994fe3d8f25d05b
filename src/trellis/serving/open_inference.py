"""The Open Inference Protocol, version 2: tensors by name, with datatypes and shapes, in JSON or as bytes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trellis.errors import DataError, ServedModelError
from trellis.serving.json_tensors import as_lists, read_array, read_document
from trellis.serving.load import LoadedModel
from trellis.serving.manifest import ArraySpec, SignatureSpec
from trellis.spelling import did_you_mean

HEADER_LENGTH = "inference-header-content-length"
"""The header that tells where JSON ends and bytes begin."""
EXTENSIONS = ("binary_tensor_data",)
_PLATFORM = "trellis_jax_export"
_NUMPY_DTYPES: Mapping[str, str] = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
_DATATYPES = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}
_OF_NARROW_FLOATS = "FP32"
"""What narrower floats than NumPy's are sent as: JSON has no datatype for them, and FP32 holds them exactly."""


@dataclass(frozen=True)
class InferRequest:
    """What a request asks, and in what form it wants the answer."""

    id: str | None
    signature: str
    arrays: Mapping[str, np.ndarray]
    output_names: Sequence[str]
    binary_names: Sequence[str]
    """The outputs that are wanted as bytes."""


def model_metadata(model: LoadedModel, *, name: str, version: int) -> dict[str, Any]:
    """What the protocol tells of a model: that of its default signature."""
    spec = model.signatures[model.manifest.default_signature].spec
    return {
        "name": name,
        "versions": [str(version)],
        "platform": _PLATFORM,
        "inputs": [_tensor_metadata(each) for each in spec.inputs],
        "outputs": [_tensor_metadata(each) for each in spec.outputs],
    }


def check_datatypes(spec: SignatureSpec) -> None:
    """Raises an error if a function takes or returns what the protocol has no datatype for."""
    for each in (*spec.inputs, *spec.outputs):
        if each.dtype not in _DATATYPES and "float" not in each.dtype:
            raise ServedModelError(f"{each} cannot be sent: there is no datatype for {each.dtype} in JSON.")


def _tensor_metadata(spec: ArraySpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": spec.name, "datatype": _datatype(spec.dtype), "shape": shape}


def _datatype(dtype: str) -> str:
    return _DATATYPES.get(dtype, _OF_NARROW_FLOATS)


def read_infer_request(body: bytes, *, header_length: str | None, model: LoadedModel) -> InferRequest:
    """The tensors of a request; a DataError says what is wrong with it.

    Args:
        header_length: The value of the header of that name; None if the body is JSON alone.
    """
    n_json = len(body) if header_length is None else _header_length(header_length, len(body))
    document = read_document(body[:n_json])
    parameters = _parameters(document, "The request")
    signature = parameters.get("signature", model.manifest.default_signature)
    if signature not in model.signatures:
        suggestion = did_you_mean(str(signature), model.signatures)
        raise DataError(
            f"There is no signature {signature!r:.80}.{suggestion} There are: {', '.join(model.signatures)}."
        )
    spec = model.signatures[signature].spec
    arrays = _arrays(document.get("inputs"), spec, _Bytes(body, n_json))
    names, binary_names = _outputs(document.get("outputs"), spec, bool(parameters.get("binary_data_output")))
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise DataError("The id of the request has to be text.")
    return InferRequest(request_id, signature, arrays, names, binary_names)


class _Bytes:
    """The part of a body after its JSON, taken from the front."""

    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._start = start

    @property
    def n_left(self) -> int:
        return len(self._body) - self._start

    def take(self, size: int) -> bytes:
        self._start += size
        return self._body[self._start - size : self._start]


def _header_length(text: str, n_body: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or int(text) > n_body:
        raise DataError(f"Inference-Header-Content-Length is {text!r:.40}, but the body has {n_body} bytes.")
    return int(text)


def _parameters(document: Mapping[str, Any], owner: str) -> Mapping[str, Any]:
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise DataError(f"{owner} has parameters that are no JSON object.")
    return parameters


def _arrays(inputs: Any, spec: SignatureSpec, binary: _Bytes) -> dict[str, np.ndarray]:
    if not isinstance(inputs, list) or not all(isinstance(tensor, dict) for tensor in inputs):
        raise DataError(
            f"The request has no list of inputs. Give {{'inputs': [{{'name', 'shape', 'datatype', 'data'}}, …]}}; "
            f"the model takes {', '.join(map(str, spec.inputs))}."
        )
    specs = {each.name: each for each in spec.inputs}
    arrays = {}
    for tensor in inputs:
        name = tensor.get("name")
        if not isinstance(name, str) or name not in specs:
            suggestion = did_you_mean(str(name), specs)
            raise DataError(
                f"There is no input {name!r:.80}.{suggestion} The model takes {', '.join(map(str, spec.inputs))}."
            )
        if name in arrays:
            raise DataError(f"The input {name} is given twice.")
        arrays[name] = _array(tensor, specs[name], binary)
    if binary.n_left:
        raise DataError(f"The body has {binary.n_left} bytes after those of the inputs.")
    return arrays


def _array(tensor: Mapping[str, Any], spec: ArraySpec, binary: _Bytes) -> np.ndarray:
    datatype = tensor.get("datatype")
    if datatype == "BYTES":
        raise DataError(f"{spec.name} is BYTES, but the model takes {spec}. Models of text take it at other addresses.")
    dtype = _NUMPY_DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise DataError(f"{spec.name} has the datatype {datatype!r:.40}. There are: {', '.join(_NUMPY_DTYPES)}.")
    if _family(dtype) != _family(spec.dtype):
        raise DataError(f"{spec.name} is {datatype}, but the model takes {_datatype(spec.dtype)}: {spec}.")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
        raise DataError(f"{spec.name} has the shape {shape!r:.80}, which is no list of sizes. The model takes {spec}.")
    n_bytes = _parameters(tensor, spec.name).get("binary_data_size")
    if n_bytes is not None:
        return _from_bytes(n_bytes, spec, dtype, shape, binary)
    if "data" not in tensor:
        raise DataError(f"{spec.name} has no data.")
    array = read_array(tensor["data"], spec)
    if math.prod(shape) != array.size or (array.ndim > 1 and array.shape != tuple(shape)):
        raise DataError(f"{spec.name} has the shape {shape}, but its data are of shape {list(array.shape)}.")
    return array.reshape(shape)


def _family(dtype: str) -> str:
    return "float" if "float" in dtype else "bool" if dtype == "bool" else "int"


def _from_bytes(n_bytes: Any, spec: ArraySpec, dtype: str, shape: Sequence[int], binary: _Bytes) -> np.ndarray:
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes != expected or type(n_bytes) is not int:
        raise DataError(f"{spec.name} has a binary_data_size of {n_bytes!r:.40}, but its shape takes {expected} bytes.")
    if n_bytes > binary.n_left:
        raise DataError(f"{spec.name} is to have {n_bytes} bytes, but the body has {binary.n_left} more.")
    content = binary.take(n_bytes)
    array = np.frombuffer(content, "uint8") != 0 if dtype == "bool" else np.frombuffer(content, f"<{_code(dtype)}")
    return array.reshape(shape)


def _code(dtype: str) -> str:
    return np.dtype(dtype).str[1:]


def _outputs(asked: Any, spec: SignatureSpec, are_binary: bool) -> tuple[list[str], list[str]]:
    """The names of the outputs that are wanted, and of those that are wanted as bytes."""
    names = [each.name for each in spec.outputs]
    if asked is None or asked == []:
        return names, names if are_binary else []
    if not isinstance(asked, list) or not all(isinstance(each, dict) for each in asked):
        raise DataError("outputs has to be a list of JSON objects with names.")
    binary_names = []
    for each in asked:
        name = each.get("name")
        if name not in names:
            suggestion = did_you_mean(str(name), names)
            raise DataError(f"There is no output {name!r:.80}.{suggestion} There are: {', '.join(names)}.")
        if _parameters(each, name).get("binary_data", are_binary):
            binary_names.append(name)
    return [each["name"] for each in asked], binary_names


def write_infer_answer(
    request: InferRequest, outputs: Mapping[str, np.ndarray], *, name: str, version: int
) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers."""
    tensors = []
    contents = []
    for output in request.output_names:
        array = outputs[output]
        datatype = _datatype(array.dtype.name)
        tensor: dict[str, Any] = {"name": output, "shape": list(array.shape), "datatype": datatype}
        if output in request.binary_names:
            content = array.astype(f"<{_code(_NUMPY_DTYPES[datatype])}").tobytes()
            contents.append(content)
            tensor["parameters"] = {"binary_data_size": len(content)}
        else:
            tensor["data"] = as_lists(array.reshape(-1))
        tensors.append(tensor)
    known_by = {} if request.id is None else {"id": request.id}
    document = {"model_name": name, "model_version": str(version), **known_by, "outputs": tensors}
    header = json.dumps(document).encode()
    if not contents:
        return header, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return b"".join([header, *contents]), headers
