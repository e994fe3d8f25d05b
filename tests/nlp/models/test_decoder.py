"""A decoder sees what is left of it alone, and writes the same with a cache and without."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trellis.errors import ArgumentError, ConfigError, ModelError
from trellis.nlp.models import Decoder, DecoderConfig
from trellis.nlp.models.token_losses import token_losses
from trellis.runtime import Precision

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 20,
    "initializer_range": 0.3,
}
IDS = np.random.default_rng(0).integers(0, 50, (3, 8)).astype(np.int32)


@functools.cache
def small_decoder(**changes: Any) -> tuple[Decoder, Any]:
    decoder: Any = Decoder(DecoderConfig(**SMALL | changes))
    return decoder, nn.meta.unbox(jax.jit(decoder.init)(jax.random.key(0), {"input_word_ids": IDS}))


def run(decoder: Any, variables: Any, inputs: Any, *, seed: int | None = None) -> Any:
    options = {} if seed is None else {"training": True, "rngs": {"dropout": jax.random.key(seed)}}
    return jax.jit(functools.partial(decoder.apply, **options))(variables, inputs)


def logits_of(decoder: Decoder, variables: Any, ids: Any) -> Any:
    return run(decoder, variables, {"input_word_ids": ids})["logits"]


def test_logits_depend_on_what_is_left_of_them_alone() -> None:
    decoder, variables = small_decoder(use_bias=False)
    assert "bias" not in str(jax.tree.structure(variables))
    changed = IDS.copy()
    changed[:, 5] = (changed[:, 5] + 1) % 50
    before, after = logits_of(decoder, variables, IDS), logits_of(decoder, variables, changed)
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert np.abs(before - after)[:, 5:].max(axis=(0, 2)).min() > 1e-3


def test_the_losses_are_the_cross_entropy_of_what_comes_next() -> None:
    decoder, variables = small_decoder()
    following = np.roll(IDS, -1, axis=1)
    following[:, -1] = -1
    losses = run(decoder, variables, {"input_word_ids": IDS, "next_word_ids": following})["losses"]
    logits = logits_of(decoder, variables, IDS)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], following[:, :-1])
    np.testing.assert_allclose(losses[:, :-1], expected, rtol=1e-5)
    assert not np.any(losses[:, -1])


@pytest.mark.parametrize("most_logits", [1 << 20, 400, 1])
def test_losses_and_gradients_do_not_depend_on_how_many_logits_are_kept(most_logits: int) -> None:
    hidden, table = (jax.random.normal(jax.random.key(seed), shape) for seed, shape in ((1, (3, 8, 16)), (2, (50, 16))))
    weights = jax.random.normal(jax.random.key(3), IDS.shape)

    def ours(hidden: Any, table: Any) -> Any:
        return jnp.sum(weights * token_losses(hidden, table, IDS, most_logits=most_logits))

    def plain(hidden: Any, table: Any) -> Any:
        return jnp.sum(weights * optax.softmax_cross_entropy_with_integer_labels(hidden @ table.T, IDS))

    (loss, grads), (expected_loss, expected) = (
        jax.jit(jax.value_and_grad(function, argnums=(0, 1)))(hidden, table) for function in (ours, plain)
    )
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), grads, expected)


@pytest.mark.parametrize(
    ("temperature", "top_k", "dtype"), [(0.0, None, "float32"), (1.0, None, "float32"), (0.8, 5, "bfloat16")]
)
def test_what_is_written_with_a_cache_is_what_is_written_without(
    temperature: float, top_k: int | None, dtype: Any
) -> None:
    decoder, variables = small_decoder()
    apply = Precision(dtype).applied_to(decoder.apply)
    n_padding, keys = np.array([0, 3, 7]), jax.random.split(jax.random.key(1), 3)
    options = {"n_tokens": 12, "temperature": temperature, "top_k": top_k}
    generate = functools.partial(apply, method="generate", **options)
    written = jax.jit(generate)(variables, IDS, n_padding, keys)

    @jax.jit
    def next_token(ids: Any, place: Any, key: Any) -> Any:
        logits = apply(variables, {"input_word_ids": ids})["logits"][0, place]
        if temperature == 0:
            return jnp.argmax(logits)
        least = jnp.sort(logits)[-(top_k or logits.size)]
        return jax.random.categorical(key, jnp.where(logits < least, -jnp.inf, logits) / temperature)

    for row, n_hidden in enumerate(n_padding):
        ids = np.zeros((1, 20), np.int32)
        n_prompt = 8 - n_hidden
        ids[0, :n_prompt] = IDS[row, n_hidden:]
        for number in range(12):
            key = jax.random.fold_in(keys[row], number)
            # Without a cache all tokens are read again for each new one; what is right of them is not seen.
            ids[0, n_prompt + number] = next_token(ids, n_prompt + number - 1, key)
        assert written[row].tolist() == ids[0, n_prompt : n_prompt + 12].tolist()


def test_dropout_of_attention_follows_from_its_key() -> None:
    decoder, variables = small_decoder(attention_dropout_rate=0.5, dropout_rate=0.1)

    first, again, other = (run(decoder, variables, {"input_word_ids": IDS}, seed=seed)["logits"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_layers_that_are_added_begin_smaller_the_more_there_are() -> None:
    _, variables = small_decoder(hidden_size=64, initializer_range=0.02)
    layer = variables["params"]["layer_1"]
    assert np.std(layer["intermediate"]["kernel"]) == pytest.approx(0.02, rel=0.1)
    for part in (layer["output"], layer["attention"]["output"]):
        assert np.std(part["kernel"]) == pytest.approx(0.02 / 2, rel=0.1)


def test_what_a_decoder_cannot_read_or_be_is_told() -> None:
    decoder, variables = small_decoder()
    with pytest.raises(ModelError, match=r"sequences of 21 tokens, but the decoder has embeddings for 20 positions"):
        logits_of(decoder, variables, np.zeros((1, 21), np.int32))
    with pytest.raises(ModelError, match=r"takes input_word_ids, but the batch has words"):
        decoder.apply(variables, {"words": IDS})
    with pytest.raises(ArgumentError, match=r"prompt of 8 tokens and 13 new ones are more than the decoder's 20"):
        decoder.apply(
            variables,
            IDS,
            np.zeros(3, np.int32),
            jax.random.split(jax.random.key(0), 3),
            n_tokens=13,
            method="generate",
        )
    with pytest.raises(ModelError, match="vocab_size is null"):
        small_decoder(vocab_size=None)
    with pytest.raises(ConfigError, match=r"num_attention_heads is 3, which does not divide hidden_size=16"):
        small_decoder(num_attention_heads=3)
