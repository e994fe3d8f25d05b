"""The ALBERT encoder."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.nlp.models.attention import MultiHeadAttention
from trellis.nlp.models.configs import AlbertEncoderConfig
from trellis.nlp.models.embeddings import Embeddings, EncoderInputs
from trellis.nlp.models.feedforward import FeedForward
from trellis.nlp.models.layers import dense
from trellis.nlp.models.transformer import AttentionClass, FeedForwardClass, TransformerBlock, rematerialised


class AlbertEncoder(nn.Module):
    """ALBERT: narrow embeddings, and one layer that all the layers share. To be used as a `BertEncoder`.

    Example:
        encoder = AlbertEncoder(AlbertEncoderConfig(num_layers=4))
        outputs = encoder.apply(encoder.init(jax.random.key(0), batch), batch)
    """

    config: AlbertEncoderConfig
    attention_cls: AttentionClass = MultiHeadAttention
    feedforward_cls: FeedForwardClass = FeedForward

    def setup(self) -> None:
        """Makes the embeddings, the layer and the pooler."""
        config = self.config
        self.embeddings = Embeddings(
            vocab_size=config.vocab_size,
            width=config.embedding_width,
            n_positions=config.max_position_embeddings,
            n_types=config.type_vocab_size,
            projected_width=config.hidden_size,
            dropout_rate=config.dropout_rate,
            initializer_range=config.initializer_range,
            norm_epsilon=config.norm_epsilon,
        )
        self.layer = rematerialised(TransformerBlock, wanted=config.use_gradient_checkpointing)(
            width=config.hidden_size,
            n_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            activation=config.hidden_activation,
            dropout_rate=config.dropout_rate,
            attention_dropout_rate=config.attention_dropout_rate,
            initializer_range=config.initializer_range,
            norm_epsilon=config.norm_epsilon,
            attention_cls=self.attention_cls,
            feedforward_cls=self.feedforward_cls,
        )
        self.pooler = dense(config.hidden_size, initializer_range=config.initializer_range)

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, on request, `encoder_outputs`."""
        read = EncoderInputs.read(inputs, max_length=self.config.max_position_embeddings)
        hidden, mask = self.embeddings(read, training=training), read.attention_mask()
        layers = []
        for _ in range(self.config.num_layers):
            hidden, _ = self.layer(hidden, mask, training)
            layers.append(hidden)
        outputs: dict[str, Any] = {"sequence_output": hidden, "pooled_output": jnp.tanh(self.pooler(hidden[:, 0]))}
        if self.config.return_all_encoder_outputs:
            outputs["encoder_outputs"] = layers
        return outputs

    def embedding_table(self) -> jax.Array:
        """Returns the embeddings of all words, for a head that shares them."""
        return self.embeddings.table()
