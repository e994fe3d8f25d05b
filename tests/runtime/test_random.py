"""Keys: sequences for scripts, and keys that follow from (seed, step, name) alone."""

import jax
import numpy as np

from trellis.runtime import StepKeys, random


def data(key: object) -> tuple[int, ...]:
    """The bits of a key."""
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_a_sequence_never_repeats_and_is_the_same_for_the_same_seed() -> None:
    one, other = random.sequence(seed=0), random.sequence(seed=0)
    first = [data(next(one)) for _ in range(20)]
    assert first == [data(next(other)) for _ in range(20)]
    assert len(set(first)) == 20


def test_several_sequences_differ_from_each_other() -> None:
    sequences = random.sequence(seed=0, num=3)
    assert isinstance(sequences, list)
    assert len({data(next(each)) for each in sequences}) == 3


def test_a_key_is_split_by_label() -> None:
    keys = random.into_collection(jax.random.key(0), ["params", "dropout"])
    assert list(keys) == ["params", "dropout"]
    assert data(keys["params"]) != data(keys["dropout"])
    assert random.into_collection(jax.random.key(0), []) == {}


def test_a_key_follows_from_the_root_the_step_and_the_name_alone() -> None:
    root = jax.random.key(1)
    keys = {data(StepKeys(root, step)[name]) for step in range(5) for name in ("dropout", "noise")}
    assert len(keys) == 10
    assert data(StepKeys(root, 3)["dropout"]) == data(jax.jit(lambda step: StepKeys(root, step)["dropout"])(3))
    assert list(StepKeys(root, 3).rngs(["a", "b"])) == ["a", "b"]
