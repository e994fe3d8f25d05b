"""Embeddings: from the ids of a batch to the first hidden states."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from flax import struct

from trellis.errors import ModelError
from trellis.nlp.models.layers import TO_EMBED, dense, kernel_init, layer_norm

_NEEDED = ("input_word_ids", "input_mask", "input_type_ids")


@struct.dataclass
class EncoderInputs:
    """What an encoder reads from a batch; all arrays are of shape (batch, length)."""

    word_ids: jax.Array
    type_ids: jax.Array
    mask: jax.Array
    """True where there is a token, not padding."""
    positions: jax.Array | None
    """The place of each token in its own sequence, if that is not its place in the row."""
    segment_ids: jax.Array | None
    """Which sequence of the row each token is of, if several are packed into one."""

    @classmethod
    def read(cls, inputs: Mapping[str, Any], *, max_length: int) -> "EncoderInputs":
        """Returns the encoder's part of a batch, after checking that it is there and not too long."""
        missing = [name for name in _NEEDED if name not in inputs]
        if missing:
            raise ModelError(
                f"The encoder takes {', '.join(_NEEDED)}, but {', '.join(missing)} is not in the batch, "
                f"which has: {', '.join(sorted(inputs))}."
            )
        length = inputs["input_word_ids"].shape[1]
        if length > max_length:
            raise ModelError(
                f"The batch has sequences of {length} tokens, but the encoder has embeddings for {max_length} "
                "positions. Make the sequences shorter (seq_length), or give the encoder more positions."
            )
        return cls(
            word_ids=inputs["input_word_ids"],
            type_ids=inputs["input_type_ids"],
            mask=inputs["input_mask"] != 0,
            positions=inputs.get("positions"),
            segment_ids=inputs.get("segment_ids"),
        )

    def attention_mask(self) -> jax.Array:
        """True where a token may see another: both in one sequence, and the other one no padding."""
        keys = self.mask[:, None, None, :]
        if self.segment_ids is None:
            return keys
        return keys & (self.segment_ids[:, None, :, None] == self.segment_ids[:, None, None, :])


class Embeddings(nn.Module):
    """The sum of word, position and type embeddings, normalised.

    Example:
        hidden = Embeddings(vocab_size=30522, width=768, n_positions=512, n_types=2)(inputs, training=False)

    Args:
        projected_width: The width that the embeddings are projected to in the end; None is not at all.
    """

    vocab_size: int
    width: int
    n_positions: int
    n_types: int
    projected_width: int | None = None
    dropout_rate: float = 0.0
    initializer_range: float = 0.02
    norm_epsilon: float = 1e-12

    def setup(self) -> None:
        """Makes the tables."""
        words = kernel_init(self.initializer_range, ("vocab", "embed"))
        places = kernel_init(self.initializer_range, TO_EMBED)
        self.word_embeddings = nn.Embed(self.vocab_size, self.width, embedding_init=words)
        self.position_embeddings = nn.Embed(self.n_positions, self.width, embedding_init=places)
        self.type_embeddings = nn.Embed(self.n_types, self.width, embedding_init=places)
        self.layer_norm = layer_norm(self.norm_epsilon)
        self.dropout = nn.Dropout(self.dropout_rate)
        if self.projected_width is not None:
            self.projection = dense(
                self.projected_width, initializer_range=self.initializer_range, axes=(None, "embed")
            )

    def __call__(self, inputs: EncoderInputs, *, training: bool) -> jax.Array:
        """The first hidden states."""
        hidden = self.words(inputs) + embed_places(inputs, self.position_embeddings, self.type_embeddings)
        hidden = self.dropout(self.layer_norm(hidden), deterministic=not training)
        return hidden if self.projected_width is None else self.projection(hidden)

    def words(self, inputs: EncoderInputs) -> jax.Array:
        """The embeddings of the words alone."""
        return self.word_embeddings(inputs.word_ids)

    def table(self) -> jax.Array:
        """The embeddings of the whole vocabulary."""
        return self.word_embeddings.embedding


def embed_places(inputs: EncoderInputs, positions: nn.Embed, types: nn.Embed) -> jax.Array:
    """Returns the embeddings of positions, plus those of types."""
    length = inputs.word_ids.shape[1]
    by_position = positions.embedding[None, :length] if inputs.positions is None else positions(inputs.positions)
    # The gradient of a product is quick, that of looking up a few rows again and again is not.
    by_type = jax.nn.one_hot(inputs.type_ids, types.num_embeddings, dtype=types.embedding.dtype) @ types.embedding
    return by_position + by_type
