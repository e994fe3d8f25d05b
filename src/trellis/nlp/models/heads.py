"""Encoders with heads: from hidden states to logits."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.errors import ConfigError
from trellis.nlp.models.configs import ClsHeadConfig, MobileBertEncoderConfig, ModernBertEncoderConfig, PretrainerConfig
from trellis.nlp.models.layers import FROM_EMBED, Initializer, activation, dense, kernel_init, layer_norm, named
from trellis.nlp.models.transformer import LayeredEncoder
from trellis.runtime import take_places

_RESERVED = ("encoder", "masked_lm", "mlm_logits", "sequence_output", "pooled_output", "encoder_outputs")

Widening = Literal["none", "columns", "projection"]
"""How a masked-LM head fits a table that is narrower than the encoder: by a dense layer to the table's width, by more
columns for the table, or by a projection after the norm."""


class BertPretrainer(nn.Module):
    """An encoder with a masked-LM head, and with heads that classify.

    Takes the encoder's inputs, and `masked_lm_positions` of shape (batch, predictions); without these it predicts
    everywhere. Returns the encoder's outputs, `mlm_logits`, and the logits of each head under its name.

    Example:
        config = PretrainerConfig(cls_heads=[ClsHeadConfig(name="next_sentence", inner_dim=768)])
        pretrainer = BertPretrainer(config, encoder=build_encoder(config.encoder))
        outputs = pretrainer.apply(pretrainer.init(jax.random.key(0), batch), batch)
        outputs["mlm_logits"], outputs["next_sentence"]
    """

    config: PretrainerConfig
    encoder: LayeredEncoder

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
            use_bias=not isinstance(self.encoder.config, ModernBertEncoderConfig),
            name="masked_lm",
        )
        positions = inputs.get("masked_lm_positions")
        outputs["mlm_logits"] = masked_lm(hidden, table=self.encoder.embedding_table(), positions=positions)
        for name, head in _named_heads(self.config).items():
            # Its settings have the names that the head has, its own name among them.
            outputs[name] = ClassificationHead(**head.as_dict())(hidden, training=training)
        return outputs


def _named_heads(config: PretrainerConfig) -> dict[str, ClsHeadConfig]:
    names = [head.name or "" for head in config.cls_heads]
    unusable = [name for name, n in Counter(names).items() if n > 1 or name in _RESERVED or not name]
    if unusable:
        raise ConfigError(
            f"model.cls_heads has heads of the names {names}, of which {unusable} cannot be used: "
            f"each head needs a name of its own, other than {', '.join(_RESERVED)}."
        )
    return dict(zip(names, config.cls_heads, strict=True))


def _widening(config: PretrainerConfig, encoder_config: Any) -> Widening:
    if not isinstance(encoder_config, MobileBertEncoderConfig):
        return "none"
    return "projection" if config.mlm_output_weights_use_proj else "columns"


def _norm_epsilon(encoder_config: Any) -> float | None:
    """That of the norm behind the inner layer of a head; None where heads have no such norm."""
    return encoder_config.norm_epsilon if isinstance(encoder_config, ModernBertEncoderConfig) else None


class BertClassifier(nn.Module):
    """An encoder with one head, by default `sentence_prediction`, for classes or, with one class, for a number.

    Example:
        classifier = BertClassifier(build_encoder(EncoderConfig()), num_classes=3)
        logits = classifier.apply(classifier.init(jax.random.key(0), batch), batch)
    """

    encoder: LayeredEncoder
    num_classes: int
    dropout_rate: float = 0.1
    use_encoder_pooler: bool = False
    """Whether to classify by the encoder's pooled output; else the head has a pooler of its own."""
    init_cls_pooler: bool = False
    """Whether a warm start takes that pooler too, from a `next_sentence` head; a ModernBERT's from `masked_lm`."""
    head: str = "sentence_prediction"
    """The name of the head."""

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The parts that a warm start takes."""
        if not self.init_cls_pooler:
            return {"encoder": "encoder"}
        if isinstance(self.encoder.config, ModernBertEncoderConfig):
            pooler = {"dense": "pooler_dense", "layer_norm": "pooler_layer_norm"}
            items = {f"masked_lm.{theirs}": f"{self.head}.{ours}" for theirs, ours in pooler.items()}
            return {"encoder": "encoder", **items}
        return {"encoder": "encoder", "next_sentence.pooler_dense": f"{self.head}.pooler_dense"}

    @nn.compact
    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> jax.Array:
        """The logits, of shape (batch, classes)."""
        outputs = self.encoder(inputs, training=training)
        head = ClassificationHead(
            num_classes=self.num_classes,
            inner_dim=0 if self.use_encoder_pooler else self.encoder.config.hidden_size,
            activation=getattr(self.encoder.config, "head_activation", "tanh"),
            dropout_rate=self.dropout_rate,
            initializer_range=self.encoder.config.initializer_range,
            name=self.head,
            norm_epsilon=_norm_epsilon(self.encoder.config),
        )
        is_pooled = self.use_encoder_pooler or isinstance(self.encoder.config, ModernBertEncoderConfig)
        features = outputs["pooled_output" if is_pooled else "sequence_output"]
        return head(features, training=training)


class BertSpanLabeler(nn.Module):
    """An encoder with one head, `span_labeling`, for where an answer starts and where it ends.

    Example:
        labeler = BertSpanLabeler(build_encoder(EncoderConfig()))
        outputs = labeler.apply(labeler.init(jax.random.key(0), batch), batch)
        outputs["start_logits"], outputs["end_logits"]
    """

    encoder: LayeredEncoder

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The parts that a warm start takes."""
        return {"encoder": "encoder"}

    @nn.compact
    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, jax.Array]:
        """The logits of each token, each of shape (batch, length)."""
        hidden = self.encoder(inputs, training=training)["sequence_output"]
        config = self.encoder.config
        head = TokenHead.of(config, 2, name="span_labeling", initializer_range=config.initializer_range)
        logits = head(hidden, training=training)
        start, end = logits[..., 0], logits[..., 1]
        return {"start_logits": start, "end_logits": end}


class BertTagger(nn.Module):
    """An encoder with one head, `tagging`, for a tag of each token.

    Example:
        tagger = BertTagger(build_encoder(EncoderConfig()), num_classes=9)
        logits = tagger.apply(tagger.init(jax.random.key(0), batch), batch)
    """

    encoder: LayeredEncoder
    num_classes: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The parts that a warm start takes."""
        return {"encoder": "encoder"}

    @nn.compact
    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> jax.Array:
        """The logits, of shape (batch, length, classes)."""
        hidden = self.encoder(inputs, training=training)["sequence_output"]
        rates = {"dropout_rate": self.dropout_rate, "initializer_range": self.initializer_range}
        head = TokenHead.of(self.encoder.config, self.num_classes, name="tagging", **rates)
        return head(hidden, training=training)


class MaskedLM(nn.Module):
    """The logits of all words at some positions, by the encoder's own embeddings of the words.

    Example:
        logits = MaskedLM(activation="gelu")(outputs["sequence_output"], table=table, positions=positions)
    """

    activation: str = "gelu"
    initializer_range: float = 0.02
    norm_epsilon: float = 1e-12
    widening: Widening = "none"
    use_bias: bool = True
    """Whether the dense layer and the norm have biases."""

    @nn.compact
    def __call__(self, hidden: jax.Array, *, table: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """The logits, of shape (batch, positions, vocabulary).

        Args:
            hidden: The encoder's sequence output.
            table: Its embeddings of all words.
            positions: Where to predict, of shape (batch, positions); with None everywhere.
        """
        if positions is not None:
            # Before the projection to the vocabulary, which is most of the work.
            hidden = take_places(hidden, positions)
        vocab_size, table_width = table.shape
        hidden_size = hidden.shape[-1]
        width = table_width if self.widening == "none" else hidden_size
        kernel = self._init(FROM_EMBED)
        hidden = nn.Dense(width, use_bias=self.use_bias, kernel_init=kernel, name="dense")(hidden)
        hidden = activation(self.activation)(hidden)
        norm = nn.LayerNorm(
            epsilon=self.norm_epsilon, use_bias=self.use_bias, use_fast_variance=False, name="layer_norm"
        )
        hidden = norm(hidden)
        if width > table_width and self.widening == "columns":
            columns = self.param("extra_output_weights", self._init(("vocab", None)), (vocab_size, width - table_width))
            table = jnp.concatenate([table, columns.astype(table.dtype)], axis=1)
        elif width > table_width:
            hidden = hidden @ self.param("output_weights_proj", self._init(FROM_EMBED), (width, table_width))
        bias = self.param("output_bias", named(nn.initializers.zeros_init(), ("vocab",)), (vocab_size,))
        logits: jax.Array = hidden @ table.T + bias[None, None]
        return logits

    def _init(self, axes: tuple[str | None, ...]) -> Initializer:
        return kernel_init(self.initializer_range, axes)


class ClassificationHead(nn.Module):
    """The logits of classes, by one token of a sequence or by a pooled output.

    Example:
        logits = ClassificationHead(num_classes=3, inner_dim=768)(outputs["sequence_output"], training=False)
    """

    num_classes: int
    inner_dim: int = 0
    activation: str | None = "tanh"
    dropout_rate: float = 0.0
    cls_token_idx: int = 0
    initializer_range: float = 0.02
    norm_epsilon: float | None = None
    """That of a norm behind the inner layer, both of them without biases; None is no norm."""

    def setup(self) -> None:
        """Makes the layers."""
        if self.inner_dim:
            self.pooler_dense = dense(
                self.inner_dim,
                initializer_range=self.initializer_range,
                axes=FROM_EMBED,
                use_bias=self.norm_epsilon is None,
            )
        if self.inner_dim and self.norm_epsilon is not None:
            self.pooler_layer_norm = layer_norm(self.norm_epsilon, use_bias=False)
        self.dropout = nn.Dropout(self.dropout_rate)
        self.logits = dense(self.num_classes, initializer_range=self.initializer_range, axes=FROM_EMBED)

    def __call__(self, features: jax.Array, *, training: bool) -> jax.Array:
        """The logits, of shape (batch, classes).

        Args:
            features: Of shape (batch, length, width), or (batch, width) if pooled already.
        """
        hidden = features[:, self.cls_token_idx] if features.ndim == 3 else features
        if self.inner_dim:
            hidden = activation(self.activation or "linear")(self.pooler_dense(hidden))
        if self.inner_dim and self.norm_epsilon is not None:
            hidden = self.pooler_layer_norm(hidden)
        return self.logits(self.dropout(hidden, deterministic=not training))


class TokenHead(nn.Module):
    """The logits of the classes of each token."""

    num_classes: int
    dropout_rate: float = 0.0
    initializer_range: float = 0.02
    inner_dim: int = 0
    """The width of a dense layer and a norm before the logits, both of them without biases; 0 is none."""
    activation: str = "gelu"
    norm_epsilon: float = 1e-5

    @classmethod
    def of(cls, encoder_config: Any, num_classes: int, *, name: str, **options: Any) -> "TokenHead":
        """The head for an encoder: that of a ModernBERT has an inner layer."""
        epsilon = _norm_epsilon(encoder_config)
        if epsilon is not None:
            activation = encoder_config.head_activation
            options |= {"inner_dim": encoder_config.hidden_size, "activation": activation, "norm_epsilon": epsilon}
        return cls(num_classes, name=name, **options)

    def setup(self) -> None:
        """Makes the layers."""
        if self.inner_dim:
            self.dense = dense(
                self.inner_dim, initializer_range=self.initializer_range, axes=FROM_EMBED, use_bias=False
            )
            self.layer_norm = layer_norm(self.norm_epsilon, use_bias=False)
        self.dropout = nn.Dropout(self.dropout_rate)
        self.logits = dense(self.num_classes, initializer_range=self.initializer_range, axes=FROM_EMBED)

    def __call__(self, hidden: jax.Array, *, training: bool) -> jax.Array:
        """The logits, of shape (batch, length, classes)."""
        if self.inner_dim:
            hidden = self.layer_norm(activation(self.activation)(self.dense(hidden)))
        return self.logits(self.dropout(hidden, deterministic=not training))
