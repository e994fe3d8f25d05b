"""A layer of an encoder (attention, by which tokens see each other, then a feedforward block), and layers in a row."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from trellis.errors import ArgumentError
from trellis.nlp.models.configs import TransformerConfig
from trellis.nlp.models.layers import FROM_EMBED, EncoderInputs, activation, dense, kernel_init, layer_norm
from trellis.runtime import current_placement

_TO_HEADS = ("embed", "heads", "kv")
_FROM_HEADS = ("heads", "kv", "embed")
_WIDER = ("embed", "mlp")
_NARROWER = ("mlp", "embed")
_FIRST_CAPABILITY = 8.0
_SHORT = 128
_NEVER = float(np.finfo("float32").min)
_HALF_PRECISION = (jnp.dtype("bfloat16"), jnp.dtype("float16"))


class Attended(NamedTuple):
    """What an attention block returns, and so does a whole layer."""

    hidden: jax.Array
    """New hidden states, one for each query."""
    scores: jax.Array | None = None
    """How much each query takes of each key, of shape (batch, heads, queries, keys); None without `return_scores`."""


class _Attention(nn.Module):
    """What attention blocks have in common: their settings, and the projections to heads and back.

    Args:
        width: Of the hidden states that come out; each head has its share of it.
        return_scores: Whether the scores are returned too, which rules out the fastest kernels.
    """

    width: int
    n_heads: int
    dropout_rate: float = 0.0
    initializer_range: float = 0.02
    return_scores: bool = False

    def setup(self) -> None:
        """Makes the projections to heads and back."""
        heads = (self.n_heads, head_size(self.width, self.n_heads))
        self.query = dense(heads, initializer_range=self.initializer_range, axes=_TO_HEADS)
        self.key = dense(heads, initializer_range=self.initializer_range, axes=_TO_HEADS)
        self.value = dense(heads, initializer_range=self.initializer_range, axes=_TO_HEADS)
        self.output = dense(self.width, initializer_range=self.initializer_range, axes=_FROM_HEADS)
        self.dropout = nn.Dropout(self.dropout_rate)


class MultiHeadAttention(_Attention):
    """Each query takes from the values as much as it agrees with their keys, in several heads.

    Example:
        attended = MultiHeadAttention(width=768, n_heads=12)(hidden, hidden, hidden, mask, training=False)
    """

    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, *, training: bool
    ) -> Attended:
        """New hidden states for the queries.

        Args:
            mask: True where a query may see a key, of shape (batch, 1, queries or 1, keys).
        """
        query = self.query(query)
        key = self.key(key)
        value = self.value(value)
        if self.return_scores or (training and may_drop(self.dropout_rate)):
            scores = _softmax(_logits(query, key), mask)
            mixed = _mix(self.dropout(scores, deterministic=not training), value)
            return Attended(self.output(mixed), scores if self.return_scores else None)
        return Attended(self.output(_fused(query, key, value, mask)))


class TalkingHeadsAttention(_Attention):
    """Attention whose heads are mixed with each other, before the softmax and after it (Shazeer et al., 2020).

    To be used as `MultiHeadAttention`, which has the contract.
    """

    def setup(self) -> None:
        """Makes the projections to heads and back, and those between heads."""
        super().setup()
        between = (kernel_init(self.initializer_range, ("heads", None)), (self.n_heads, self.n_heads))
        self.before_softmax = self.param("before_softmax", *between)
        self.after_softmax = self.param("after_softmax", *between)

    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, *, training: bool
    ) -> Attended:
        """New hidden states for the queries."""
        logits = _logits(self.query(query), self.key(key))
        scores = _softmax(_talk(logits, self.before_softmax), mask)
        scores = _talk(scores, self.after_softmax)
        mixed = _mix(self.dropout(scores, deterministic=not training), self.value(value))
        return Attended(self.output(mixed), scores if self.return_scores else None)


def head_size(width: int, n_heads: int) -> int:
    """Returns a head's share of the width.

    Example:
        >>> head_size(768, 12)
        64
    """
    if n_heads < 1 or width % n_heads:
        raise ArgumentError(
            f"A width of {width} cannot be shared out to {n_heads} attention heads. "
            "Choose num_attention_heads so that it divides the width."
        )
    return width // n_heads


def _logits(query: jax.Array, key: jax.Array) -> jax.Array:
    # In float32 whatever the inputs are: the softmax of rounded logits is wrong.
    return _half_logits(query, key) if query.dtype in _HALF_PRECISION else _plain_logits(query, key)


def _plain_logits(query: jax.Array, key: jax.Array) -> jax.Array:
    logits = jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=jnp.float32)
    return logits / math.sqrt(query.shape[-1])


# JAX would multiply the gradients of float32 logits in float32, which is several times slower. They are as good in the
# precision of the inputs, in which the gradients of these are rounded anyway.
@jax.custom_vjp
def _half_logits(query: jax.Array, key: jax.Array) -> jax.Array:
    return _plain_logits(query, key)


def _half_logits_back(inputs: tuple[jax.Array, jax.Array], grads: jax.Array) -> tuple[jax.Array, jax.Array]:
    query, key = inputs
    grads = (grads / math.sqrt(query.shape[-1])).astype(query.dtype)
    return jnp.einsum("bnts,bsnh->btnh", grads, key), jnp.einsum("bnts,btnh->bsnh", grads, query)


_half_logits.defvjp(lambda query, key: (_plain_logits(query, key), (query, key)), _half_logits_back)


def _softmax(logits: jax.Array, mask: jax.Array) -> jax.Array:
    # Not minus infinity: a query that may see no key gets equal scores, not NaN.
    return jax.nn.softmax(jnp.where(mask, logits, _NEVER), axis=-1)


def _talk(by_head: jax.Array, between: jax.Array) -> jax.Array:
    return jnp.einsum("bnts,nm->bmts", by_head, between.astype(by_head.dtype))


def may_drop(rate: float | jax.Array) -> bool:
    """Whether a rate of dropout, which may be traced, is one at which something is dropped."""
    # A rate that is traced, as a replica's is, has no value yet.
    return isinstance(rate, jax.Array) or rate > 0


def _mix(scores: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.einsum("bnts,bsnh->btnh", scores.astype(value.dtype), value)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    is_causal: bool = False,
    drop: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Returns what each query takes from the values, of the shape of the queries: (batch, queries, heads, head size).

    Args:
        mask: True where a query may see a key, of shape (batch, 1, queries or 1, keys); None is everywhere.
        is_causal: Whether a query sees no key right of its own place; then there is no mask.
        drop: Dropout of the scores; None is none, for which there are faster kernels.
    """
    if drop is None:
        return _fused(query, key, value, mask, is_causal=is_causal)
    if mask is None:
        ones = jnp.ones((1, 1, query.shape[1], key.shape[1]), bool)
        mask = jnp.tril(ones) if is_causal else ones
    return _mix(drop(_softmax(_logits(query, key), mask)), value)


def _fused(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, *, is_causal: bool = False
) -> jax.Array:
    """Attention without dropout: one kernel of cuDNN on a GPU in half precision, unless a loop is exact, else XLA's."""
    # Where each query has a mask of its own, XLA is quicker on short rows.
    is_short = mask is not None and mask.shape[2] > 1 and key.shape[1] <= _SHORT
    # The gradient of cuDNN's kernel adds up in any order, and XLA cannot compile it in another way.
    placement = current_placement()
    is_exact = placement is not None and placement.is_exact
    heads, masks = (query, key, value), () if mask is None else (mask,)
    by_xla = partial(_by_xla, is_causal=is_causal)
    if is_short or is_exact or not _cudnn_takes(query, key):
        return by_xla(*heads, *masks)
    by_cudnn = partial(_by_cudnn, is_causal=is_causal)
    # Decided at lowering, so that a program that was traced on a GPU can be exported for other platforms too.
    hidden: jax.Array = jax.lax.platform_dependent(*heads, *masks, cuda=by_cudnn, default=by_xla)
    return hidden


def _by_xla(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None, *, is_causal: bool
) -> jax.Array:
    return jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=is_causal, implementation="xla")


def _by_cudnn(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None, *, is_causal: bool
) -> jax.Array:
    if mask is not None:
        mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=is_causal, implementation="cudnn")


def _cudnn_takes(query: jax.Array, key: jax.Array) -> bool:
    """Whether cuDNN's kernel takes such arrays: half precision, even lengths, heads of 8 to 128, a GPU of our time."""
    if query.dtype not in _HALF_PRECISION or query.shape[1] % 2 or key.shape[1] % 2:
        return False
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 128
    # A number on GPUs of NVIDIA, such as 9.0; others have none, or a name.
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    return fits and capability[:1].isdigit() and float(capability) >= _FIRST_CAPABILITY


class _FeedForward(nn.Module):
    """What feedforward blocks have in common: their settings, a wide layer and a layer back to `width`."""

    width: int
    intermediate_size: int
    activation: str = "gelu"
    initializer_range: float = 0.02

    def setup(self) -> None:
        """Makes the two layers."""
        self.intermediate = dense(self.intermediate_size, initializer_range=self.initializer_range, axes=_WIDER)
        self.output = dense(self.width, initializer_range=self.initializer_range, axes=_NARROWER)


class FeedForward(_FeedForward):
    """A wide dense layer, an activation, and a dense layer back to `width`.

    Example:
        outputs = FeedForward(width=768, intermediate_size=3072, activation="gelu")(hidden)
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        """The new hidden states."""
        return self.output(activation(self.activation)(self.intermediate(x)))


class GatedFeedForward(_FeedForward):
    """A feedforward block whose wide activations are multiplied with a second, linear layer: the gate."""

    def setup(self) -> None:
        """Makes the three layers."""
        super().setup()
        self.gate = dense(self.intermediate_size, initializer_range=self.initializer_range, axes=_WIDER)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The new hidden states."""
        return self.output(activation(self.activation)(self.intermediate(x)) * self.gate(x))


class AttentionClass(Protocol):
    """Makes an attention block, such as `MultiHeadAttention` or `TalkingHeadsAttention`."""

    def __call__(
        self, *, width: int, n_heads: int, dropout_rate: float, initializer_range: float, return_scores: bool
    ) -> Any:
        """A module that takes (query, key, value, mask) and `training`, and returns `Attended`."""


class FeedForwardClass(Protocol):
    """Makes a feedforward block, such as `FeedForward` or `GatedFeedForward`."""

    def __call__(self, *, width: int, intermediate_size: int, activation: str, initializer_range: float) -> Any:
        """A module that takes hidden states and returns new ones of `width`."""


class TransformerBlock(nn.Module):
    """Attention and a feedforward block, each with dropout, a residual connection and a norm.

    Args:
        norm_first: Whether the inputs of the two parts are normalised, instead of their outputs.
        output_range: How many tokens, from the first, are computed; with None all are.
        return_scores: Whether the attention scores are returned too.
    """

    config: TransformerConfig
    attention_cls: AttentionClass
    feedforward_cls: FeedForwardClass
    norm_first: bool = False
    output_range: int | None = None
    return_scores: bool = False

    def setup(self) -> None:
        """Makes the two parts and their norms."""
        config = self.config
        self.attention = self.attention_cls(
            width=config.hidden_size,
            n_heads=config.num_attention_heads,
            dropout_rate=config.attention_dropout_rate,
            initializer_range=config.initializer_range,
            return_scores=self.return_scores,
        )
        self.attention_layer_norm = layer_norm(config.norm_epsilon)
        self.feedforward = self.feedforward_cls(
            width=config.hidden_size,
            intermediate_size=config.intermediate_size,
            activation=config.hidden_activation,
            initializer_range=config.initializer_range,
        )
        self.output_layer_norm = layer_norm(config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate)

    def __call__(self, hidden: jax.Array, mask: jax.Array, training: bool) -> Attended:
        """New hidden states, and the scores with `return_scores`."""
        queries = slice(self.output_range)
        mask = mask if mask.shape[2] == 1 else mask[:, :, queries]
        inputs = self.attention_layer_norm(hidden) if self.norm_first else hidden
        attended, scores = self.attention(inputs[:, queries], inputs, inputs, mask, training=training)
        hidden = hidden[:, queries] + self.dropout(attended, deterministic=not training)
        hidden = hidden if self.norm_first else self.attention_layer_norm(hidden)
        changed = self.feedforward(self.output_layer_norm(hidden) if self.norm_first else hidden)
        hidden = hidden + self.dropout(changed, deterministic=not training)
        return Attended(hidden if self.norm_first else self.output_layer_norm(hidden), scores)


class LayeredEncoder(nn.Module):
    """What all encoders have in common: they embed tokens, call layers one after another, and pool the first token.

    A subclass makes `embeddings`, its layers and a `pooler`, which may be None.

    Args:
        config: Of the encoder; heads read its `hidden_size`, `initializer_range` and `norm_epsilon`.
    """

    config: Any
    attention_cls: AttentionClass = MultiHeadAttention
    feedforward_cls: FeedForwardClass = FeedForward

    def build_layer(self, layer_cls: Any, **options: Any) -> Any:
        """Returns a layer; if the config says so, the backward pass computes its inner values again."""
        if self.config.use_gradient_checkpointing:
            # `training` decides what is traced; it is the fourth argument of `__call__`, self included.
            layer_cls = nn.remat(layer_cls, static_argnums=(3,))
        return layer_cls(self.config, self.attention_cls, self.feedforward_cls, **options)

    def build_pooler(self) -> nn.Module:
        """Returns the dense layer that the first token's output goes through."""
        return dense(self.config.hidden_size, initializer_range=self.config.initializer_range, axes=FROM_EMBED)

    def run_layers(self, tokens: EncoderInputs, layers: Sequence[Any], training: bool) -> list[Attended]:
        """Returns the embeddings of the tokens, then what comes out of each layer."""
        states = [Attended(self.embeddings(tokens, training=training))]
        mask = tokens.attention_mask()
        for layer in layers:
            states.append(layer(states[-1].hidden, mask, training))
        return states

    def outputs(self, states: Sequence[Attended], *, first: int = 1) -> dict[str, Any]:
        """Returns `sequence_output`, `pooled_output` and, if the config has it switched on, `encoder_outputs`.

        Args:
            states: As `run_layers` returns them.
            first: Where `encoder_outputs` begin; 0 is at the embeddings.
        """
        hidden = states[-1].hidden
        pooled = hidden[:, 0] if self.pooler is None else jnp.tanh(self.pooler(hidden[:, 0]))
        outputs: dict[str, Any] = {"sequence_output": hidden, "pooled_output": pooled}
        if self.config.return_all_encoder_outputs:
            outputs["encoder_outputs"] = [state.hidden for state in states[first:]]
        return outputs

    def embedding_table(self) -> jax.Array:
        """Returns the embeddings of all words, for a head that shares them."""
        table: jax.Array = self.embeddings.word_embeddings.embedding
        return table
