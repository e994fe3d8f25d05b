"""Placement: global arrays, split over devices, with no replica axis."""

import jax
import numpy as np
import pytest

from trellis.errors import DataError
from trellis.runtime import Placement


def test_a_batch_is_split_and_a_state_is_everywhere() -> None:
    placement = Placement(jax.devices())
    batch = placement.put_batch({"x": np.arange(16.0).reshape(16, 1)})["x"]
    assert batch.shape == (16, 1)
    assert [shard.data.shape for shard in batch.addressable_shards] == [(2, 1)] * 8
    state = placement.put_state(np.ones((3,)))
    assert [shard.data.shape for shard in state.addressable_shards] == [(3,)] * 8


def test_stacked_batches_are_split_along_the_batch_axis() -> None:
    batch = Placement(jax.devices()).put_batch(np.zeros((5, 16, 2)), stacked=True)
    assert {shard.data.shape for shard in batch.addressable_shards} == {(5, 2, 2)}


def test_a_short_batch_is_copied_where_it_cannot_be_split() -> None:
    batch = Placement(jax.devices()).put_any_batch(np.zeros((5, 2)))
    assert {shard.data.shape for shard in batch.addressable_shards} == {(5, 2)}


def test_a_state_shares_no_memory_with_what_was_given() -> None:
    given = jax.device_put(np.ones(1000, np.float32), jax.devices()[0])
    placed = Placement(jax.devices()[:1]).put_state(given)
    jax.jit(lambda x: x + 1, donate_argnums=0)(placed)
    np.testing.assert_array_equal(given, 1)


@pytest.mark.parametrize(("size", "fits"), [(12, "8 or 16"), (5, "8")])
def test_a_batch_that_cannot_be_split_is_refused_with_sizes_that_can(size: int, fits: str) -> None:
    with pytest.raises(
        DataError, match=rf"{size} examples cannot be split over 8 devices. Use a batch size of {fits},"
    ):
        Placement(jax.devices()).check_divisible(np.zeros((size, 2)))
