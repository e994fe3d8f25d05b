"""What a notebook shows of an object is short, and has neither arrays nor addresses in it."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import trellis
from tests import tiny
from tests.trainer import small


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of each main class, by its repr."""
    directory: Path = tmp_path_factory.mktemp("run")
    loop = tiny.train_loop(n_steps=4, n_steps_per_checkpoint=2)
    evaluate = tiny.eval_loop(n_steps=2)
    params = small.params(5)
    task = trellis.get_task(params.task)
    checkpoint = next(loop)
    evaluation = "EvalLoop(group='eval', n_steps=2, task=EvalTask(data=ExampleStream, metrics=['accuracy', 'loss']))"
    loss = checkpoint.loss
    return {
        "TrainLoop(n_steps=4, n_steps_per_checkpoint=2, step=2)": loop,
        "TrainLoop(n_steps=None, n_steps_per_checkpoint=(2, 5))": tiny.train_loop(n_steps_per_checkpoint=(2, 5)),
        evaluation: evaluate,
        f"Checkpoint(step=2, loss={loss:.4f})": checkpoint,
        "Summary(step=5, train/loss=0.2500, eval/f1=nan)": tiny.checkpoint(
            train={"loss": 0.25}, eval={"f1": float("nan")}
        ),
        "TrainState(212 weights)": trellis.TrainState(jnp.int32(2), checkpoint.model_params, {}, ()),
        "StepOutput(loss, accuracy)": trellis.StepOutput(
            jnp.float32(1), {"accuracy": trellis.Mean(jnp.zeros(()), jnp.zeros(()))}
        ),
        "TrainTask(data=ExampleStream, metrics=[])": tiny.train_task(),
        "ExampleStream(256 examples, batch_size=16, seed=0)": tiny.stream(),
        "ExampleStream(256 examples, batch_size=8, shuffle=False, n_epochs=1)": tiny.stream(
            8, shuffle=False, n_epochs=1
        ),
        f"serial({evaluation}, every(3, SummaryLogger()), accuracy)": trellis.serial(
            evaluate, trellis.every(3, trellis.SummaryLogger()), tiny.accuracy
        ),
        "CheckpointFileReader(…)": trellis.CheckpointFileReader(directory, target=tiny.Classifier().init),
        "ExperimentConfig(task=SmallConfig(…), trainer=TrainerConfig(…), runtime=RuntimeConfig(…))": params,
        "BoundModel(Classifier, 212 weights)": trellis.BoundModel(tiny.Classifier(), params=checkpoint.model_params),
        f"{task!r}": task,
        f"Trainer({task!r}, model_dir='run', train_steps=5)": trellis.Trainer(
            task, config=params.trainer, runtime=params.runtime, model_dir="run"
        ),
        repr(loop.outline()): loop.outline(),
    }


def test_a_repr_is_one_short_line_without_arrays_and_addresses(objects: dict[str, Any]) -> None:
    for text, value in objects.items():
        assert repr(value) == text
        assert len(text) < 200
        assert "\n" not in text
        assert "0x" not in text
        assert "rray(" not in text


def test_a_checkpoint_whose_arrays_are_gone_has_a_repr() -> None:
    loop = tiny.train_loop(n_steps=2)
    first = next(loop)
    next(loop)
    assert repr(first).startswith("Checkpoint(step=1, loss=")


def test_a_notebook_shows_a_summary_as_a_table_in_which_names_are_text() -> None:
    summary = tiny.checkpoint(train={"loss": 0.25}, eval={"<b>f1": 1e-9})
    assert summary._repr_html_() == (
        "<table><caption>Step 5</caption>"
        "<tr><td>train/loss</td><td style='text-align: right'>0.2500</td></tr>"
        "<tr><td>eval/&lt;b&gt;f1</td><td style='text-align: right'>1.000e-9</td></tr></table>"
    )
