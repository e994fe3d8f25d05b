"""Heads: from an encoder's hidden states to logits."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.nlp.models.layers import FROM_EMBED, Initializer, activation, dense, kernel_init, named

Widening = Literal["none", "columns", "projection"]
"""How a masked-LM head as wide as the encoder fits a narrower table: not at all, as it narrows itself first; by more
columns for the table; or by a projection to the table's width."""


class MaskedLM(nn.Module):
    """The logits of all words at some positions, by the same embeddings that the words had on their way in.

    Example:
        logits = MaskedLM(activation="gelu")(outputs["sequence_output"], table=table, positions=positions)
    """

    activation: str = "gelu"
    initializer_range: float = 0.02
    norm_epsilon: float = 1e-12
    widening: Widening = "none"

    @nn.compact
    def __call__(self, hidden: jax.Array, *, table: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """The logits, of shape (batch, positions, vocabulary).

        Args:
            hidden: The encoder's sequence output.
            table: Its embeddings of all words.
            positions: Where to predict, of shape (batch, positions); None is everywhere.
        """
        if positions is not None:
            # Before the projection to the vocabulary, which is most of the work.
            hidden = jnp.take_along_axis(hidden, positions[..., None], axis=1)
        vocab_size, table_width = table.shape
        hidden_size = hidden.shape[-1]
        width = table_width if self.widening == "none" else hidden_size
        hidden = activation(self.activation)(nn.Dense(width, kernel_init=self._init(FROM_EMBED), name="dense")(hidden))
        hidden = nn.LayerNorm(epsilon=self.norm_epsilon, use_fast_variance=False, name="layer_norm")(hidden)
        if width > table_width and self.widening == "columns":
            columns = self.param("extra_output_weights", self._init(("vocab", None)), (vocab_size, width - table_width))
            table = jnp.concatenate([table, columns.astype(table.dtype)], axis=1)
        elif width > table_width:
            hidden = hidden @ self.param("output_weights_proj", self._init(FROM_EMBED), (width, table_width))
        bias = self.param("output_bias", named(nn.initializers.zeros_init(), ("vocab",)), (vocab_size,))
        logits: jax.Array = hidden @ table.T + bias[None, None]
        return logits

    def _init(self, axes: tuple[str | None, ...]) -> Initializer:
        return kernel_init(self.initializer_range, axes)


class ClassificationHead(nn.Module):
    """The logits of classes, by one token of a sequence or by a pooled output.

    Example:
        logits = ClassificationHead(num_classes=3, inner_dim=768)(outputs["sequence_output"], training=False)
    """

    num_classes: int
    inner_dim: int = 0
    activation: str | None = "tanh"
    dropout_rate: float = 0.0
    cls_token_idx: int = 0
    initializer_range: float = 0.02

    def setup(self) -> None:
        """Makes the layers."""
        if self.inner_dim:
            self.pooler_dense = dense(self.inner_dim, initializer_range=self.initializer_range, axes=FROM_EMBED)
        self.dropout = nn.Dropout(self.dropout_rate)
        self.logits = dense(self.num_classes, initializer_range=self.initializer_range, axes=FROM_EMBED)

    def __call__(self, features: jax.Array, *, training: bool) -> jax.Array:
        """The logits, of shape (batch, classes).

        Args:
            features: Of shape (batch, length, width), or (batch, width) if pooled already.
        """
        hidden = features[:, self.cls_token_idx] if features.ndim == 3 else features
        if self.inner_dim:
            hidden = activation(self.activation or "linear")(self.pooler_dense(hidden))
        return self.logits(self.dropout(hidden, deterministic=not training))


class SpanHead(nn.Module):
    """The logits of each token to be the first, and to be the last, of an answer."""

    initializer_range: float = 0.02

    def setup(self) -> None:
        """Makes the layer."""
        self.logits = dense(2, initializer_range=self.initializer_range, axes=FROM_EMBED)

    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The two, each of shape (batch, length)."""
        logits = self.logits(hidden)
        return logits[..., 0], logits[..., 1]
