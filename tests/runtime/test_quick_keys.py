"""Keys for dropout: their words are as good as random where a mask could tell."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trellis.runtime import StepKeys
from trellis.runtime.quick_keys import quick_key

N = 1 << 16


def keys(n: int = 24) -> list[Any]:
    """Keys that are as near to each other as those of a model's layers and steps are, or nearer."""
    root = quick_key(jax.random.key(0))
    plain = [quick_key(jax.random.key(seed)) for seed in range(n // 4)]
    folded = [jax.random.fold_in(root, number) for number in range(n // 4)]
    twice = [jax.random.fold_in(jax.random.fold_in(root, number), 1) for number in range(n // 4)]
    return [*plain, *folded, *twice, *jax.random.split(root, n // 4)]


def words(key: Any, n: int = N) -> np.ndarray:
    return np.asarray(jax.random.bits(key, (n,), "uint32"))


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_every_byte_of_a_word_is_uniform(shift: int) -> None:
    counts = [np.bincount(words(key) >> shift & 0xFF, minlength=256) for key in keys()]
    chi_square = np.sum((np.array(counts) - N / 256) ** 2 / (N / 256), axis=-1)
    # 255 degrees of freedom: these are 5 standard deviations.
    assert np.all(np.abs(chi_square - 255) < 5 * np.sqrt(2 * 255))


def test_bits_of_neighbouring_words_are_independent() -> None:
    for key in keys():
        bits = np.unpackbits(words(key).view(np.uint8).reshape(N, 4), axis=1) * 2.0 - 1
        for lag in (1, 2, 64, 192, 4096):
            correlation = bits[:-lag].T @ bits[lag:] / (N - lag)
            assert np.abs(correlation).max() < 6 / np.sqrt(N)


def test_masks_of_different_keys_are_independent() -> None:
    masks = np.array([(words(key) & 0xFFFF) < 6554 for key in keys()], float)
    correlation = np.corrcoef(masks)
    assert np.abs(correlation - np.eye(len(masks))).max() < 6 / np.sqrt(N)


def test_keys_do_not_draw_the_same_words_in_another_order() -> None:
    first, *others = [words(key) for key in keys()]
    # One word is to be expected by chance.
    assert max(len(np.intersect1d(first, other)) for other in others) < 10


def test_each_bit_of_a_key_changes_half_of_the_bits() -> None:
    base = jnp.array([0x12345678, 0x9ABCDEF0], "uint32")
    kind = jax.random.key_impl(quick_key(jax.random.key(0)))
    expected = words(jax.random.wrap_key_data(base, impl=kind), 4096)
    for half in range(2):
        for bit in range(32):
            near = jax.random.wrap_key_data(base.at[half].set(base[half] ^ np.uint32(1 << bit)), impl=kind)
            changed = np.unpackbits((words(near, 4096) ^ expected).view(np.uint8))
            assert abs(changed.mean() - 0.5) < 0.01


def test_keys_do_not_meet() -> None:
    root = quick_key(jax.random.key(0))
    folded = jax.vmap(lambda number: jax.random.fold_in(root, number))(jnp.arange(10_000, dtype="uint32"))
    data = np.concatenate([jax.random.key_data(folded), jax.random.key_data(jax.random.split(root, 10_000))])
    assert len(np.unique(data, axis=0)) == 20_000
    # The halves do not follow from each other either.
    assert np.abs(np.corrcoef((data.astype(float) / 2**32).T)[0, 1]) < 6 / np.sqrt(20_000)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_words_of_any_width_are_those_of_the_counter(dtype: str) -> None:
    key = quick_key(jax.random.key(7))
    bits = np.asarray(jax.random.bits(key, (8, 6), dtype))
    width = bits.dtype.itemsize * 8
    np.testing.assert_array_equal(bits, words(key, 48).reshape(8, 6) >> (32 - width))


def test_devices_that_share_an_array_draw_what_one_draws() -> None:
    key, mesh = quick_key(jax.random.key(7)), Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    draw = jax.jit(lambda key: jax.random.bits(key, (16, 3, 10), "uint32"))
    shared = jax.jit(draw, out_shardings=NamedSharding(mesh, PartitionSpec("data", None, "model")))(key)
    np.testing.assert_array_equal(shared, draw(key))


def test_dropout_alone_is_given_such_a_key() -> None:
    rngs = StepKeys(jax.random.key(0), 3).rngs(["dropout", "noise"])
    assert [str(jax.random.key_impl(key)) for key in rngs.values()] == ["quick", "threefry2x32"]


def test_a_kind_that_the_user_chose_stays() -> None:
    key = jax.random.key(0, impl="rbg")
    assert quick_key(key) is key
