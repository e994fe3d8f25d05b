"""The recurrent language model: its size, what it sees, and what it asks for."""

from typing import Any

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trellis.nlp.models import RNNLM

TOKENS = jax.random.randint(jax.random.key(0), (2, 6), 1, 16)


def model(**options: Any) -> RNNLM:
    return RNNLM(**{"vocab_size": 16, "d_model": 8, "n_layers": 1, "dropout_rate": 0.5} | options)


@pytest.fixture(scope="module")
def variables() -> Any:
    return jax.jit(model().init)(jax.random.key(1), TOKENS)


def test_the_size_is_that_of_the_published_one() -> None:
    shapes = jax.eval_shape(RNNLM(vocab_size=256, d_model=128, n_layers=2).init, jax.random.key(0), TOKENS)
    assert set(shapes) == {"params"}
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 328_960
    assert set(shapes["params"]) == {"embed", "lstm_0", "lstm_1", "logits"}


def test_the_defaults_are_the_published_ones() -> None:
    default = RNNLM(256)
    assert (default.d_model, default.n_layers, default.dropout_rate, default.deterministic) == (512, 2, 0.1, True)


def test_logits_are_about_each_token_and_see_only_those_before_it(variables: Any) -> None:
    logits = model().apply(variables, TOKENS)
    assert logits.shape == (2, 6, 16)
    changed = model().apply(variables, TOKENS.at[:, 3].add(1))
    np.testing.assert_array_equal(changed[:, :4], logits[:, :4])
    assert np.all(np.any(changed[:, 4:] != logits[:, 4:], axis=-1))


def test_a_text_starts_from_id_zero(variables: Any) -> None:
    first = model().apply(variables, TOKENS)[:, 0]
    np.testing.assert_array_equal(first[0], first[1])
    after_zero = model().apply(variables, jnp.zeros((1, 2), jnp.int32))
    # Programs for other shapes may round differently.
    np.testing.assert_allclose(after_zero[0, 0], first[0], rtol=1e-5, atol=1e-6)


def test_rng_collections_are_taken_and_only_dropout_needs_one(variables: Any) -> None:
    named = jax.jit(model().init)({name: jax.random.key(1) for name in ("params", "carry", "dropout")}, TOKENS)
    jax.tree.map(np.testing.assert_array_equal, named, variables)
    rngs = {"carry": jax.random.key(2), "dropout": jax.random.key(3)}
    np.testing.assert_array_equal(model().apply(variables, TOKENS, rngs=rngs), model().apply(variables, TOKENS))
    training = model(deterministic=False)
    assert np.any(training.apply(variables, TOKENS, rngs=rngs) != model().apply(variables, TOKENS))
    with pytest.raises(flax.errors.InvalidRngError, match='"dropout"'):
        training.apply(variables, TOKENS)
