import jax
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError
from trellis.loops import ReplicaLoop, TrainLoop

RATES = [0.01, 0.1]


def task_of(numbers, **options):
    model = tiny.Classifier(train=True, dropout_rate=0.3)
    optimizer = optax.adam(numbers["rate"])
    return trellis.TrainTask(
        apply=model.apply, optimizer=optimizer, loss=tiny.cross_entropy, data=options.get("data", tiny.stream())
    )


def loops(impl=None, **options):
    return [
        TrainLoop(
            init=tiny.Classifier(train=False).init,
            task=task_of({"rate": rate}, **options),
            rnkey=jax.random.key(seed, impl=impl),
            n_steps=6,
            n_steps_per_checkpoint=3,
            collections={"apply": ["dropout"]},
            devices=jax.devices()[:1],
            stdout=False,
        )
        for seed, rate in enumerate(RATES)
    ]


def test_replicas_of_a_script_are_their_loops_alone() -> None:
    stream = tiny.stream()
    together = ReplicaLoop(loops(data=stream), numbers={"rate": RATES}, build_task=task_of)
    found = {(index, checkpoint.step): checkpoint for index, checkpoint in together}
    assert list(found) == [(0, 3), (1, 3), (0, 6), (1, 6)]
    for index, loop in enumerate(loops(data=stream)):
        for checkpoint in loop:
            ours = found[index, checkpoint.step]
            assert ours.loss == pytest.approx(checkpoint.loss, rel=1e-5)
            pairs = zip(jax.tree.leaves(ours.model_params), jax.tree.leaves(checkpoint.model_params), strict=True)
            assert all(np.allclose(own, alone, atol=1e-6) for own, alone in pairs)


def test_a_replica_that_is_ended_yields_no_more() -> None:
    together = ReplicaLoop(loops(), numbers={"rate": RATES}, build_task=task_of)
    steps = []
    for index, checkpoint in together:
        steps.append((index, checkpoint.step))
        if index == 0:
            together.end(index)
    assert steps == [(0, 3), (1, 3), (1, 6)]


def test_loops_that_cannot_share_a_program_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no loop"):
        ReplicaLoop([])
    with pytest.raises(ArgumentError, match="an iterator. A replica takes a stream"):
        ReplicaLoop(loops(data=tiny.batches()))
    with pytest.raises(ArgumentError, match="no build_task"):
        ReplicaLoop(loops(), numbers={"rate": RATES})
    with pytest.raises(ArgumentError, match="of the kind rbg"):
        ReplicaLoop(loops(impl="rbg"))
    different = loops()
    different[1].n_steps = 9
    with pytest.raises(ArgumentError, match="n_steps of loop 1 is 9, but of the first 6"):
        ReplicaLoop(different)
