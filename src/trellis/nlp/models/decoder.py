"""A decoder: from the tokens so far to the next one, all at once in training, one by one with a cache."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.config import bind, raise_if_any
from trellis.errors import ArgumentError, ModelError
from trellis.nlp.models.configs import DecoderConfig
from trellis.nlp.models.layers import TO_EMBED, AxisNames, Embed, activation, named
from trellis.nlp.models.token_losses import next_logits, token_losses
from trellis.nlp.models.transformer import attend, head_size, may_drop

NOTHING = -1
"""What stands in `next_word_ids` where there is nothing to predict."""


class KeysAndValues(NamedTuple):
    """What a layer keeps of the tokens so far: arrays of shape (batch, context, heads, head size)."""

    key: jax.Array
    value: jax.Array


class Place(NamedTuple):
    """Where new tokens go in a cache, and what they see there."""

    start: jax.Array
    """The place of the first of them."""
    mask: jax.Array
    """True where a new token sees a place of the cache, of shape (batch, 1, new tokens, context)."""


class CausalAttention(nn.Module):
    """Attention in which each token sees itself and what is left of it."""

    config: DecoderConfig

    def setup(self) -> None:
        """Makes the projections to heads and back."""
        config = self.config
        heads = (config.num_attention_heads, head_size(config.hidden_size, config.num_attention_heads))
        to_heads = partial(_dense, heads, config=config, axes=("embed", "heads", "kv"))
        self.query = to_heads()
        self.key = to_heads()
        self.value = to_heads()
        self.output = _dense(config.hidden_size, config=config, axes=("heads", "kv", "embed"), is_residual=True)
        self.dropout = nn.Dropout(config.attention_dropout_rate)

    def __call__(
        self, hidden: jax.Array, training: bool, cache: KeysAndValues | None = None, place: Place | None = None
    ) -> tuple[jax.Array, KeysAndValues | None]:
        """New hidden states; with a cache, whose keys and values they see, also that with their own in their place."""
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        if cache is None or place is None:
            drops = training and may_drop(self.config.attention_dropout_rate)
            drop = partial(self.dropout, deterministic=False) if drops else None
            return self.output(attend(query, key, value, is_causal=True, drop=drop)), None
        cache = KeysAndValues(
            *(
                jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), place.start, axis=1)
                for old, new in zip(cache, (key, value), strict=True)
            )
        )
        return self.output(attend(query, *cache, place.mask)), cache


class DecoderBlock(nn.Module):
    """Causal attention and a feedforward block, each with a norm before it, dropout and a residual connection."""

    config: DecoderConfig

    def setup(self) -> None:
        """Makes the two parts and their norms."""
        config = self.config
        width = config.intermediate_size or 4 * config.hidden_size
        self.attention_layer_norm = _layer_norm(config)
        self.attention = CausalAttention(config)
        self.output_layer_norm = _layer_norm(config)
        self.intermediate = _dense(width, config=config, axes=("embed", "mlp"))
        self.output = _dense(config.hidden_size, config=config, axes=("mlp", "embed"), is_residual=True)
        self.dropout = nn.Dropout(config.dropout_rate)

    def __call__(
        self, hidden: jax.Array, training: bool, cache: KeysAndValues | None = None, place: Place | None = None
    ) -> tuple[jax.Array, KeysAndValues | None]:
        """New hidden states, and the cache with those of these tokens."""
        drop = partial(self.dropout, deterministic=not training)
        attended, cache = self.attention(self.attention_layer_norm(hidden), training, cache, place)
        hidden = hidden + drop(attended)
        inner = activation(self.config.hidden_activation)(self.intermediate(self.output_layer_norm(hidden)))
        return hidden + drop(self.output(inner)), cache


@bind(DecoderConfig)
class Decoder(nn.Module):
    """A decoder as GPT-2's: learned positions, norms before the blocks, and one table for words in and out.

    Takes `input_word_ids` of shape (batch, length) and returns the `logits` of what comes after each of them, in
    float32. With `next_word_ids` of the same shape it returns their `losses` instead, which takes less memory; where
    those are -1 there is nothing to predict, and the loss is 0.

    Example:
        decoder = Decoder(DecoderConfig(vocab_size=50257, num_layers=4))
        variables = decoder.init(jax.random.key(0), {"input_word_ids": ids})
        logits = decoder.apply(variables, {"input_word_ids": ids})["logits"]
    """

    config: DecoderConfig

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """The part that a warm start takes: all of it."""
        return {name: name for name in ("word_embeddings", "position_embeddings", "layer_norm")} | {
            f"layer_{number}": f"layer_{number}" for number in range(self.config.num_layers)
        }

    def setup(self) -> None:
        """Makes the embeddings, the layers and the last norm."""
        config = self.config
        raise_if_any(list(config.problems()))
        if config.vocab_size is None:
            raise ModelError(
                "DecoderConfig.vocab_size is null, so a decoder has no table. Say how many tokens it knows."
            )
        normal = nn.initializers.normal(config.initializer_range)
        words, places = named(normal, ("vocab", "embed")), named(normal, TO_EMBED)
        self.word_embeddings = Embed(config.vocab_size, config.hidden_size, embedding_init=words)
        self.position_embeddings = Embed(config.max_position_embeddings, config.hidden_size, embedding_init=places)
        self.dropout = nn.Dropout(config.dropout_rate)
        # `training` decides what is traced; it is the third argument of `__call__`, self included.
        block = nn.remat(DecoderBlock, static_argnums=(2,)) if config.use_gradient_checkpointing else DecoderBlock
        self.layer = [block(config) for _ in range(config.num_layers)]
        self.layer_norm = _layer_norm(config)

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """The outputs by name."""
        if "input_word_ids" not in inputs:
            raise ModelError(f"The decoder takes input_word_ids, but the batch has {', '.join(sorted(inputs))}.")
        ids = inputs["input_word_ids"]
        length, context = ids.shape[1], self.config.max_position_embeddings
        if length > context:
            raise ModelError(
                f"The batch has sequences of {length} tokens, but the decoder has embeddings for {context} positions. "
                f"Make the sequences shorter (seq_length), or give it more positions (max_position_embeddings)."
            )
        hidden = self.word_embeddings(ids) + self.position_embeddings.embedding[None, :length]
        hidden = self.dropout(hidden, deterministic=not training)
        for layer in self.layer:
            hidden, _ = layer(hidden, training)
        hidden = self.layer_norm(hidden)
        table = self.word_embeddings.embedding
        if "next_word_ids" not in inputs:
            return {"logits": next_logits(hidden, table)}
        following = inputs["next_word_ids"]
        losses = token_losses(hidden, table, jnp.maximum(following, 0))
        return {"losses": jnp.where(following == NOTHING, 0, losses)}

    def new_cache(self, batch_size: int, context: int) -> list[KeysAndValues]:
        """An empty cache for sequences of so many tokens, one part for each layer."""
        config = self.config
        shape = (batch_size, context, config.num_attention_heads, config.hidden_size // config.num_attention_heads)
        zeros = jnp.zeros(shape, self.word_embeddings.embedding.dtype)
        return [KeysAndValues(zeros, zeros) for _ in range(config.num_layers)]

    def extend(
        self, ids: jax.Array, cache: Sequence[KeysAndValues], *, start: jax.Array, n_padding: jax.Array
    ) -> tuple[jax.Array, list[KeysAndValues]]:
        """The logits of what comes after the last of some tokens, and the cache with these tokens in it.

        Args:
            ids: The tokens after those in the cache, of shape (batch, new tokens).
            start: How many tokens are in the cache.
            n_padding: How many of the first tokens of each row are padding, which nobody sees.
        """
        places = start + jnp.arange(ids.shape[1])
        keys = jnp.arange(cache[0].key.shape[1])
        is_there = keys[None, None, :] >= n_padding[:, None, None]
        is_before = keys[None, None, :] <= places[None, :, None]
        place = Place(start, (is_there & is_before)[:, None])
        positions = jnp.maximum(places[None, :] - n_padding[:, None], 0)
        hidden = self.word_embeddings(ids) + self.position_embeddings(positions)
        new_cache: list[Any] = []
        for layer, kept in zip(self.layer, cache, strict=True):
            hidden, extended = layer(hidden, False, kept, place)
            new_cache.append(extended)
        last = self.layer_norm(hidden[:, -1])
        return next_logits(last, self.word_embeddings.embedding), new_cache

    def generate(
        self,
        ids: jax.Array,
        n_padding: jax.Array,
        keys: jax.Array,
        *,
        n_tokens: int,
        first: jax.Array | int = 0,
        temperature: jax.Array | float = 1.0,
        top_k: int | None = None,
    ) -> jax.Array:
        """What comes after some tokens, drawn one by one: ids of shape (batch, n_tokens).

        Example:
            ids = decoder.apply(variables, prompts, n_padding, keys, n_tokens=100, method="generate")

        Args:
            ids: The prompts, of shape (batch, length); shorter ones are filled up from the left.
            n_padding: How much of each row is that.
            keys: The randomness of each row. A row's tokens do not depend on what other rows are there.
            first: The number of the first new token: each one is drawn with a key of its own number.
            temperature: 0 takes the most probable token; 1 draws as the model says.
            top_k: Draws from so many of the most probable tokens alone; None is all.
        """
        n_prompt = ids.shape[1]
        if n_prompt + n_tokens > self.config.max_position_embeddings:
            raise ArgumentError(
                f"A prompt of {n_prompt} tokens and {n_tokens} new ones are more than the decoder's "
                f"{self.config.max_position_embeddings} positions. Ask for fewer."
            )
        # Bound modules cannot be called inside of a scan.
        module: Any = self.clone(parent=None)
        extend = partial(module.apply, self.variables, method="extend", n_padding=n_padding)
        draw = partial(_draw, keys=keys, temperature=temperature, top_k=top_k)

        def step(carry: Any, number: jax.Array) -> tuple[Any, jax.Array]:
            tokens, cache = carry
            logits, cache = extend(tokens[:, None], cache, start=n_prompt + number - 1)
            tokens = draw(logits, number=first + number)
            return (tokens, cache), tokens

        cache = self.new_cache(ids.shape[0], n_prompt + n_tokens)
        logits, cache = extend(ids, cache, start=jnp.int32(0))
        tokens = draw(logits, number=first + jnp.int32(0))
        _, others = jax.lax.scan(step, (tokens, cache), jnp.arange(1, n_tokens, dtype=jnp.int32))
        return jnp.concatenate([tokens[:, None], others.T], axis=1)


def _draw(
    logits: jax.Array,
    *,
    keys: jax.Array,
    number: jax.Array,
    temperature: jax.Array | float,
    top_k: int | None,
) -> jax.Array:
    """The next token of each row, from float32 logits of shape (batch, vocabulary)."""
    best = jnp.argmax(logits, axis=-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    of_row = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
    drawn = jax.vmap(jax.random.categorical)(of_row, logits / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature == 0, best, drawn).astype(jnp.int32)


def _dense(
    features: int | Sequence[int], *, config: DecoderConfig, axes: AxisNames, is_residual: bool = False
) -> nn.DenseGeneral:
    """A dense layer over the last axes, as GPT-2 begins with it.

    Args:
        is_residual: Whether its outputs are added to the hidden states: then it begins smaller, the more layers there
            are, so that the sum of all has the same size.
    """
    n_inputs = len(axes) - (1 if isinstance(features, int) else len(features))
    stddev = config.initializer_range / (math.sqrt(2 * config.num_layers) if is_residual else 1)
    return nn.DenseGeneral(
        features,
        axis=tuple(range(-n_inputs, 0)),
        use_bias=config.use_bias,
        kernel_init=named(nn.initializers.normal(stddev), axes),
        bias_init=named(nn.initializers.zeros_init(), axes[n_inputs:]),
    )


def _layer_norm(config: DecoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=config.norm_epsilon, use_bias=config.use_bias, use_fast_variance=False)
