"""The BERT encoder."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.nlp.models.attention import MultiHeadAttention
from trellis.nlp.models.configs import BertEncoderConfig
from trellis.nlp.models.embeddings import Embeddings, EncoderInputs
from trellis.nlp.models.feedforward import FeedForward
from trellis.nlp.models.layers import dense
from trellis.nlp.models.transformer import AttentionClass, FeedForwardClass, TransformerBlock, rematerialised


class BertEncoder(nn.Module):
    """BERT: from `input_word_ids`, `input_mask` and `input_type_ids`, each of shape (batch, length), to hidden states.

    A batch may have `segment_ids` and `positions` too: then several sequences share a row, none sees another, and each
    has positions of its own.

    Example:
        encoder = BertEncoder(BertEncoderConfig(num_layers=4))
        variables = encoder.init(jax.random.key(0), batch)
        outputs = encoder.apply(variables, batch)
        outputs["sequence_output"], outputs["pooled_output"]
    """

    config: BertEncoderConfig
    attention_cls: AttentionClass = MultiHeadAttention
    feedforward_cls: FeedForwardClass = FeedForward

    def setup(self) -> None:
        """Makes the embeddings, the layers and the pooler."""
        config = self.config
        width = config.embedding_size or config.hidden_size
        self.embeddings = Embeddings(
            vocab_size=config.vocab_size,
            width=width,
            n_positions=config.max_position_embeddings,
            n_types=config.type_vocab_size,
            projected_width=None if width == config.hidden_size else config.hidden_size,
            dropout_rate=config.dropout_rate,
            initializer_range=config.initializer_range,
            norm_epsilon=config.norm_epsilon,
        )
        block = rematerialised(TransformerBlock, wanted=config.use_gradient_checkpointing)
        self.layer = [
            block(
                width=config.hidden_size,
                n_heads=config.num_attention_heads,
                intermediate_size=config.intermediate_size,
                activation=config.hidden_activation,
                dropout_rate=config.dropout_rate,
                attention_dropout_rate=config.attention_dropout_rate,
                initializer_range=config.initializer_range,
                norm_epsilon=config.norm_epsilon,
                norm_first=config.norm_first,
                output_range=config.output_range if index == config.num_layers - 1 else None,
                return_scores=config.return_attention_scores,
                attention_cls=self.attention_cls,
                feedforward_cls=self.feedforward_cls,
            )
            for index in range(config.num_layers)
        ]
        self.pooler = dense(config.hidden_size, initializer_range=config.initializer_range)

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output` and `pooled_output`, and what the config asks for.

        That is `encoder_outputs` (what came out of each layer), `attention_scores` (of each layer), `word_embeddings`.
        """
        config = self.config
        read = EncoderInputs.read(inputs, max_length=config.max_position_embeddings)
        hidden, mask = self.embeddings(read, training=training), read.attention_mask()
        layers = []
        for layer in self.layer:
            hidden, scores = layer(hidden, mask, training)
            layers.append((hidden, scores))
        outputs: dict[str, Any] = {"sequence_output": hidden, "pooled_output": jnp.tanh(self.pooler(hidden[:, 0]))}
        if config.return_all_encoder_outputs:
            outputs["encoder_outputs"] = [hidden for hidden, _ in layers]
        if config.return_attention_scores:
            outputs["attention_scores"] = [scores for _, scores in layers]
        if config.return_word_embeddings:
            outputs["word_embeddings"] = self.embeddings.words(read)
        return outputs

    def embedding_table(self) -> jax.Array:
        """Returns the embeddings of all words, for a head that shares them."""
        return self.embeddings.table()
