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

    Each has a second form, `{name}_examples`, that takes serialized `tf.Example`s, as pipelines send them; that of the
    default function is `serving_default`.

    Args:
        exported: Functions of (arrays, inputs).
        manifest: Tells what they take and return, and which is called by default; its metadata goes along.
    """
    import tensorflow as tf

    module = tf.Module()
    module.parameters = [tf.Variable(array, trainable=False, name=name) for name, array in sorted(arrays.items())]
    module.tables = []
    functions = {
        name: _function(tf, module.parameters, each, manifest.signatures[name]) for name, each in exported.items()
    }
    for name, function in functions.items():
        _try(tf, name, function, exported[name])
    of_examples = {
        f"{name}_examples": form
        for name, function in functions.items()
        if (form := _function_of_examples(tf, module, function, name=name, manifest=manifest)) is not None
    }
    default = manifest.default_signature
    signatures = {_DEFAULT: of_examples.get(f"{default}_examples", functions[default]), **functions, **of_examples}
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


def _function_of_examples(tf: Any, module: Any, function: Any, *, name: str, manifest: Manifest) -> Any | None:
    """A function of serialized `tf.Example`s, whose features have the names of the inputs; None if none can hold them.

    Names become numbers where the model knows its categories, and what stands for a missing value is filled in.

    Args:
        module: What tables are kept with.
    """
    specs = manifest.signatures[name].inputs
    categories, missing = (_mapping(manifest, key) for key in ("categories", "missing"))
    types = {each.name: _example_type(tf, each.dtype) for each in specs}
    if None in types.values():
        return None
    tables = {each.name: _table(tf, module, categories[each.name]) for each in specs if each.name in categories}
    features = {}
    for each in specs:
        kind = tf.string if each.name in tables else types[each.name]
        filling = missing.get(each.name)
        shape = [size for size in each.shape[1:] if isinstance(size, int)]
        default = None if filling is None else np.full(shape, filling).tolist()
        features[each.name] = tf.io.FixedLenFeature(shape, kind, default)

    def call(examples: Any) -> Any:
        parsed = tf.io.parse_example(examples, features)
        arrays = {}
        for each in specs:
            values = parsed[each.name]
            if each.name in tables:
                values = tables[each.name].lookup(values)
                told = f"{each.name} is none of the {len(categories[each.name])} categories that the model knows."
                tf.debugging.assert_non_negative(values, told)
            cast = tf.cast(values, each.dtype)
            if values.dtype == tf.int64 and each.dtype != "bool":
                told = f"{each.name} has a number that {each.dtype} cannot hold."
                tf.debugging.assert_equal(tf.cast(cast, tf.int64), values, told)
            arrays[_plain(each.name)] = cast
        return function(**arrays)

    size = specs[0].shape[0]
    examples = tf.TensorSpec([size if isinstance(size, int) else None], tf.string, "examples")
    return tf.function(call, autograph=False).get_concrete_function(examples)


def _example_type(tf: Any, dtype: str) -> Any | None:
    """What a `tf.Example` holds an array's values as; None if it cannot."""
    if dtype.startswith(("float", "bfloat")):
        return tf.float32
    return tf.int64 if dtype.startswith(("int", "uint", "bool")) else None


def _table(tf: Any, module: Any, names: Sequence[str]) -> Any:
    """Numbers by name, -1 for one that is not known."""
    numbers = tf.lookup.KeyValueTensorInitializer(tf.constant(names), tf.range(len(names), dtype=tf.int64))
    table = tf.lookup.StaticHashTable(numbers, default_value=-1)
    module.tables = [*module.tables, table]
    return table


def _mapping(manifest: Manifest, name: str) -> Mapping[str, Any]:
    value = manifest.metadata.get(name)
    return value if isinstance(value, dict) else {}


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
        ) from None


def _plain(name: str) -> str:
    """A name as TensorFlow takes it for an argument."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
