"""TensorFlow Serving's protocol: `predict` with rows (`instances`) or columns (`inputs`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trellis.errors import DataError
from trellis.serving.json_tensors import as_lists, read_array, read_document
from trellis.serving.load import LoadedModel
from trellis.serving.manifest import ArraySpec
from trellis.spelling import did_you_mean

_DEFAULT = "serving_default"
"""What TensorFlow calls the signature that is meant if none is named."""


@dataclass(frozen=True)
class PredictRequest:
    """What a request asks, and in what form it wants the answer."""

    signature: str
    arrays: Mapping[str, np.ndarray]
    is_by_row: bool


def model_status(version: int) -> dict[str, Any]:
    """What TensorFlow Serving tells of a version that it serves."""
    status = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(version), "state": "AVAILABLE", "status": status}]}


def model_metadata(model: LoadedModel, *, name: str, version: int) -> dict[str, Any]:
    """What TensorFlow Serving tells of a model's functions."""
    signatures = {}
    for key, signature in model.signatures.items():
        sides = {"inputs": signature.spec.inputs, "outputs": signature.spec.outputs}
        tensors = {side: {spec.name: _tensor(spec) for spec in specs} for side, specs in sides.items()}
        signatures[key] = {**tensors, "method_name": "tensorflow/serving/predict"}
    signatures = {_DEFAULT: signatures[model.manifest.default_signature], **signatures}
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _tensor(spec: ArraySpec) -> dict[str, Any]:
    sizes = [{"size": str(size if isinstance(size, int) else -1), "name": ""} for size in spec.shape]
    dtypes = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}
    dtype = f"DT_{dtypes.get(spec.dtype, spec.dtype.upper())}"
    return {"dtype": dtype, "tensor_shape": {"dim": sizes, "unknown_rank": False}, "name": spec.name}


def read_predict_request(body: bytes, *, model: LoadedModel) -> PredictRequest:
    """The arrays of a request; a DataError says what is wrong with it."""
    document = read_document(body)
    signature = document.get("signature_name") or _DEFAULT
    if signature == _DEFAULT and _DEFAULT not in model.signatures:
        signature = model.manifest.default_signature
    if not isinstance(signature, str) or signature not in model.signatures:
        suggestion = did_you_mean(str(signature), model.signatures)
        raise DataError(
            f"There is no signature {signature!r:.80}.{suggestion} There are: {', '.join(model.signatures)}."
        )
    specs = model.signatures[signature].spec.inputs
    if ("instances" in document) == ("inputs" in document):
        raise DataError(
            f"The request has to have either 'instances', a list of examples, or 'inputs', arrays by name. "
            f"The model takes {_listed(specs)}."
        )
    is_by_row = "instances" in document
    columns = _columns(document["instances"], specs) if is_by_row else _by_name(document["inputs"], specs)
    by_name = {spec.name: spec for spec in specs}
    for name in columns:
        if name not in by_name:
            suggestion = did_you_mean(name, by_name)
            raise DataError(f"There is no input {name!r:.80}.{suggestion} The model takes {_listed(specs)}.")
    arrays = {name: read_array(data, by_name[name]) for name, data in columns.items()}
    return PredictRequest(signature, arrays, is_by_row)


def _listed(specs: Sequence[ArraySpec]) -> str:
    return ", ".join(map(str, specs))


def _by_name(inputs: Any, specs: Sequence[ArraySpec]) -> dict[str, Any]:
    if isinstance(inputs, dict):
        return inputs
    if len(specs) > 1:
        raise DataError(f"inputs has no names, but the model takes {_listed(specs)}.")
    return {specs[0].name: inputs}


def _columns(instances: Any, specs: Sequence[ArraySpec]) -> dict[str, Any]:
    if not isinstance(instances, list) or not instances:
        raise DataError("instances has to be a list of one example or more.")
    if not any(isinstance(instance, dict) for instance in instances):
        return _by_name(instances, specs)
    names = list(instances[0]) if isinstance(instances[0], dict) else []
    for number, instance in enumerate(instances):
        if not isinstance(instance, dict) or instance.keys() != set(names):
            raise DataError(f"Example {number} of instances has other names than the first. All have to be alike.")
    return {name: [instance[name] for instance in instances] for name in names}


def write_predict_answer(request: PredictRequest, outputs: Mapping[str, np.ndarray]) -> bytes:
    """The body of an answer."""
    columns = {name: as_lists(array) for name, array in outputs.items()}
    if not request.is_by_row:
        return json.dumps({"outputs": _alone(columns)}).encode()
    n_examples = len(next(iter(request.arrays.values())))
    for name, array in outputs.items():
        if array.shape[:1] != (n_examples,):
            raise DataError(f"The output {name} is not by example. Ask with 'inputs' in the place of 'instances'.")
    if len(columns) == 1:
        return json.dumps({"predictions": _alone(columns)}).encode()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return json.dumps({"predictions": rows}).encode()


def _alone(columns: Mapping[str, Any]) -> Any:
    return next(iter(columns.values())) if len(columns) == 1 else columns
