"""An encoder that finds answers in texts."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from trellis.nlp.models.heads import SpanHead


class BertSpanLabeler(nn.Module):
    """An encoder with one head, `span_labeling`, for where an answer starts and where it ends.

    Example:
        labeler = BertSpanLabeler(build_encoder(EncoderConfig()))
        outputs = labeler.apply(labeler.init(jax.random.key(0), batch), batch)
        outputs["start_logits"], outputs["end_logits"]
    """

    encoder: Any
    """An `Encoder`."""

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The parts that a warm start takes."""
        return {"encoder": "encoder"}

    @nn.compact
    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, jax.Array]:
        """The logits of each token, each of shape (batch, length)."""
        hidden = self.encoder(inputs, training=training)["sequence_output"]
        start, end = SpanHead(self.encoder.config.initializer_range, name="span_labeling")(hidden)
        return {"start_logits": start, "end_logits": end}
