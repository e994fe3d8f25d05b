"""What is given in the place of something else is an error of ours: one line, without addresses and arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import trellis
from trellis.errors import TrellisError, shown

MODEL = nn.Dense(4)
X = np.zeros((16, 8), np.float32)


class Anything:
    """An object whose repr has an address."""


WRONG = Anything()


def data(**options: Any) -> trellis.ExampleStream:
    return trellis.ExampleStream((X, np.zeros(16, int)), **{"batch_size": 8, **options})


def task(**options: Any) -> trellis.TrainTask:
    given = {
        "apply": MODEL.apply,
        "optimizer": optax.sgd(0.1),
        "loss": lambda outputs, _: outputs.mean(),
        "data": data(),
    }
    return trellis.TrainTask(**{**given, **options})


def train(**options: Any) -> None:
    trellis.TrainLoop(**{"init": MODEL.init, "task": task(), "n_steps": 2, **options}).outline()


def evaluate(**options: Any) -> None:
    trellis.EvalLoop(task=trellis.EvalTask(apply=MODEL.apply, data=data(), **options), n_steps=1).outline(
        trellis.TrainLoop(init=MODEL.init, task=task(), n_steps=2).outline().checkpoint
    )


CALLS: dict[str, Callable[[], object]] = {
    "optimizer": lambda: task(optimizer=WRONG),
    "loss": lambda: task(loss=X),
    "apply": lambda: task(apply=WRONG),
    "a module as apply": lambda: task(apply=MODEL),
    "init": lambda: train(init=WRONG),
    "variables as init": lambda: train(init={"params": X}),
    "a module in a reader": lambda: train(init=trellis.CheckpointFileReader("none", target=MODEL)),
    "rnkey": lambda: train(rnkey=X),
    "n_steps": lambda: train(n_steps=WRONG),
    "n_steps_per_checkpoint": lambda: train(n_steps_per_checkpoint=WRONG),
    "collections": lambda: train(collections={"aply": ["dropout"]}),
    "a name as collections": lambda: train(collections={"apply": "dropout"}),
    "collections of an evaluation": lambda: trellis.EvalLoop(
        task=trellis.EvalTask(apply=MODEL.apply, data=data()), collections={"eval": ["noise"]}
    ),
    "an object as batch": lambda: train(task=task(data=iter([WRONG]))),
    "seed": lambda: data(seed=X),
    "map": lambda: data(map=WRONG),
    "rows of several lengths": lambda: trellis.ExampleStream(([[1, 2], [3]], [0, 1]), batch_size=2),
    "a metric": lambda: evaluate(metrics={"a": WRONG}),
    "a metric of text": lambda: evaluate(metrics={"a": lambda outputs, targets: "x"}),
    "a metric of an object": lambda: evaluate(metrics={"a": lambda outputs, targets: WRONG}),
    "a checkpoint for an evaluation": lambda: trellis.EvalLoop(task=trellis.EvalTask(apply=MODEL.apply, data=data()))(
        WRONG  # type: ignore[arg-type]
    ),
    "a checkpoint for an extension": lambda: trellis.SummaryLogger()(WRONG),  # type: ignore[arg-type]
    "an extension": lambda: trellis.serial(WRONG),  # type: ignore[arg-type]
    "the period of an extension": lambda: trellis.every("10", trellis.SummaryLogger()),  # type: ignore[arg-type]
    "a directory": lambda: trellis.CheckpointFileReader(WRONG, target=MODEL.init),  # type: ignore[arg-type]
    "a served model": lambda: trellis.load_model(5),  # type: ignore[arg-type]
    "files": lambda: trellis.data.read_columns(5),  # type: ignore[arg-type]
    "an experiment": lambda: trellis.run_experiment("digits/classifier", mode="train"),  # type: ignore[arg-type]
    "a task": lambda: trellis.get_task(WRONG),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wrong_value_is_told_in_one_line(
    call: Callable[[], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrellisError) as raised:
        call()
    message = str(raised.value)
    assert "0x" not in message and "array(" not in message and "\n" not in message and len(message) < 300


def test_an_extension_that_returns_something_else_is_named() -> None:
    def lose(checkpoint: trellis.Checkpoint) -> Any:
        return WRONG

    loop = trellis.TrainLoop(init=MODEL.init, task=task(), n_steps=1, stdout=False)
    with pytest.raises(TrellisError, match="The extension the function lose returned an Anything, but it has to"):
        trellis.serial(lose)(loop.next_checkpoint())


def test_values_are_shown_as_they_are_where_they_fit_into_a_line() -> None:
    assert [shown(value) for value in ("10", 0.5, None, [1, 2])] == ["'10'", "0.5", "None", "[1, 2]"]
    assert shown(jax.numpy.zeros((2, 3))) == "an array of float32[2,3]"
    assert shown(np.float32(1.5)) == "np.float32(1.5)"
    assert shown("x" * 1000).endswith("x…") and len(shown("x" * 1000)) < 200
    assert shown({"params": X, "batch_stats": X}) == "a dict of 'params', 'batch_stats'"
