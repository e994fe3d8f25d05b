"""The law of the mesh: however eight devices are arranged, a run has the losses and metrics of one device."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.runtime import Placement

ARRANGEMENTS = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (4, 2, 1), (1, 2, 4)]
# Sums over devices are taken in another order: a few units in the last of float32's seven digits, over four steps.
ROUNDING = 2e-5


class Block(nn.Module):
    """A pair of layers that names the axes of its kernels, with dropout between; layers without names, and a norm."""

    train: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Logits of four classes."""
        # A bias before a norm has no gradient but rounding, which Adam would make as large as any other.
        x = nn.Dense(32, name="embedding", use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(x)
        x = nn.relu(self._dense(64, "embed", "mlp", name="up")(x))
        x = nn.Dropout(0.3, deterministic=not self.train)(x)
        return nn.Dense(4, name="head")(self._dense(32, "mlp", "embed", name="down")(x))

    @staticmethod
    def _dense(n_features: int, *names: str, name: str) -> nn.Dense:
        kernel_init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros_init(), names[1:])
        return nn.Dense(n_features, kernel_init=kernel_init, bias_init=bias_init, name=name)


def placement(arrangement: tuple[int, int, int]) -> Placement:
    data, fsdp, model = arrangement
    n_devices = data * fsdp * model
    return Placement(jax.devices()[:n_devices], data=data, fsdp=fsdp, model=model)


def train_loop(devices: Placement, **options: Any) -> trellis.TrainLoop:
    given = {
        "init": Block().init,
        "task": tiny.train_task(Block(train=True), optimizer=optax.adam(1e-2), metrics={"accuracy": tiny.accuracy}),
        "devices": devices,
        "collections": {"apply": ["dropout"]},
        "n_steps": 6,
        "n_steps_per_checkpoint": 3,
    }
    return tiny.train_loop(**given | options)


def history(devices: Placement) -> list[dict[str, float]]:
    evaluate = tiny.eval_loop(Block(), devices=devices, data=tiny.stream(256, shuffle=False, n_epochs=1))
    seen = []
    for checkpoint in train_loop(devices, n_steps=4, n_steps_per_checkpoint=1, n_fused_steps=1):
        metrics = evaluate(checkpoint).metrics
        seen.append({name: metrics["train"][name] for name in ("loss", "accuracy", "gradients_l2norm")})
        seen.append(dict(metrics["eval"]))
    return seen


def shard_shapes(tree: Any) -> set[tuple[int, ...]]:
    return {shard.data.shape for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards}


@pytest.fixture(scope="module")
def on_one_device() -> list[dict[str, float]]:
    return history(placement((1, 1, 1)))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_every_arrangement_has_the_losses_and_metrics_of_one_device(
    arrangement: tuple[int, int, int], on_one_device: list[dict[str, float]]
) -> None:
    for seen, expected in zip(history(placement(arrangement)), on_one_device, strict=True):
        assert seen == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.parametrize(
    ("arrangement", "up", "down", "embedding"),
    [
        ((1, 8, 1), (4, 64), (64, 4), (8, 32)),
        ((1, 1, 8), (32, 8), (8, 32), (8, 32)),
        ((2, 2, 2), (16, 32), (32, 16), (8, 32)),
    ],
)
def test_parameters_moments_and_gradients_are_shared_out_alike(
    arrangement: tuple[int, int, int], up: Any, down: Any, embedding: Any
) -> None:
    loop = train_loop(placement(arrangement))
    for advance in (loop.next_step, loop.next_checkpoint):
        checkpoint = advance()
        moments = checkpoint.optimizer_state[0]
        for tree in (checkpoint.model_params, moments.mu, moments.nu, checkpoint.grads):
            kernels = {name: shard_shapes(tree[name]["kernel"]) for name in ("up", "down", "embedding")}
            assert kernels == {"up": {up}, "down": {down}, "embedding": {embedding}}


def test_a_layer_without_names_is_shared_out_along_its_longest_axis() -> None:
    class Wide(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4, name="last")(nn.Dense(512, name="first")(x))

    loop = train_loop(placement((2, 2, 2)), init=Wide().init, task=tiny.train_task(Wide()), collections=None)
    params = loop.next_step().model_params
    assert shard_shapes(params["first"]["kernel"]) == {(8, 256)}
    assert shard_shapes(params["last"]["kernel"]) == {(256, 4)}
    assert shard_shapes(params["first"]["bias"]) == {(512,)}


def test_a_checkpoint_file_of_one_arrangement_is_resumed_on_another(tmp_path: Path) -> None:
    first = train_loop(placement((2, 2, 2)))
    trellis.CheckpointFileWriter(tmp_path)(first.next_checkpoint())
    whole = first.next_checkpoint()
    reader = trellis.CheckpointFileReader(tmp_path, target=Block().init)
    for arrangement in ((2, 2, 2), (1, 2, 4), (1, 1, 1)):
        resumed = train_loop(placement(arrangement), init=reader)
        assert resumed.step == 3
        last = resumed.next_checkpoint()
        assert last.loss == pytest.approx(whole.loss, rel=ROUNDING)
        if arrangement == (2, 2, 2):
            tiny.assert_equal(tiny.arrays(last.model_params), tiny.arrays(whole.model_params))
            assert shard_shapes(last.model_params["up"]["kernel"]) == {(16, 32)}


def test_a_checkpoint_is_evaluated_where_it_is_or_brought_there() -> None:
    checkpoint = train_loop(placement((1, 4, 2))).next_checkpoint()
    expected = None
    for devices in (placement((1, 4, 2)), placement((2, 2, 2)), placement((1, 1, 1))):
        seen = tiny.eval_loop(Block(), devices=devices)(checkpoint).metrics["eval"]
        assert seen == pytest.approx(expected or seen, rel=ROUNDING)
        expected = seen
    assert np.isfinite(list(expected.values())).all()
