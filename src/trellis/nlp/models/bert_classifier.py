"""An encoder that tells classes of texts apart."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from trellis.nlp.models.heads import ClassificationHead


class BertClassifier(nn.Module):
    """An encoder with one head, `sentence_prediction`, for classes or, with one class, for a number.

    Example:
        classifier = BertClassifier(build_encoder(EncoderConfig()), num_classes=3)
        logits = classifier.apply(classifier.init(jax.random.key(0), batch), batch)
    """

    encoder: Any
    """An `Encoder`."""
    num_classes: int
    dropout_rate: float = 0.1
    use_encoder_pooler: bool = False
    """Whether to classify by the encoder's pooled output; else the head has a pooler of its own."""
    init_cls_pooler: bool = False
    """Whether a warm start takes that pooler too, from a `next_sentence` head."""

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The parts that a warm start takes."""
        pooler = {"next_sentence.pooler_dense": "sentence_prediction.pooler_dense"} if self.init_cls_pooler else {}
        return {"encoder": "encoder", **pooler}

    @nn.compact
    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> jax.Array:
        """The logits, of shape (batch, classes)."""
        outputs = self.encoder(inputs, training=training)
        head = ClassificationHead(
            num_classes=self.num_classes,
            inner_dim=0 if self.use_encoder_pooler else self.encoder.config.hidden_size,
            dropout_rate=self.dropout_rate,
            initializer_range=self.encoder.config.initializer_range,
            name="sentence_prediction",
        )
        features = outputs["pooled_output" if self.use_encoder_pooler else "sequence_output"]
        return head(features, training=training)
