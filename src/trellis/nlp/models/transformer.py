"""A layer of an encoder: tokens see each other, then each is worked on by itself."""

from typing import Any, Protocol

import flax.linen as nn
import jax

from trellis.nlp.models.attention import Attended, MultiHeadAttention
from trellis.nlp.models.feedforward import FeedForward
from trellis.nlp.models.layers import layer_norm


class AttentionClass(Protocol):
    """Makes an attention block, such as `MultiHeadAttention` or `TalkingHeadsAttention`."""

    def __call__(
        self, *, width: int, n_heads: int, dropout_rate: float, initializer_range: float, return_scores: bool
    ) -> Any:
        """A module that takes (query, key, value, mask) and `training`, and returns `Attended`."""


class FeedForwardClass(Protocol):
    """Makes a feedforward block, such as `FeedForward` or `GatedFeedForward`."""

    def __call__(self, *, width: int, intermediate_size: int, activation: str, initializer_range: float) -> Any:
        """A module that takes hidden states and returns new ones of `width`."""


class TransformerBlock(nn.Module):
    """Attention and a feedforward block, each with dropout, a way around it, and a norm.

    Args:
        norm_first: Whether what goes into the two parts is normalised, instead of what comes out.
        output_range: How many tokens, from the first, are computed; None is all.
        return_scores: Whether the attention scores are returned too.
    """

    width: int
    n_heads: int
    intermediate_size: int
    activation: str = "gelu"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    initializer_range: float = 0.02
    norm_epsilon: float = 1e-12
    norm_first: bool = False
    output_range: int | None = None
    return_scores: bool = False
    attention_cls: AttentionClass = MultiHeadAttention
    feedforward_cls: FeedForwardClass = FeedForward

    def setup(self) -> None:
        """Makes the two parts and their norms."""
        self.attention = self.attention_cls(
            width=self.width,
            n_heads=self.n_heads,
            dropout_rate=self.attention_dropout_rate,
            initializer_range=self.initializer_range,
            return_scores=self.return_scores,
        )
        self.attention_layer_norm = layer_norm(self.norm_epsilon)
        self.feedforward = self.feedforward_cls(
            width=self.width,
            intermediate_size=self.intermediate_size,
            activation=self.activation,
            initializer_range=self.initializer_range,
        )
        self.output_layer_norm = layer_norm(self.norm_epsilon)
        self.dropout = nn.Dropout(self.dropout_rate)

    def __call__(self, hidden: jax.Array, mask: jax.Array, training: bool) -> Attended:
        """New hidden states, and the scores if they are asked for."""
        queries = slice(self.output_range)
        mask = mask if mask.shape[2] == 1 else mask[:, :, queries]
        seen = self.attention_layer_norm(hidden) if self.norm_first else hidden
        attended, scores = self.attention(seen[:, queries], seen, seen, mask, training=training)
        hidden = hidden[:, queries] + self.dropout(attended, deterministic=not training)
        hidden = hidden if self.norm_first else self.attention_layer_norm(hidden)
        changed = self.feedforward(self.output_layer_norm(hidden) if self.norm_first else hidden)
        hidden = hidden + self.dropout(changed, deterministic=not training)
        return Attended(hidden if self.norm_first else self.output_layer_norm(hidden), scores)


def rematerialised(block: Any, *, wanted: bool) -> Any:
    """Returns a block's class, whose inner values are computed again by the backward pass if that is `wanted`."""
    # `training` decides what is traced; it is the fourth argument of `__call__`, self included.
    return nn.remat(block, static_argnums=(3,)) if wanted else block
