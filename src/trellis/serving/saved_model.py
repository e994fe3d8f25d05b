"""A model as a SavedModel: TensorFlow loads it and answers from it, without Trellis and without JAX."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from trellis.errors import ModelError
from trellis.serving.manifest import FILES_OF, Manifest, SignatureSpec

_DEFAULT = "serving_default"


def write_saved_model(
    directory: Path,
    *,
    arrays: Mapping[str, np.ndarray],
    exported: Mapping[str, export.Exported],
    manifest: Manifest,
) -> None:
    """Writes functions with their parameters, which become variables; each function is tried first.

    Args:
        exported: Functions of (arrays, inputs).
        manifest: Tells what they take and return, and which is called by default; its metadata goes along.
    """
    import tensorflow as tf

    module = tf.Module()
    module.parameters = [tf.Variable(array, trainable=False, name=name) for name, array in sorted(arrays.items())]
    functions = {
        name: _function(tf, module.parameters, each, manifest.signatures[name]) for name, each in exported.items()
    }
    for name, function in functions.items():
        _try(tf, name, function, exported[name])
    signatures = {_DEFAULT: functions[manifest.default_signature], **functions}
    tf.saved_model.save(module, str(directory), signatures=signatures)
    metadata_file = directory / FILES_OF["saved_model"] / "metadata.json"
    metadata_file.parent.mkdir(exist_ok=True)
    metadata_file.write_text(f"{json.dumps(manifest.metadata, indent=1)}\n")


def _function(tf: Any, parameters: Sequence[Any], exported: export.Exported, spec: SignatureSpec) -> Any:
    """A function of named tensors that TensorFlow runs by the StableHLO of an exported one."""
    # The operation is not public; JAX's own converter imports it from here, too.
    from tensorflow.compiler.tf2xla.python import xla

    names = [_plain(each.name) for each in spec.outputs]
    shapes = [[size if isinstance(size, int) else None for size in aval.shape] for aval in exported.out_avals]

    def call(**inputs: Any) -> dict[str, Any]:
        arguments = [*parameters, *(inputs[_plain(each.name)] for each in spec.inputs)]
        results = xla.call_module(
            [arguments[index] for index in exported.module_kept_var_idx],
            version=exported.calling_convention_version,
            module=exported.mlir_module_serialized,
            Sout=shapes,
            Tout=[aval.dtype.name for aval in exported.out_avals],
            platforms=[name.upper() for name in exported.platforms],
        )
        return dict(zip(names, results, strict=True))

    tensors = {
        _plain(each.name): tf.TensorSpec(
            [size if isinstance(size, int) else None for size in each.shape], each.dtype, _plain(each.name)
        )
        for each in spec.inputs
    }
    return tf.function(call, autograph=False).get_concrete_function(**tensors)


def _try(tf: Any, name: str, function: Any, exported: export.Exported) -> None:
    """Runs a function once in TensorFlow: only that shows whether it understands what this JAX exports."""
    if "cpu" not in exported.platforms:
        return
    inputs = function.structured_input_signature[1]
    zeros = {key: tf.zeros([size or 1 for size in spec.shape], spec.dtype) for key, spec in inputs.items()}
    try:
        with tf.device("CPU"):
            function(**zeros)
    except tf.errors.OpError as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"TensorFlow {tf.__version__} cannot run {name} as JAX {jax.__version__} exports it: {reason} Install a "
            f"newer TensorFlow, or an older JAX."
        ) from error


def _plain(name: str) -> str:
    """A name as TensorFlow takes it for an argument."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
