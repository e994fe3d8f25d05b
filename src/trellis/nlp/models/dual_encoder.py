"""One encoder for both texts of a pair: from a batch of ids to one vector for each text."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.bridges import Pooling
from trellis.nlp.models.transformer import LayeredEncoder

TEXT_SIDES = ("left", "right", "negative")
"""How the names of the inputs begin that a batch has of each text, in their order in the output."""
_INPUTS = ("word_ids", "mask", "type_ids")
_LEAST_LENGTH = 1e-12


class DualEncoder(nn.Module):
    """An encoder whose states of a text are pooled to one vector, which may be divided by its length.

    Of `input_word_ids`, `input_mask` and `input_type_ids`, each of shape (batch, length), it makes vectors of shape
    (batch, width); of `left_word_ids` and so on, with those of `right` and perhaps `negative`, vectors of shape
    (batch, texts, width).

    Example:
        model = DualEncoder(build_encoder(EncoderConfig()), pooling="mean")
        vectors = model.apply(model.init(jax.random.key(0), batch), batch)
    """

    encoder: LayeredEncoder
    pooling: Pooling = "mean"
    is_normalized: bool = True

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The parts that a warm start takes."""
        return {"encoder": "encoder"}

    @nn.compact
    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> jax.Array:
        """The vectors, in float32."""
        sides = [side for side in TEXT_SIDES if f"{side}_word_ids" in inputs]
        if not sides:
            return self._embed(inputs, training)
        # The texts of an example are next to each other, so that they stay on the device that the example is on.
        rows = {
            f"input_{name}": jnp.stack([inputs[f"{side}_{name}"] for side in sides], axis=1).reshape(
                -1, inputs[f"{sides[0]}_{name}"].shape[-1]
            )
            for name in _INPUTS
        }
        vectors = self._embed(rows, training)
        return vectors.reshape(-1, len(sides), vectors.shape[-1])

    def _embed(self, inputs: Mapping[str, Any], training: bool) -> jax.Array:
        hidden = self.encoder(inputs, training=training)["sequence_output"].astype(jnp.float32)
        vectors = _pool(hidden, inputs["input_mask"] != 0, self.pooling)
        if not self.is_normalized:
            return vectors
        # The root has no gradient at zero.
        square = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
        return vectors * jax.lax.rsqrt(jnp.maximum(square, _LEAST_LENGTH**2))


def _pool(hidden: jax.Array, is_token: jax.Array, pooling: Pooling) -> jax.Array:
    if pooling == "cls":
        return hidden[:, 0]
    mask = is_token[..., None]
    if pooling == "max":
        return jnp.max(jnp.where(mask, hidden, -jnp.inf), axis=1)
    n_tokens = jnp.maximum(jnp.sum(mask, axis=1), 1)
    return jnp.sum(jnp.where(mask, hidden, 0), axis=1) / n_tokens
