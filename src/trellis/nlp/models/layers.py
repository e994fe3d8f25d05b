"""Layers that encoders and heads are made of: activations, dense layers, norms, embeddings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from trellis.errors import ArgumentError, ModelError
from trellis.nlp.models.configs import DistilBertEncoderConfig, TransformerConfig
from trellis.runtime import look_up
from trellis.spelling import did_you_mean

Initializer = Callable[..., Any]
AxisNames = tuple[str | None, ...]

FROM_EMBED = ("embed", None)
"""The axes of kernels from the encoder's width to another one."""
TO_EMBED = (None, "embed")
"""The axes of kernels to the encoder's width."""

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
    "linear": lambda x: x,
}
"""The functions that `Activation` names."""

_INPUTS = ("input_word_ids", "input_mask", "input_type_ids")


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the function of a name.

    Example:
        >>> activation("relu")(jnp.array([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    if name not in ACTIVATIONS:
        suggestion = did_you_mean(name, ACTIVATIONS)
        raise ArgumentError(f"There is no activation {name!r}.{suggestion} There are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def kernel_init(initializer_range: float, axes: AxisNames) -> Initializer:
    """Returns the initializer of kernels and embeddings: normal, cut off at two standard deviations."""
    return named(nn.initializers.truncated_normal(stddev=initializer_range), axes)


def named(init: Initializer, axes: AxisNames) -> Initializer:
    """Returns an initializer whose arrays know the names of their axes, by which they are split over a mesh.

    The names are `vocab`, `embed`, `heads`, `kv` and `mlp`; None is an axis without a name.
    """
    return nn.with_logical_partitioning(init, axes)


def dense(
    features: int | Sequence[int], *, initializer_range: float, axes: AxisNames, use_bias: bool = True
) -> nn.DenseGeneral:
    """Returns a dense layer over the last axes.

    Args:
        features: The new axes.
        axes: The names of all axes of the kernel: those that go in, then the new ones.
    """
    n_inputs = len(axes) - (1 if isinstance(features, int) else len(features))
    return nn.DenseGeneral(
        features,
        axis=tuple(range(-n_inputs, 0)),
        use_bias=use_bias,
        kernel_init=kernel_init(initializer_range, axes),
        bias_init=named(nn.initializers.zeros_init(), axes[n_inputs:]),
    )


def layer_norm(epsilon: float, *, use_bias: bool = True) -> nn.LayerNorm:
    """Returns a layer norm, whose statistics are in float32 whatever the inputs are."""
    # The quick formula of the variance loses all digits where the mean is large, and epsilon is tiny here.
    return nn.LayerNorm(epsilon=epsilon, use_bias=use_bias, use_fast_variance=False)


class Embed(nn.Embed):
    """Flax's table of embeddings, whose gradient adds up in the same order each time."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The embeddings of ids of any shape."""
        if self.num_embeddings == 1 or not jnp.issubdtype(inputs.dtype, jnp.integer):
            # All rows are one, which is no lookup; or it is an error, which Flax explains.
            return super().__call__(inputs)
        table: Any
        (table,) = self.promote_dtype(self.embedding, dtype=self.dtype, inexact=False)
        return look_up(table, inputs)


class NoNorm(nn.Module):
    """A scale and a bias for each channel, instead of a norm."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The channels, scaled and moved."""
        scale = self.param("scale", nn.initializers.ones_init(), x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros_init(), x.shape[-1:])
        return x * scale.reshape((1,) * (x.ndim - 1) + (-1,)) + bias.reshape((1,) * (x.ndim - 1) + (-1,))


@struct.dataclass
class EncoderInputs:
    """What an encoder reads from a batch; all arrays are of shape (batch, length)."""

    word_ids: jax.Array
    type_ids: jax.Array
    mask: jax.Array
    """True where there is a token, not padding."""
    positions: jax.Array | None
    """The place of each token in its own sequence, if that is not its place in the row."""
    segment_ids: jax.Array | None
    """Which sequence of the row each token is of, if several are packed into one."""

    @classmethod
    def read(cls, inputs: Mapping[str, Any], *, max_length: int) -> "EncoderInputs":
        """Returns the encoder's part of a batch; raises an error if a part is missing or too long."""
        missing = [name for name in _INPUTS if name not in inputs]
        if missing:
            raise ModelError(
                f"The encoder takes {', '.join(_INPUTS)}, but {', '.join(missing)} is not in the batch, "
                f"which has: {', '.join(sorted(inputs))}."
            )
        length = inputs["input_word_ids"].shape[1]
        if length > max_length:
            raise ModelError(
                f"The batch has sequences of {length} tokens, but the encoder has embeddings for {max_length} "
                "positions. Make the sequences shorter (seq_length), or give the encoder more positions."
            )
        return cls(
            word_ids=inputs["input_word_ids"],
            type_ids=inputs["input_type_ids"],
            mask=inputs["input_mask"] != 0,
            positions=inputs.get("positions"),
            segment_ids=inputs.get("segment_ids"),
        )

    def without_types(self) -> "EncoderInputs":
        """The same for an encoder that tells no types apart.

        They stay an input of the program all the same: an exported one loses inputs that nothing uses, and is asked as
        those of other encoders are.
        """
        return replace(self, word_ids=self.word_ids + 0 * self.type_ids)

    def attention_mask(self) -> jax.Array:
        """True where a token may see another one: one of the same sequence that is not padding."""
        keys = self.mask[:, None, None, :]
        if self.segment_ids is None:
            return keys
        return keys & (self.segment_ids[:, None, :, None] == self.segment_ids[:, None, None, :])


class Embeddings(nn.Module):
    """The sum of word, position and type embeddings, normalised.

    Args:
        width: Of the tables.
        is_projected: Whether the sum is projected to the width of the encoder in the end.
    """

    config: TransformerConfig | DistilBertEncoderConfig
    width: int
    is_projected: bool

    def setup(self) -> None:
        """Makes the tables."""
        config = self.config
        words = kernel_init(config.initializer_range, ("vocab", "embed"))
        places = kernel_init(config.initializer_range, TO_EMBED)
        self.word_embeddings = Embed(config.vocab_size, self.width, embedding_init=words)
        self.position_embeddings = Embed(config.max_position_embeddings, self.width, embedding_init=places)
        # Some encoders have no types, and number positions from another one than 0.
        n_types = getattr(config, "type_vocab_size", 0)
        self.type_embeddings = Embed(n_types, self.width, embedding_init=places) if n_types else None
        self.first_position = getattr(config, "first_position", 0)
        self.layer_norm = layer_norm(config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate)
        if self.is_projected:
            self.projection = dense(config.hidden_size, initializer_range=config.initializer_range, axes=TO_EMBED)

    def __call__(self, inputs: EncoderInputs, *, training: bool) -> jax.Array:
        """The first hidden states."""
        hidden = self.word_embeddings(inputs.word_ids)
        hidden = hidden + embed_places(
            inputs, self.position_embeddings, self.type_embeddings, first_position=self.first_position
        )
        hidden = self.dropout(self.layer_norm(hidden), deterministic=not training)
        return self.projection(hidden) if self.is_projected else hidden


def embed_places(inputs: EncoderInputs, positions: Embed, types: Embed | None, *, first_position: int = 0) -> jax.Array:
    """Returns the embeddings of positions, plus those of types if there are some.

    Args:
        first_position: The row of the table of positions that the first token of a sequence has.
    """
    if inputs.positions is None:
        by_position = positions.embedding[None, first_position : first_position + inputs.word_ids.shape[1]]
    else:
        by_position = positions(inputs.positions + first_position)
    if types is None:
        return by_position
    # A product, since the gradient of a lookup that takes a few rows again and again is slow.
    by_type = jax.nn.one_hot(inputs.type_ids, types.num_embeddings, dtype=types.embedding.dtype) @ types.embedding
    return by_position + by_type
