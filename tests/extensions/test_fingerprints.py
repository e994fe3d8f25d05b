"""A fingerprint tells every bit of a state apart, and is the same wherever the state is."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import trellis
from trellis.extensions import EventWriter, Fingerprints, fingerprint, read_events, serial
from trellis.runtime import Placement

KINDS: dict[str, Any] = {
    "float32": np.linspace(-3, 7, 48, dtype=np.float32).reshape(8, 6),
    "bfloat16": jnp.linspace(-3, 7, 48, dtype=jnp.bfloat16).reshape(8, 6),
    "float8": jnp.linspace(-3, 7, 48).astype(jnp.float8_e4m3fn).reshape(8, 6),
    "int32": np.arange(48, dtype=np.int32).reshape(8, 6),
    "int4": jnp.arange(-8, 8, dtype=jnp.int4).reshape(8, 2),
    "uint8": np.arange(48, dtype=np.uint8).reshape(8, 6),
    "bool": (np.arange(48) % 3 == 0).reshape(8, 6),
    "complex64": (np.arange(48) + 1j).astype(np.complex64).reshape(8, 6),
    "keys": jax.random.split(jax.random.key(3), 8),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fingerprint_is_the_same_on_the_host_on_a_device_and_shared_out_over_eight(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = KINDS[kind]
    mesh = Placement(data=4, model=2).mesh
    specs = [PartitionSpec(), PartitionSpec("data"), PartitionSpec(("data", "model"))]
    if np.ndim(array) == 2:
        specs.append(PartitionSpec("data", "model"))
    on_host = fingerprint({"a": array})
    monkeypatch.setattr("trellis.extensions.fingerprints._MOST_BYTES_FETCHED", -1)
    assert fingerprint({"a": array}) == on_host
    for spec in specs:
        assert fingerprint({"a": jax.device_put(array, NamedSharding(mesh, spec))}) == on_host, spec


def test_a_single_bit_another_order_shape_dtype_or_name_changes_it() -> None:
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    others = {"transposed": array.T, "reshaped": array.reshape(4, 16), "ints": array.view(np.int32)}
    others["negative zero"] = array.copy()
    others["negative zero"][0, 0] = -0.0
    for bit in range(32):
        flipped = array.copy()
        flipped.view(np.uint32)[3, 5] ^= np.uint32(1 << bit)
        others[f"bit {bit}"] = flipped
    swapped = array.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    others["rows swapped"] = swapped
    digits = {name: fingerprint({"a": other}).digits for name, other in others.items()}
    digits |= {"itself": fingerprint({"a": array}).digits, "renamed": fingerprint({"b": array}).digits}
    assert len(set(digits.values())) == len(digits)


def test_zeros_of_any_length_and_nothing_at_all_have_fingerprints_of_their_own() -> None:
    digits = {fingerprint({"a": np.zeros(n, np.float32)}).digits for n in range(50)}
    assert len(digits) == 50
    assert fingerprint({}) == fingerprint(())


def train(directory: Path, *, seed: int = 0, n_fused_steps: int | None = None) -> list[dict[str, Any]]:
    """Runs a small training with fingerprints; returns their events."""
    images = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    task = trellis.TrainTask(
        apply=lambda variables, x, rngs, mutable: x @ variables["params"]["w"],
        optimizer=optax.adam(1e-2),
        loss=lambda outputs, targets: jnp.mean((outputs[:, 0] - targets) ** 2),
        data=trellis.ExampleStream((images, images.sum(axis=1)), batch_size=8, seed=seed),
    )
    loop = trellis.TrainLoop(
        init=lambda rngs, x: {"params": {"w": jnp.zeros((4, 1))}},
        task=task,
        n_steps=10,
        n_steps_per_checkpoint=5,
        n_fused_steps=n_fused_steps,
        stdout=False,
    )
    process = serial(EventWriter(directory), Fingerprints())
    loop.attach(process)
    for checkpoint in loop:
        process(checkpoint)
    return [event for event in read_events(directory / "events.jsonl") if event["kind"] == "fingerprint"]


def test_a_run_tells_the_fingerprints_of_its_trees_and_its_last_batch(tmp_path: Path) -> None:
    first, second = train(tmp_path / "a")
    assert (first["step"], second["step"]) == (5, 10)
    assert first["names"][0] == "params/w"
    assert first["tensors"][:16] != second["tensors"][:16]
    assert len(first["tensors"]) == 16 * len(first["names"])
    assert "names" not in second
    again, _ = train(tmp_path / "b")
    assert {**again, "time": 0} == {**first, "time": 0}


def test_the_batch_of_a_fused_call_is_that_of_its_last_step(tmp_path: Path) -> None:
    fused = train(tmp_path / "a")
    single = train(tmp_path / "b", n_fused_steps=1)
    assert [event["batch"] for event in fused] == [event["batch"] for event in single]
    other = train(tmp_path / "c", seed=1)
    assert other[0]["batch"] != fused[0]["batch"]
