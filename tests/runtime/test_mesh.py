"""Placement: global arrays, split over devices, with no replica axis."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trellis.errors import ArgumentError, ConfigError, DataError
from trellis.loops import TrainState
from trellis.loops.batch import check_divisible
from trellis.runtime import Placement, RuntimeConfig
from trellis.trainer import build_placement


def test_a_batch_is_split_and_a_state_is_everywhere() -> None:
    placement = Placement(jax.devices())
    batch = placement.put_batch({"x": np.arange(16.0).reshape(16, 1)})["x"]
    assert batch.shape == (16, 1)
    assert [shard.data.shape for shard in batch.addressable_shards] == [(2, 1)] * 8
    state = placement.put_state(np.ones((3,)))
    assert [shard.data.shape for shard in state.addressable_shards] == [(3,)] * 8


def test_stacked_batches_are_split_along_the_batch_axis() -> None:
    batch = Placement(jax.devices()).put_rows(np.zeros((5, 16, 2)), stacked=True)
    assert {shard.data.shape for shard in batch.addressable_shards} == {(5, 2, 2)}


def test_a_short_batch_is_copied_where_it_cannot_be_split() -> None:
    batch = Placement(jax.devices()).put_batch(np.zeros((5, 2)))
    assert {shard.data.shape for shard in batch.addressable_shards} == {(5, 2)}


@pytest.mark.parametrize("n_devices", [1, 8])
@pytest.mark.parametrize("is_placed", [False, True])
def test_a_state_shares_no_memory_with_what_was_given(n_devices: int, is_placed: bool) -> None:
    placement = Placement(jax.devices()[:n_devices])
    given = jax.device_put(np.ones(1000, np.float32), jax.devices()[0])
    given = placement.put_params(given) if is_placed else given
    one, other = placement.put_state([given, given])
    jax.block_until_ready(jax.jit(lambda x, y: (x + 1, y + 1), donate_argnums=(0, 1))(one, other))
    np.testing.assert_array_equal(given, 1)


@pytest.mark.parametrize(("size", "fits"), [(12, "8 or 16"), (5, "8")])
def test_a_batch_that_cannot_be_split_is_refused_with_sizes_that_can(size: int, fits: str) -> None:
    with pytest.raises(
        DataError, match=rf"{size} examples cannot be split over 8 devices. Use a batch size of {fits},"
    ):
        check_divisible(np.zeros((size, 2)), Placement(jax.devices()).n_parts)


def test_a_batch_is_split_over_data_and_fsdp_and_is_whole_along_model() -> None:
    placement = Placement(jax.devices(), data=2, fsdp=2, model=2)
    for batch, stacked, shape in ((np.zeros((16, 2)), False, (4, 2)), (np.zeros((3, 16, 2)), True, (3, 4, 2))):
        placed = placement.put_rows(batch, stacked=stacked)
        assert {shard.data.shape for shard in placed.addressable_shards} == {shape}
    check_divisible(np.zeros((4, 1)), placement.n_parts)
    with pytest.raises(DataError, match="6 examples cannot be split over 4 devices. Use a batch size of 4 or 8,"):
        check_divisible(np.zeros((6, 1)), placement.n_parts)


def test_parameters_go_where_they_are_used_and_stay_there() -> None:
    placement = Placement(jax.devices(), fsdp=8)
    placed = placement.put_params({"big": np.zeros((16, 64)), "small": np.zeros(64), "odd": np.zeros((1025, 1))})
    assert {name: leaf.addressable_shards[0].data.shape for name, leaf in placed.items()} == {
        "big": (16, 8),
        "small": (64,),
        "odd": (1025, 1),
    }
    again = placement.put_params(placed)
    assert all(again[name].sharding == leaf.sharding for name, leaf in placed.items())


def test_parameters_are_gathered_where_they_are_used_and_examples_never() -> None:
    placement = Placement(jax.devices(), fsdp=8)
    params = placement.put_params({"up": np.ones((32, 64), np.float32), "down": np.ones((64, 32), np.float32)})
    batch = placement.put_batch(np.ones((24, 32), np.float32))

    def apply(variables: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ variables["params"]["up"]) @ variables["params"]["down"])

    state = TrainState(jnp.int32(0), params, {"state": params["up"]}, ())
    gathering: Any = placement.gathering({"params": state.params})(apply)  # type: ignore[arg-type]
    grads = jax.jit(jax.grad(lambda params, x: gathering({"params": params}, x)))
    program = grads.lower(params, batch).compile().as_text()
    gathered = set(re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(", program))
    assert gathered == {"32,64", "64,32"}
    assert {shard.data.shape for shard in grads(params, batch)["up"].addressable_shards} == {(32, 8)}
    other = {"params": {"else": params["up"], "up": params["up"], "down": params["down"]}}
    np.testing.assert_allclose(gathering(other, batch), gathering({"params": params}, batch))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"fsdp": 3}, "data=-1, fsdp=3, model=1 takes a multiple of 3 devices, but there are 8"),
        ({"data": 2, "model": 2}, "data=2, fsdp=1, model=2 takes 4 devices, but there are 8.*may be -1"),
        ({"data": 16}, "takes 16 devices, but there are 8. Choose sizes whose product is 8"),
        ({"fsdp": -1}, "cannot be data=-1, fsdp=-1, model=1: an axis has at least one device"),
        ({"model": 0}, "cannot be data=-1, fsdp=1, model=0"),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused_with_both_counts(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Placement(jax.devices(), **sizes)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, (8, 1, 1)),
        ({"distribution_strategy": "off"}, (1, 1, 1)),
        ({"distribution_strategy": "one_device", "num_gpus": 1}, (1, 1, 1)),
        ({"distribution_strategy": "tpu", "mesh": {"fsdp": 4}}, (2, 4, 1)),
        ({"distribution_strategy": "multi_worker_mirrored", "num_gpus": 2}, (2, 1, 1)),
        ({"num_gpus": 4, "mesh": {"data": 1, "fsdp": -1, "model": 2}}, (1, 2, 2)),
    ],
)
def test_published_strategies_are_arrangements(settings: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    mesh = build_placement(RuntimeConfig(**settings)).mesh
    assert tuple(mesh.shape.items()) == tuple(zip(("data", "fsdp", "model"), sizes, strict=True))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_gpus": 9}, ArgumentError, "num_gpus is 9, but this process has 8 devices .cpu.. Set runtime.num_gpus=0"),
        ({"num_gpus": -1}, ConfigError, "runtime.num_gpus is -1"),
        ({"num_gpus": 2, "distribution_strategy": "off"}, ConfigError, "distribution_strategy=off uses one device"),
        ({"distribution_strategy": "off", "mesh": {"fsdp": 2}}, ArgumentError, "multiple of 2 devices, but there is 1"),
        ({"mesh": {"fsdp": -1}}, ConfigError, "runtime.mesh.fsdp is -1, and so is runtime.mesh.data"),
        ({"mesh": {"data": 0}}, ConfigError, "runtime.mesh.data is 0"),
        ({"loss_scale": 128.0}, ConfigError, "loss_scale is 128.0, but runtime.mixed_precision_dtype is null"),
        (
            {"loss_scale": "dynamic", "mixed_precision_dtype": "bfloat16"},
            ConfigError,
            "Only float16 needs a loss scale",
        ),
        ({"loss_scale": -1.0, "mixed_precision_dtype": "float16"}, ConfigError, "loss_scale is -1.0"),
    ],
)
def test_a_runtime_that_cannot_be_is_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_placement(RuntimeConfig(**settings))
