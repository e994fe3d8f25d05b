"""An encoder that fills in blanks."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from trellis.errors import ConfigError
from trellis.nlp.models.configs import ClsHeadConfig, MobileBertEncoderConfig, PretrainerConfig
from trellis.nlp.models.heads import ClassificationHead, MaskedLM, Widening

_TAKEN = ("encoder", "masked_lm", "mlm_logits", "sequence_output", "pooled_output", "encoder_outputs")


class BertPretrainer(nn.Module):
    """An encoder with a masked-LM head, and with heads that classify.

    Takes what the encoder takes, and `masked_lm_positions`, of shape (batch, predictions). Without those it predicts
    everywhere. Returns the encoder's outputs, `mlm_logits`, and the logits of each head under its name.

    Example:
        config = PretrainerConfig(cls_heads=[ClsHeadConfig(name="next_sentence", inner_dim=768)])
        pretrainer = BertPretrainer(config, encoder=build_encoder(config.encoder))
        outputs = pretrainer.apply(pretrainer.init(jax.random.key(0), batch), batch)
        outputs["mlm_logits"], outputs["next_sentence"]
    """

    config: PretrainerConfig
    encoder: Any
    """An `Encoder`."""

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The parts that a warm start takes: all but the last layers of the heads that classify."""
        pooled = [f"{name}.pooler_dense" for name, head in _named_heads(self.config).items() if head.inner_dim]
        return {item: item for item in ("encoder", "masked_lm", *pooled)}

    @nn.compact
    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """The outputs by name."""
        outputs: dict[str, Any] = self.encoder(inputs, training=training)
        hidden = outputs["sequence_output"]
        masked_lm = MaskedLM(
            activation=self.config.mlm_activation,
            initializer_range=self.config.mlm_initializer_range,
            norm_epsilon=self.encoder.config.norm_epsilon,
            widening=_widening(self.config, self.encoder.config),
            name="masked_lm",
        )
        positions = inputs.get("masked_lm_positions")
        outputs["mlm_logits"] = masked_lm(hidden, table=self.encoder.embedding_table(), positions=positions)
        for name, head in _named_heads(self.config).items():
            classifier = ClassificationHead(
                num_classes=head.num_classes,
                inner_dim=head.inner_dim,
                activation=head.activation,
                dropout_rate=head.dropout_rate,
                cls_token_idx=head.cls_token_idx,
                name=name,
            )
            outputs[name] = classifier(hidden, training=training)
        return outputs


def _named_heads(config: PretrainerConfig) -> dict[str, ClsHeadConfig]:
    names = [head.name or "" for head in config.cls_heads]
    unusable = [name for name, n in Counter(names).items() if n > 1 or name in _TAKEN or not name]
    if unusable:
        raise ConfigError(
            f"model.cls_heads has heads of the names {names}, of which {unusable} cannot be used: "
            f"each head needs a name of its own, other than {', '.join(_TAKEN)}."
        )
    return dict(zip(names, config.cls_heads, strict=True))


def _widening(config: PretrainerConfig, encoder_config: Any) -> Widening:
    if not isinstance(encoder_config, MobileBertEncoderConfig):
        return "none"
    return "projection" if config.mlm_output_weights_use_proj else "columns"
