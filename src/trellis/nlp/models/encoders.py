"""Encoders by their settings, and the blocks that they can be built of."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax

from trellis.config import Config
from trellis.errors import ConfigError
from trellis.nlp.models.albert import AlbertEncoder
from trellis.nlp.models.attention import MultiHeadAttention, TalkingHeadsAttention
from trellis.nlp.models.bert import BertEncoder
from trellis.nlp.models.configs import (
    AlbertEncoderConfig,
    BertEncoderConfig,
    EncoderConfig,
    MobileBertEncoderConfig,
)
from trellis.nlp.models.feedforward import FeedForward, GatedFeedForward
from trellis.nlp.models.mobilebert import MobileBertEncoder
from trellis.nlp.models.transformer import AttentionClass, FeedForwardClass


class Encoder(Protocol):
    """A linen module that turns ids into hidden states, such as `BertEncoder`."""

    config: Any

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns at least `sequence_output`, (batch, length, width), and `pooled_output`, (batch, width)."""

    def embedding_table(self) -> jax.Array:
        """Returns the embeddings of all words."""


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
    """Returns the `Encoder` that `config.type` names, built of the given blocks.

    Example:
        encoder = build_encoder(EncoderConfig(type="albert"), attention_cls=TalkingHeadsAttention)
    """
    chosen = config.get()
    if chosen is None:
        raise ConfigError("encoder.type is null, but a model needs an encoder. Set it to bert, albert or mobilebert.")
    return _ENCODERS[type(chosen)](chosen, attention_cls=attention_cls, feedforward_cls=feedforward_cls)
