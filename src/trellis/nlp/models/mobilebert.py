"""The MobileBERT encoder, student and teacher."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.nlp.models.configs import MobileBertEncoderConfig
from trellis.nlp.models.layers import (
    FROM_EMBED,
    TO_EMBED,
    Embed,
    EncoderInputs,
    NoNorm,
    dense,
    embed_places,
    kernel_init,
    layer_norm,
)
from trellis.nlp.models.transformer import Attended, AttentionClass, FeedForwardClass, LayeredEncoder

_PADDING_ID = 0


class TrigramEmbeddings(nn.Module):
    """Embeddings of each word together with those beside it, projected; then positions and types are added."""

    config: MobileBertEncoderConfig

    def setup(self) -> None:
        """Makes the tables."""
        config = self.config
        words = kernel_init(config.initializer_range, ("vocab", "embed"))
        places = kernel_init(config.initializer_range, TO_EMBED)
        self.word_embeddings = Embed(config.word_vocab_size, config.word_embed_size, embedding_init=words)
        self.position_embeddings = Embed(config.max_sequence_length, config.hidden_size, embedding_init=places)
        self.type_embeddings = Embed(config.type_vocab_size, config.hidden_size, embedding_init=places)
        self.projection = dense(config.hidden_size, initializer_range=config.initializer_range, axes=TO_EMBED)
        self.layer_norm = _norm(config, config.outer_norm_epsilon)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def __call__(self, inputs: EncoderInputs, *, training: bool) -> jax.Array:
        """The first hidden states."""
        hidden = self.projection(self._trigrams(inputs))
        hidden = hidden + embed_places(inputs, self.position_embeddings, self.type_embeddings)
        dropped: jax.Array = self.dropout(self.layer_norm(hidden), deterministic=not training)
        return dropped

    def _trigrams(self, inputs: EncoderInputs) -> jax.Array:
        """The embeddings of the next word, the word and the one before it, zero where a row ends."""
        words = self.word_embeddings(inputs.word_ids)
        after = jnp.pad(words[:, 1:], ((0, 0), (0, 1), (0, 0)))
        before = jnp.pad(words[:, :-1], ((0, 0), (1, 0), (0, 0)))
        if inputs.segment_ids is not None:
            # As in a row of its own: behind a packed sequence is padding, unless it fills the row.
            ids = inputs.segment_ids[..., None]
            fills = ids[:, :1] == ids[:, -1:]
            same = ids[:, 1:] == ids[:, :-1]
            padding = self.word_embeddings(jnp.full((1, 1), _PADDING_ID))
            after = jnp.where(jnp.concatenate([same, fills], axis=1), after, padding)
            before = jnp.where(jnp.pad(same, ((0, 0), (1, 0), (0, 0))), before, 0)
        return jnp.concatenate([after, words, before], axis=-1)


class Bottleneck(nn.Module):
    """A dense layer to another width, and a norm."""

    config: MobileBertEncoderConfig
    width: int

    def setup(self) -> None:
        """Makes the two."""
        self.dense = dense(self.width, initializer_range=self.config.initializer_range, axes=FROM_EMBED)
        self.layer_norm = _norm(self.config)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """The hidden states in the new width."""
        normed: jax.Array = self.layer_norm(self.dense(hidden))
        return normed


class MobileBertBlock(nn.Module):
    """A layer that works in another width inside than outside, with one or more feedforward blocks."""

    config: MobileBertEncoderConfig
    attention_cls: AttentionClass
    feedforward_cls: FeedForwardClass

    def setup(self) -> None:
        """Makes the bottlenecks, and the attention and feedforward blocks between them."""
        config = self.config
        width = config.intra_bottleneck_size
        blocks = range(config.num_feedforward_networks)
        self.input_bottleneck = Bottleneck(config, width)
        if config.key_query_shared_bottleneck:
            self.shared_bottleneck = Bottleneck(config, width)
        self.attention = self.attention_cls(
            width=width,
            n_heads=config.num_attention_heads,
            dropout_rate=config.attention_probs_dropout_prob,
            initializer_range=config.initializer_range,
            return_scores=False,
        )
        self.attention_layer_norm = _norm(config)
        self.feedforward = [
            self.feedforward_cls(
                width=width,
                intermediate_size=config.intermediate_size,
                activation=config.hidden_activation,
                initializer_range=config.initializer_range,
            )
            for _ in blocks
        ]
        last = _norm(config, config.outer_norm_epsilon)
        self.feedforward_layer_norm = [*(_norm(config) for _ in blocks[1:]), last]
        self.output = dense(config.hidden_size, initializer_range=config.initializer_range, axes=TO_EMBED)
        self.output_layer_norm = _norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def __call__(self, outside: jax.Array, mask: jax.Array, training: bool) -> Attended:
        """New hidden states."""
        inside = self.input_bottleneck(outside)
        query, value = self._attention_inputs(outside, inside)
        attended = self.attention(query, query, value, mask, training=training).hidden
        hidden = self.attention_layer_norm(attended + inside)
        for feedforward, feedforward_norm in zip(self.feedforward, self.feedforward_layer_norm, strict=True):
            hidden = feedforward_norm(feedforward(hidden) + hidden)
        hidden = self.dropout(self.output(hidden), deterministic=not training)
        return Attended(self.output_layer_norm(hidden + outside))

    def _attention_inputs(self, outside: jax.Array, inside: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The hidden states that queries and keys are made of, and those that values are made of."""
        if self.config.use_bottleneck_attention:
            return inside, inside
        if self.config.key_query_shared_bottleneck:
            return self.shared_bottleneck(outside), outside
        return outside, outside


class MobileBertEncoder(LayeredEncoder):
    """MobileBERT: trigram embeddings and many thin layers. To be used as a `BertEncoder`.

    Example:
        encoder = MobileBertEncoder(MobileBertEncoderConfig(num_blocks=4))
        outputs = encoder.apply(encoder.init(jax.random.key(0), batch), batch)
    """

    config: MobileBertEncoderConfig

    def setup(self) -> None:
        """Makes the embeddings, the blocks and, if there is one, the pooler."""
        config = self.config
        self.embeddings = TrigramEmbeddings(config)
        self.block = [self.build_layer(MobileBertBlock) for _ in range(config.num_blocks)]
        self.pooler = self.build_pooler() if config.classifier_activation else None

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, if the config has it, `encoder_outputs`, embeddings first."""
        tokens = EncoderInputs.read(inputs, max_length=self.config.max_sequence_length)
        return self.outputs(self.run_layers(tokens, self.block, training), first=0)


def _norm(config: MobileBertEncoderConfig, epsilon: float | None = None) -> nn.Module:
    return NoNorm() if config.normalization_type == "no_norm" else layer_norm(epsilon or config.norm_epsilon)
