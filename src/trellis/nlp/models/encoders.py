"""Encoders: from a batch of ids to hidden states."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from trellis.config import bind, raise_if_any
from trellis.errors import ArgumentError, ModelError, shown
from trellis.nlp.models.configs import (
    AlbertEncoderConfig,
    BertEncoderConfig,
    DistilBertEncoderConfig,
    EncoderConfig,
    MobileBertEncoderConfig,
    RobertaEncoderConfig,
    XlmRobertaEncoderConfig,
)
from trellis.nlp.models.layers import Embeddings, EncoderInputs
from trellis.nlp.models.mobilebert import MobileBertEncoder
from trellis.nlp.models.modernbert import ModernBertEncoder as ModernBertEncoder
from trellis.nlp.models.transformer import (
    AttentionClass,
    FeedForward,
    FeedForwardClass,
    LayeredEncoder,
    MultiHeadAttention,
    TransformerBlock,
)


@bind(BertEncoderConfig)
class BertEncoder(LayeredEncoder):
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

    def setup(self) -> None:
        """Makes the embeddings, the layers and the pooler."""
        config = self.config
        width = config.embedding_size or config.hidden_size
        self.embeddings = Embeddings(config, width, is_projected=width != config.hidden_size)
        self.layer = [
            self.build_layer(
                TransformerBlock,
                norm_first=config.norm_first,
                output_range=config.output_range if index == config.num_layers - 1 else None,
                return_scores=config.return_attention_scores,
            )
            for index in range(config.num_layers)
        ]
        self.pooler = self.build_pooler()

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output` and `pooled_output`, and those that the config has switched on.

        These are `encoder_outputs` and `attention_scores` (both of each layer), and `word_embeddings`.
        """
        config = self.config
        tokens = EncoderInputs.read(inputs, max_length=config.max_position_embeddings)
        states = self.run_layers(tokens, self.layer, training)
        outputs = self.outputs(states)
        if config.return_attention_scores:
            outputs["attention_scores"] = [state.scores for state in states[1:]]
        if config.return_word_embeddings:
            outputs["word_embeddings"] = self.embeddings.word_embeddings(tokens.word_ids)
        return outputs


@bind(AlbertEncoderConfig)
class AlbertEncoder(LayeredEncoder):
    """ALBERT: narrow embeddings, and one layer that all the layers share. To be used as a `BertEncoder`.

    Example:
        encoder = AlbertEncoder(AlbertEncoderConfig(num_layers=4))
        outputs = encoder.apply(encoder.init(jax.random.key(0), batch), batch)
    """

    config: AlbertEncoderConfig

    def setup(self) -> None:
        """Makes the embeddings, the layer and the pooler."""
        config = self.config
        self.embeddings = Embeddings(config, config.embedding_width, is_projected=True)
        self.layer = self.build_layer(TransformerBlock)
        self.pooler = self.build_pooler()

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, if the config has it switched on, `encoder_outputs`."""
        tokens = EncoderInputs.read(inputs, max_length=self.config.max_position_embeddings)
        return self.outputs(self.run_layers(tokens, [self.layer] * self.config.num_layers, training))


@bind(RobertaEncoderConfig)
class RobertaEncoder(LayeredEncoder):
    """RoBERTa: BERT with positions that begin after the one of padding, and one type. To be used as a `BertEncoder`.

    Example:
        encoder = RobertaEncoder(RobertaEncoderConfig(num_layers=4))
        outputs = encoder.apply(encoder.init(jax.random.key(0), batch), batch)
    """

    config: RobertaEncoderConfig

    def setup(self) -> None:
        """Makes the embeddings, the layers and the pooler."""
        self.embeddings = Embeddings(self.config, self.config.hidden_size, is_projected=False)
        self.layer = [self.build_layer(TransformerBlock) for _ in range(self.config.num_layers)]
        self.pooler = self.build_pooler()

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, if the config has it switched on, `encoder_outputs`."""
        n_positions = self.config.max_position_embeddings - self.config.first_position
        tokens = EncoderInputs.read(inputs, max_length=n_positions)
        return self.outputs(self.run_layers(tokens, self.layer, training))


bind(XlmRobertaEncoderConfig)(RobertaEncoder)


@bind(DistilBertEncoderConfig)
class DistilBertEncoder(LayeredEncoder):
    """DistilBERT: BERT without types and without a pooler. To be used as a `BertEncoder`.

    Its pooled output is the first token's output as it is.

    Example:
        encoder = DistilBertEncoder(DistilBertEncoderConfig(num_layers=3))
        outputs = encoder.apply(encoder.init(jax.random.key(0), batch), batch)
    """

    config: DistilBertEncoderConfig

    def setup(self) -> None:
        """Makes the embeddings and the layers."""
        self.embeddings = Embeddings(self.config, self.config.hidden_size, is_projected=False)
        self.layer = [self.build_layer(TransformerBlock) for _ in range(self.config.num_layers)]
        self.pooler = None

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, if the config has it switched on, `encoder_outputs`."""
        tokens = EncoderInputs.read(inputs, max_length=self.config.max_position_embeddings).without_types()
        return self.outputs(self.run_layers(tokens, self.layer, training))


bind(MobileBertEncoderConfig)(MobileBertEncoder)


def build_encoder(
    config: EncoderConfig,
    *,
    attention_cls: AttentionClass = MultiHeadAttention,
    feedforward_cls: FeedForwardClass = FeedForward,
) -> LayeredEncoder:
    """Returns the encoder that `config.type` names, built of blocks of these classes.

    One of your own (`any`) is what its config's builder makes of that config, of blocks of its own. It is used as a
    `LayeredEncoder` is: heads read `config`, the output by its names and, to predict words, `embedding_table()`.

    Example:
        >>> type(build_encoder(EncoderConfig(type="albert"))).__name__
        'AlbertEncoder'
    """
    raise_if_any(list(config.problems()))
    chosen = config.get()
    if config.type != "any":
        encoder: LayeredEncoder = chosen.BUILDER(chosen, attention_cls=attention_cls, feedforward_cls=feedforward_cls)
        return encoder
    if (attention_cls, feedforward_cls) != (MultiHeadAttention, FeedForward):
        raise ArgumentError(
            "encoder.type is any, so the encoder is built of blocks of its own, but attention_cls or feedforward_cls "
            "is given too, as by gin. Leave them out, or choose another type."
        )
    own: LayeredEncoder = chosen.BUILDER(chosen)
    if not isinstance(own, nn.Module):
        raise ModelError(
            f"The builder of {type(chosen).__name__} has returned {shown(own)}, not a Flax module (flax.linen)."
        )
    return own
