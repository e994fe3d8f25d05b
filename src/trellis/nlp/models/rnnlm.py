"""A small recurrent language model."""

from dataclasses import KW_ONLY
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.nlp.models.layers import Embed


class RNNLM(nn.Module):
    """A recurrent language model: what comes next, given all that came before.

    Takes tokens of shape (batch, length) and returns logits of shape (batch, length, vocab_size). The logits at a
    position are about the token at that very position, as seen from those left of it: inputs and targets are the same
    array. Id 0 stands for the start of a text.

    Example:
        model = RNNLM(vocab_size=256, d_model=128)
        variables = model.init(jax.random.key(0), tokens)
        logits = model.apply(variables, tokens)
    """

    vocab_size: int
    _: KW_ONLY
    d_model: int = 512
    n_layers: int = 2
    dropout_rate: float = 0.1
    deterministic: bool = True
    """Whether dropout is off; with dropout on, `apply` needs the rng collection `dropout`."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The logits of each token."""
        before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
        embedding_init = nn.initializers.normal(stddev=1.0)
        x: Any = Embed(self.vocab_size, self.d_model, embedding_init=embedding_init, name="embed")(before)
        for index in range(self.n_layers):
            x = nn.RNN(nn.OptimizedLSTMCell(self.d_model, name=f"lstm_{index}"))(x)
        x = nn.Dropout(self.dropout_rate, deterministic=self.deterministic)(x)
        logits: jax.Array = nn.Dense(self.vocab_size, name="logits")(x)
        return logits
