"""The ModernBERT encoder: rotary positions, windows that alternate with whole rows, gated feedforward blocks."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from trellis.config import bind
from trellis.errors import ArgumentError
from trellis.nlp.models.configs import ModernBertEncoderConfig
from trellis.nlp.models.layers import Embed, EncoderInputs, activation, dense, kernel_init, layer_norm
from trellis.nlp.models.local_attention import attend_locally
from trellis.nlp.models.transformer import (
    Attended,
    AttentionClass,
    FeedForward,
    FeedForwardClass,
    LayeredEncoder,
    MultiHeadAttention,
    attend,
    head_size,
    may_drop,
)


class Rotation(NamedTuple):
    """By how much heads turn at each token, in float32 and of shape (batch or 1, length, 1, half a head's size)."""

    cos: jax.Array
    sin: jax.Array

    @classmethod
    def of(cls, inputs: EncoderInputs, *, theta: float, size: int) -> "Rotation":
        """The rotation of heads of a size: the longest wave is about `theta` tokens long, times two pi."""
        positions = inputs.positions
        if positions is None:
            positions = jnp.arange(inputs.word_ids.shape[1])[None]
        frequencies = (1 / theta ** (np.arange(0, size, 2) / size)).astype(np.float32)
        angles = positions[..., None, None].astype(jnp.float32) * frequencies[None, None, None]
        return cls(jnp.cos(angles), jnp.sin(angles))

    def turn(self, heads: jax.Array) -> jax.Array:
        """Queries or keys, turned, in their own dtype."""
        first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
        turned = [first * self.cos - second * self.sin, second * self.cos + first * self.sin]
        return jnp.concatenate(turned, axis=-1).astype(heads.dtype)


class Tokens(NamedTuple):
    """What every layer knows of the tokens."""

    inputs: EncoderInputs
    of_rows: Rotation
    """That of layers in which tokens see whole rows."""
    of_windows: Rotation


class WordEmbeddings(nn.Module):
    """The embeddings of words alone, normalised: places are known by rotation, and types are not."""

    config: ModernBertEncoderConfig

    def setup(self) -> None:
        """Makes the table and the norm."""
        config = self.config
        words = kernel_init(config.initializer_range, ("vocab", "embed"))
        self.word_embeddings = Embed(config.vocab_size, config.hidden_size, embedding_init=words)
        self.layer_norm = layer_norm(config.norm_epsilon, use_bias=False)
        self.dropout = nn.Dropout(config.embedding_dropout_rate)

    def __call__(self, inputs: EncoderInputs, *, training: bool) -> jax.Array:
        """The first hidden states."""
        hidden = self.layer_norm(self.word_embeddings(inputs.word_ids))
        dropped: jax.Array = self.dropout(hidden, deterministic=not training)
        return dropped


class RotaryAttention(nn.Module):
    """Attention whose queries and keys are turned by where they are, over whole rows or in a window."""

    config: ModernBertEncoderConfig
    is_global: bool

    def setup(self) -> None:
        """Makes the projections to heads, all in one, and back."""
        config = self.config
        heads = (config.num_attention_heads, head_size(config.hidden_size, config.num_attention_heads))
        self.qkv = _dense(config, (3, *heads), ("embed", None, "heads", "kv"))
        self.output = _dense(config, config.hidden_size, ("heads", "kv", "embed"), is_last=True)
        self.dropout = nn.Dropout(config.attention_dropout_rate)

    def __call__(self, hidden: jax.Array, tokens: Tokens, training: bool) -> jax.Array:
        """New hidden states."""
        query, key, value = jnp.moveaxis(self.qkv(hidden), -3, 0)
        rotation = tokens.of_rows if self.is_global else tokens.of_windows
        query, key = rotation.turn(query), rotation.turn(key)
        drop = self._drop if training and may_drop(self.config.attention_dropout_rate) else None
        if self.is_global:
            mixed = attend(query, key, value, tokens.inputs.attention_mask(), drop=drop)
        else:
            mixed = attend_locally(query, key, value, tokens.inputs, reach=self.config.local_attention // 2, drop=drop)
        dropped: jax.Array = self.dropout(self.output(mixed), deterministic=not training)
        return dropped

    def _drop(self, scores: jax.Array) -> jax.Array:
        dropped: jax.Array = self.dropout(scores, deterministic=False)
        return dropped


class GatedUnit(nn.Module):
    """A wide layer of which one half, activated, is multiplied with the other one, then a layer back."""

    config: ModernBertEncoderConfig

    def setup(self) -> None:
        """Makes the layers; the two halves are one."""
        config = self.config
        self.intermediate = _dense(config, (2, config.intermediate_size), ("embed", None, "mlp"))
        self.output = _dense(config, config.hidden_size, ("mlp", "embed"), is_last=True)
        self.dropout = nn.Dropout(config.feedforward_dropout_rate)

    def __call__(self, hidden: jax.Array, training: bool) -> jax.Array:
        """New hidden states."""
        wide, gate = jnp.moveaxis(self.intermediate(hidden), -2, 0)
        wide = activation(self.config.hidden_activation)(wide) * gate
        narrow: jax.Array = self.output(self.dropout(wide, deterministic=not training))
        return narrow


class ModernBertBlock(nn.Module):
    """Attention and a gated feedforward block; what goes into each is normalised, and what comes out is added.

    Args:
        index: The layer's number, which decides what its tokens see; the first layer does not normalise again what
            the embeddings are normalised by already.
    """

    config: ModernBertEncoderConfig
    attention_cls: AttentionClass
    feedforward_cls: FeedForwardClass
    index: int

    def setup(self) -> None:
        """Makes the two parts and their norms."""
        config = self.config
        self.attention = RotaryAttention(config, is_global=self.index % config.global_attention_interval == 0)
        if self.index > 0:
            self.attention_layer_norm = layer_norm(config.norm_epsilon, use_bias=False)
        self.feedforward = GatedUnit(config)
        self.feedforward_layer_norm = layer_norm(config.norm_epsilon, use_bias=False)

    def __call__(self, hidden: jax.Array, tokens: Tokens, training: bool) -> Attended:
        """New hidden states."""
        inputs = self.attention_layer_norm(hidden) if self.index > 0 else hidden
        hidden = hidden + self.attention(inputs, tokens, training)
        return Attended(hidden + self.feedforward(self.feedforward_layer_norm(hidden), training))


@bind(ModernBertEncoderConfig)
class ModernBertEncoder(LayeredEncoder):
    """ModernBERT: tokens see near ones in most layers, and their whole row in some. To be used as a `BertEncoder`.

    It has no embeddings of positions or types, and no pooler: `pooled_output` is the first token's, or the mean over
    tokens that are not padding, as `classifier_pooling` says.

    Example:
        encoder = ModernBertEncoder(ModernBertEncoderConfig(num_layers=4))
        outputs = encoder.apply(encoder.init(jax.random.key(0), batch), batch)
    """

    config: ModernBertEncoderConfig

    def setup(self) -> None:
        """Makes the embeddings, the layers and the norm after the last one."""
        config = self.config
        if (self.attention_cls, self.feedforward_cls) != (MultiHeadAttention, FeedForward):
            raise ArgumentError(
                "encoder.type is modernbert, which is built of blocks of its own, but attention_cls or feedforward_cls "
                "is given too, as by gin. Leave them out, or choose another type."
            )
        self.embeddings = WordEmbeddings(config)
        self.layer = [self.build_layer(ModernBertBlock, index=index) for index in range(config.num_layers)]
        self.final_layer_norm = layer_norm(config.norm_epsilon, use_bias=False)

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, if the config has it switched on, `encoder_outputs`.

        These are the states after each layer, the last of them normalised. A batch need not have `input_type_ids`.
        """
        config = self.config
        if "input_type_ids" not in inputs:
            inputs = {**inputs, "input_type_ids": inputs.get("input_mask")}
        read = EncoderInputs.read(inputs, max_length=config.max_position_embeddings).without_types()
        size = head_size(config.hidden_size, config.num_attention_heads)
        of_rows, of_windows = (
            Rotation.of(read, theta=theta, size=size) for theta in (config.global_rope_theta, config.local_rope_theta)
        )
        tokens = Tokens(read, of_rows, of_windows)
        hidden = self.embeddings(read, training=training)
        states = []
        for layer in self.layer:
            hidden = layer(hidden, tokens, training).hidden
            states.append(hidden)
        hidden = self.final_layer_norm(hidden)
        outputs: dict[str, Any] = {"sequence_output": hidden, "pooled_output": self._pooled(hidden, read.mask)}
        if config.return_all_encoder_outputs:
            outputs["encoder_outputs"] = [*states[:-1], hidden][: config.num_layers]
        return outputs

    def _pooled(self, hidden: jax.Array, mask: jax.Array) -> jax.Array:
        if self.config.classifier_pooling == "cls":
            return hidden[:, 0]
        counted = mask[..., None].astype(jnp.float32)
        n_tokens = jnp.maximum(jnp.sum(counted, axis=1), 1)
        return (jnp.sum(hidden * counted, axis=1) / n_tokens).astype(hidden.dtype)


def _dense(
    config: ModernBertEncoderConfig, features: Any, axes: tuple[str | None, ...], *, is_last: bool = False
) -> nn.Module:
    """A dense layer without a bias; the last one of a block begins the smaller, the more layers add up."""
    scale = 1 / math.sqrt(2 * config.num_layers) if is_last else 1.0
    return dense(features, initializer_range=scale * config.initializer_range, axes=axes, use_bias=False)
