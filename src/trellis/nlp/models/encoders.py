"""Encoders: from a batch of ids to hidden states."""

from collections.abc import Mapping
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.config import Config
from trellis.errors import ConfigError
from trellis.nlp.models.configs import (
    AlbertEncoderConfig,
    BertEncoderConfig,
    EncoderConfig,
    MobileBertEncoderConfig,
)
from trellis.nlp.models.layers import FROM_EMBED, Embeddings, EncoderInputs, dense
from trellis.nlp.models.mobilebert import MobileBertEncoder
from trellis.nlp.models.transformer import (
    AttentionClass,
    FeedForward,
    FeedForwardClass,
    GatedFeedForward,
    MultiHeadAttention,
    TalkingHeadsAttention,
    TransformerBlock,
    rematerialised,
)


class Encoder(Protocol):
    """A linen module that turns ids into hidden states, such as `BertEncoder`."""

    config: Any

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns at least `sequence_output`, (batch, length, width), and `pooled_output`, (batch, width)."""

    def embedding_table(self) -> jax.Array:
        """Returns the embeddings of all words."""


class BertEncoder(nn.Module):
    """BERT: from `input_word_ids`, `input_mask` and `input_type_ids`, each of shape (batch, length), to hidden states.

    A batch may have `segment_ids` and `positions` too: then several sequences share a row, each with positions of its
    own, and none sees another one.

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
        projected_width = None if width == config.hidden_size else config.hidden_size
        self.embeddings = _embeddings(config, width=width, projected_width=projected_width)
        self.layer = [
            _block(
                config,
                attention_cls=self.attention_cls,
                feedforward_cls=self.feedforward_cls,
                norm_first=config.norm_first,
                output_range=config.output_range if index == config.num_layers - 1 else None,
                return_scores=config.return_attention_scores,
            )
            for index in range(config.num_layers)
        ]
        self.pooler = dense(config.hidden_size, initializer_range=config.initializer_range, axes=FROM_EMBED)

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output` and `pooled_output`, and those that the config has switched on.

        These are `encoder_outputs` and `attention_scores` (both of each layer), and `word_embeddings`.
        """
        config = self.config
        tokens = EncoderInputs.read(inputs, max_length=config.max_position_embeddings)
        hidden = self.embeddings(tokens, training=training)
        mask = tokens.attention_mask()
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
            outputs["word_embeddings"] = self.embeddings.words(tokens)
        return outputs

    def embedding_table(self) -> jax.Array:
        """Returns the embeddings of all words, for a head that shares them."""
        return self.embeddings.table()


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
        self.embeddings = _embeddings(config, width=config.embedding_width, projected_width=config.hidden_size)
        self.layer = _block(config, attention_cls=self.attention_cls, feedforward_cls=self.feedforward_cls)
        self.pooler = dense(config.hidden_size, initializer_range=config.initializer_range, axes=FROM_EMBED)

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, if the config has it switched on, `encoder_outputs`."""
        tokens = EncoderInputs.read(inputs, max_length=self.config.max_position_embeddings)
        hidden = self.embeddings(tokens, training=training)
        mask = tokens.attention_mask()
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


def _embeddings(
    config: BertEncoderConfig | AlbertEncoderConfig, *, width: int, projected_width: int | None
) -> Embeddings:
    return Embeddings(
        vocab_size=config.vocab_size,
        width=width,
        n_positions=config.max_position_embeddings,
        n_types=config.type_vocab_size,
        projected_width=projected_width,
        dropout_rate=config.dropout_rate,
        initializer_range=config.initializer_range,
        norm_epsilon=config.norm_epsilon,
    )


def _block(config: BertEncoderConfig | AlbertEncoderConfig, **options: Any) -> Any:
    block = rematerialised(TransformerBlock) if config.use_gradient_checkpointing else TransformerBlock
    return block(
        width=config.hidden_size,
        n_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        activation=config.hidden_activation,
        dropout_rate=config.dropout_rate,
        attention_dropout_rate=config.attention_dropout_rate,
        initializer_range=config.initializer_range,
        norm_epsilon=config.norm_epsilon,
        **options,
    )


ATTENTION_CLASSES: Mapping[str, AttentionClass] = {
    "MultiHeadAttention": MultiHeadAttention,
    "TalkingHeadsAttention": TalkingHeadsAttention,
}
"""Blocks for `build_encoder(attention_cls=…)` by name."""

FEEDFORWARD_CLASSES: Mapping[str, FeedForwardClass] = {
    "FeedForward": FeedForward,
    "GatedFeedForward": GatedFeedForward,
}
"""Blocks for `build_encoder(feedforward_cls=…)` by name."""

_ENCODERS: Mapping[type[Config], Any] = {
    BertEncoderConfig: BertEncoder,
    AlbertEncoderConfig: AlbertEncoder,
    MobileBertEncoderConfig: MobileBertEncoder,
}


def build_encoder(
    config: EncoderConfig,
    *,
    attention_cls: AttentionClass = MultiHeadAttention,
    feedforward_cls: FeedForwardClass = FeedForward,
) -> Any:
    """Returns the `Encoder` that `config.type` names, built of blocks of these classes.

    Example:
        >>> encoder = build_encoder(EncoderConfig(type="albert"), attention_cls=TalkingHeadsAttention)
        >>> type(encoder).__name__
        'AlbertEncoder'
    """
    chosen = config.get()
    if chosen is None:
        raise ConfigError("encoder.type is null, but a model needs an encoder. Set it to bert, albert or mobilebert.")
    return _ENCODERS[type(chosen)](chosen, attention_cls=attention_cls, feedforward_cls=feedforward_cls)
