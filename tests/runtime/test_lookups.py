"""Lookups as GPUs compute them, run here on CPUs, against JAX's own and against sums in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trellis.loops import AUC, cross_entropy
from trellis.nlp.models import RNNLM, Embed
from trellis.runtime import Placement, current_placement, look_up, lookups, pick, sum_rows, take_places

DRAW = np.random.default_rng(0)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function as a loop on a GPU traces it."""
    monkeypatch.setattr(Placement, "platform", "gpu")
    return lambda function: traced(Placement(jax.devices()[:1]), function)


def traced(placement: Placement, function: Callable[..., Any]) -> Callable[..., Any]:
    def within(*arguments: Any) -> Any:
        with placement.tracing():
            return function(*arguments)

    return within


def numbers(*shape: int, dtype: Any = "float32") -> jax.Array:
    return jnp.asarray(DRAW.normal(size=shape), dtype)


def pulled_back(function: Callable[..., Any], array: jax.Array, grads: jax.Array) -> np.ndarray:
    """The gradient of an array for those of what a function makes of it."""
    return np.asarray(jax.jit(lambda array: jax.vjp(function, array)[1](grads)[0])(array), np.float64)


@pytest.mark.parametrize("n_rows", [7, 2000])
@pytest.mark.parametrize("shape", [(1,), (4, 50), (3, 5, 6)])
def test_a_table_gets_the_gradient_that_jax_computes(
    n_rows: int, shape: tuple[int, ...], on_gpu: Callable[..., Any]
) -> None:
    table = numbers(n_rows, 3)
    # The last rows are never looked up; ids below zero count from the end, and those past it are left out.
    ids = jnp.asarray(DRAW.integers(-2, n_rows - 3, shape), jnp.int32).at[..., -1].set(n_rows + 5)
    grads = numbers(*shape, 3)
    np.testing.assert_array_equal(on_gpu(look_up)(table, ids), jnp.take(table, ids, axis=0))
    ours = pulled_back(on_gpu(lambda table: look_up(table, ids)), table, grads)
    theirs = pulled_back(lambda table: jnp.take(table, ids, axis=0), table, grads)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert not ours[n_rows - 3 : n_rows - 2].any()


@pytest.mark.parametrize("n_rows", [16, 1500])
def test_long_sums_are_rounded_less_than_one_after_the_other(n_rows: int, on_gpu: Callable[..., Any]) -> None:
    # Half of all tokens are one word, as padding is; its sum is large beside those of rare words.
    ids = np.where(DRAW.random(20_000) < 0.5, 3, DRAW.integers(0, n_rows, 20_000))
    rows = DRAW.normal(size=(20_000, 2)) + 1
    rows[ids == 3] *= 1000
    rows = np.asarray(rows, np.float32)
    exact = np.zeros((n_rows, 2))
    np.add.at(exact, ids, rows.astype(np.float64))
    ours = jax.jit(on_gpu(lambda rows, ids: sum_rows(rows, ids, n_rows)))(rows, ids)
    np.testing.assert_allclose(ours, exact, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("n_rows", [16, 1500])
def test_half_precision_is_summed_in_float32(n_rows: int, on_gpu: Callable[..., Any]) -> None:
    table = numbers(n_rows, 4, dtype="bfloat16")
    ids = jnp.asarray(DRAW.integers(0, 8, 4000))
    grads = numbers(4000, 4, dtype="bfloat16") + 1
    exact = np.zeros((n_rows, 4))
    np.add.at(exact, np.asarray(ids), np.asarray(grads, np.float64))
    ours = pulled_back(on_gpu(lambda table: look_up(table, ids)), table, grads)
    # One rounding, that of the result: half of the last of eight bits.
    np.testing.assert_allclose(ours, exact, rtol=2**-8)


def test_a_number_that_is_none_stays_in_its_row(on_gpu: Callable[..., Any]) -> None:
    rows = jnp.array([[1.0], [jnp.nan], [jnp.inf], [2.0]])
    sums = jax.jit(on_gpu(lambda rows, ids: sum_rows(rows, ids, 2000)))(rows, jnp.array([5, 1, 1800, 5]))
    assert sums[5, 0] == 3
    assert np.isnan(sums[1, 0])
    assert np.isinf(sums[1800, 0])
    assert jnp.isfinite(sums).sum() == 1998


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_places_get_the_gradient_that_jax_computes(dtype: str, on_gpu: Callable[..., Any]) -> None:
    hidden = numbers(2, 6, 3, dtype=dtype)
    # Padding repeats a place.
    places = jnp.array([[5, 2, 0, 0], [1, 1, 3, -1]])
    grads = numbers(2, 4, 3, dtype=dtype)
    np.testing.assert_array_equal(on_gpu(take_places)(hidden, places), take_places(hidden, places))
    ours = pulled_back(on_gpu(lambda hidden: take_places(hidden, places)), hidden, grads)
    theirs = pulled_back(lambda hidden: take_places(hidden, places), hidden, grads)
    np.testing.assert_allclose(ours, theirs, rtol=0.02 if dtype == "bfloat16" else 1e-6)


def test_picked_scores_get_the_gradient_that_jax_computes(on_gpu: Callable[..., Any]) -> None:
    scores, grads = numbers(2, 5, 7), numbers(2, 5)
    labels = jnp.asarray(DRAW.integers(-1, 7, (2, 5)))
    np.testing.assert_array_equal(on_gpu(pick)(scores, labels), pick(scores, labels))
    ours = pulled_back(on_gpu(lambda scores: pick(scores, labels)), scores, grads)
    np.testing.assert_array_equal(ours, pulled_back(lambda scores: pick(scores, labels), scores, grads))


@pytest.mark.parametrize("n", [300, 2000])
def test_small_integers_reach_no_further_than_themselves(n: int, on_gpu: Callable[..., Any]) -> None:
    ids = jnp.asarray(DRAW.integers(0, 250, 400), jnp.uint8)
    table = numbers(n, 2)
    ours = pulled_back(on_gpu(lambda table: look_up(table, ids)), table, jnp.ones((400, 2)))
    np.testing.assert_array_equal(ours[:, 0], np.bincount(np.asarray(ids), minlength=n))
    picked = pulled_back(on_gpu(lambda scores: pick(scores, ids)), numbers(400, n), jnp.ones(400))
    assert picked.sum() == 400


def test_a_cross_entropy_is_that_of_optax(on_gpu: Callable[..., Any]) -> None:
    logits, labels = numbers(4, 9), jnp.array([0, 8, 3, 3])
    expected = optax.softmax_cross_entropy_with_integer_labels
    for ours in (cross_entropy, on_gpu(cross_entropy)):
        np.testing.assert_array_equal(ours(logits, labels), expected(logits, labels))
        gradient = jax.grad(lambda logits, ours=ours: ours(logits, labels).sum())(logits)
        np.testing.assert_array_equal(gradient, jax.grad(lambda logits: expected(logits, labels).sum())(logits))


def test_an_area_under_a_curve_is_the_same(on_gpu: Callable[..., Any]) -> None:
    scores, labels = numbers(200), jnp.asarray(DRAW.integers(0, 2, 200))
    weights = jnp.asarray(DRAW.integers(0, 3, 200))
    ours = jax.jit(on_gpu(AUC()))(scores, labels, weights)
    np.testing.assert_array_equal(ours.positives, AUC()(scores, labels, weights).positives)
    np.testing.assert_array_equal(ours.negatives, AUC()(scores, labels, weights).negatives)


def test_the_devices_of_a_mesh_sum_up_what_each_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "platform", "gpu")
    monkeypatch.setattr(lookups, "_FEW_ROWS", 10)
    placement = Placement()
    assert placement.n_parts == len(jax.devices()) > 1
    ids = jnp.asarray(DRAW.integers(0, 50, (placement.n_parts * 2, 30)), jnp.int32)
    rows = numbers(*ids.shape, 3)
    sums = jax.jit(traced(placement, lambda rows, ids: sum_rows(rows, ids, 50)))
    program = sums.lower(placement.put_batch(rows), placement.put_batch(ids)).compile()
    # A table, and not the batch, goes from device to device.
    assert "all-gather" not in program.as_text()
    np.testing.assert_allclose(sums(rows, ids), sum_rows(rows, ids, 50), atol=1e-5)
    # A batch that cannot be shared out is summed up whole.
    np.testing.assert_allclose(sums(rows[1:], ids[1:]), sum_rows(rows[1:], ids[1:], 50), atol=1e-5)


def test_gradients_of_replicas_are_their_own(on_gpu: Callable[..., Any]) -> None:
    tables, ids = numbers(3, 1100, 2), jnp.asarray(DRAW.integers(0, 1100, (3, 40)))

    def gradient(lookup: Callable[..., Any]) -> jax.Array:
        of_one = jax.grad(lambda table, ids: (lookup(table, ids) ** 2).sum())
        return jax.jit(jax.vmap(of_one))(tables, ids)

    np.testing.assert_allclose(gradient(on_gpu(look_up)), gradient(look_up), atol=1e-5)


def test_a_table_of_embeddings_is_that_of_flax() -> None:
    with pytest.raises(ValueError, match="must be an integer"):
        Embed(5, 3).init(jax.random.key(0), numbers(2))
    only = Embed(1, 3)
    variables = only.init(jax.random.key(0), jnp.array([0]))
    np.testing.assert_array_equal(only.apply(variables, jnp.array([4])), variables["params"]["embedding"])


def test_a_language_model_has_no_scatter_on_gpus(on_gpu: Callable[..., Any]) -> None:
    model = RNNLM(vocab_size=1200, d_model=4, n_layers=1)
    tokens = jnp.zeros((2, 5), jnp.int32)
    variables = model.init(jax.random.key(0), tokens)

    def loss(variables: Any) -> jax.Array:
        return cross_entropy(model.apply(variables, tokens), tokens).sum()

    for function, has_scatter in ((on_gpu(loss), False), (loss, True)):
        text = jax.jit(jax.grad(function)).trace(variables).lower(lowering_platforms=("cuda",)).as_text()
        assert ("stablehlo.scatter" in text) is has_scatter


def test_the_placement_is_known_while_a_step_is_traced_and_not_after() -> None:
    placement = Placement()
    assert current_placement() is None
    assert traced(placement, current_placement)() is placement
    with pytest.raises(ZeroDivisionError):
        traced(placement, lambda: 1 / 0)()
    assert current_placement() is None
