"""Batches as a `tf.data.Dataset`, where TensorFlow is installed."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trellis.errors import MissingPackageError


def build_tf_dataset(read: Callable[[], Iterator[Any]], *, options: Any) -> Any:
    """Returns a data set of the batches that each call of `read` yields anew."""
    try:
        # By name: Trellis depends on no TensorFlow, and this part does so only where somebody has it.
        tf = importlib.import_module("tensorflow")
    except ImportError:
        raise MissingPackageError("tensorflow", "tensorflow") from None
    signature = _mapped(_spec, next(read()), tf)
    data_set = tf.data.Dataset.from_generator(
        lambda: (_mapped(_tensor, batch, tf) for batch in read()), output_signature=signature
    )
    return data_set.prefetch(getattr(options, "prefetch_buffer_size", -1))


def _mapped(function: Callable[[Any, Any], Any], batch: Any, tf: Any) -> Any:
    features, *labels = batch if isinstance(batch, tuple) else (batch,)
    mapped = {name: function(values, tf) for name, values in features.items()}
    return (mapped, function(labels[0], tf)) if labels else mapped


def _is_ragged(values: Any) -> bool:
    return values.dtype == object and isinstance(values.flat[0], np.ndarray)


def _dtype(values: Any, tf: Any) -> Any:
    return tf.string if values.dtype == object else tf.dtypes.as_dtype(values.dtype)


def _spec(values: Any, tf: Any) -> Any:
    if _is_ragged(values):
        return tf.RaggedTensorSpec([None, None], dtype=_dtype(values.flat[0], tf))
    return tf.TensorSpec([None, *values.shape[1:]], dtype=_dtype(values, tf))


def _tensor(values: Any, tf: Any) -> Any:
    if _is_ragged(values):
        return tf.ragged.constant([row.tolist() for row in values], dtype=_dtype(values.flat[0], tf), ragged_rank=1)
    return tf.constant(values.tolist() if values.dtype == object else values, dtype=_dtype(values, tf))
