"""Programs with the calls of Flax's proposal for a modular training and evaluation API, one for each sketch in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trellis as cb
from tests import tiny
from trellis import (
    Checkpoint,
    CheckpointFileReader,
    CheckpointFileWriter,
    EvalLoop,
    EvalTask,
    HighestCheckpointFileReader,
    HighestCheckpointFileWriter,
    LowestCheckpointFileReader,
    LowestCheckpointFileWriter,
    Summary,
    SummaryLogger,
    SummaryWriter,
    TrainLoop,
    TrainTask,
)
from trellis.nlp.models import RNNLM
from trellis.runtime import random

model = tiny.Classifier
ONE_DEVICE = jax.devices()[:1]


def categorical_cross_entropy(outputs: Any, targets: Any) -> Any:
    targets = jax.nn.one_hot(targets, outputs.shape[-1])
    return jnp.mean(optax.softmax_cross_entropy(outputs, targets))


def train_loop_from(init: Any = None, **options: Any) -> TrainLoop:
    return TrainLoop(
        init=init or model().init,
        task=TrainTask(
            apply=model().apply,
            optimizer=optax.sgd(learning_rate=0.1),
            loss=categorical_cross_entropy,
            data=tiny.batches(),
        ),
        **{"n_steps_per_checkpoint": 25, "n_steps": 100, "stdout": False, "devices": ONE_DEVICE} | options,
    )


def eval_loop_of(**metrics: Any) -> EvalLoop:
    return EvalLoop(
        task=EvalTask(
            apply=model().apply,
            metrics=metrics or {"lnpp": categorical_cross_entropy},
            data=tiny.batches(),
        ),
        n_steps=10,
        devices=ONE_DEVICE,
    )


@pytest.fixture
def train_loop() -> TrainLoop:
    return train_loop_from()


@pytest.fixture
def eval_loop() -> EvalLoop:
    return eval_loop_of()


def test_a_training_loop_is_iterated_over(train_loop: TrainLoop) -> None:
    steps, losses = [], []
    for checkpoint in train_loop:
        assert type(checkpoint) is Checkpoint
        assert checkpoint.n_completed_steps == 25
        assert checkpoint.elapsed_time > 0
        trees = (checkpoint.model_params, checkpoint.grads)
        assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
        assert checkpoint.model_state == {}
        assert checkpoint.optimizer_state is not None
        steps.append(checkpoint.step)
        losses.append(checkpoint.loss)
    assert steps == [25, 50, 75, 100]
    assert losses == sorted(losses, reverse=True)


def test_single_steps_and_the_way_to_the_next_checkpoint(train_loop: TrainLoop) -> None:
    checkpoint = train_loop.next_step()
    assert (checkpoint.step, checkpoint.n_completed_steps) == (1, 1)
    checkpoint = train_loop.next_checkpoint()
    assert (checkpoint.step, checkpoint.n_completed_steps) == (25, 24)


def test_a_number_of_steps_is_given_in_the_call(train_loop: TrainLoop) -> None:
    assert [checkpoint.step for checkpoint in train_loop(n_steps=200)] == list(range(25, 201, 25))


def test_an_evaluation_loop_makes_a_summary_of_a_checkpoint(train_loop: TrainLoop, eval_loop: EvalLoop) -> None:
    for checkpoint in train_loop(n_steps=50):
        summary = eval_loop(checkpoint)
        assert isinstance(summary, Summary)
        assert (summary.step, summary.loss) == (checkpoint.step, checkpoint.loss)
        assert list(summary.metrics) == ["train", "eval"]
        assert list(summary.metrics["eval"]) == ["lnpp"]
        assert 0 < summary.metrics["eval"]["lnpp"] < 2


def test_a_logger_reports_summaries(
    train_loop: TrainLoop, eval_loop: EvalLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = SummaryLogger()

    for checkpoint in train_loop(n_steps=25):
        summary = eval_loop(checkpoint)
        _ = logger(summary)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"Step 25 of 25  loss {summary.loss:6.4f}  ")
    assert lines[0].endswith(f"  eval/lnpp {summary.metrics['eval']['lnpp']:6.4f}")


def test_a_summary_writer_writes_for_tensorboard(train_loop: TrainLoop, eval_loop: EvalLoop, tmp_path: Path) -> None:
    summary_writer = SummaryWriter(output_dir=tmp_path / "tensorboard")

    for checkpoint in train_loop:
        summary = eval_loop(checkpoint)
        _ = summary_writer(summary)

    curves = {run: EventAccumulator(str(tmp_path / "tensorboard" / run)).Reload() for run in ("train", "eval")}
    assert [point.step for point in curves["eval"].Scalars("lnpp")] == [25, 50, 75, 100]
    assert curves["train"].Scalars("loss")[-1].value == pytest.approx(summary.loss)


def test_checkpoints_are_written_and_the_latest_starts_a_loop(train_loop: TrainLoop, tmp_path: Path) -> None:
    checkpoint_writer = CheckpointFileWriter(output_dir=tmp_path / "checkpoints")

    for checkpoint in train_loop:
        _ = checkpoint_writer(checkpoint)

    reader = CheckpointFileReader(dir=tmp_path / "checkpoints", target=model().init)
    resumed = train_loop_from(reader, n_steps=130)
    assert resumed.step == 100
    assert [checkpoint.step for checkpoint in resumed] == [125, 130]


def test_the_best_checkpoints_are_written_and_start_a_loop(train_loop: TrainLoop, tmp_path: Path) -> None:
    eval_loop = eval_loop_of(lnpp=categorical_cross_entropy, accuracy=tiny.accuracy)
    lowest = LowestCheckpointFileWriter(output_dir=tmp_path, metric="lnpp")
    highest = HighestCheckpointFileWriter(output_dir=tmp_path, metric="accuracy")

    found = {}
    for checkpoint in train_loop:
        summary = eval_loop(checkpoint)
        _ = highest(lowest(summary))
        found[summary.step] = summary.metrics["eval"]

    loop = train_loop_from(LowestCheckpointFileReader(dir=tmp_path, target=model().init, metric="lnpp"))
    assert loop.step == min(found, key=lambda step: found[step]["lnpp"])
    loop = train_loop_from(HighestCheckpointFileReader(dir=tmp_path, target=model().init, metric="accuracy"))
    assert loop.step == max(found, key=lambda step: found[step]["accuracy"])


MAX_LENGTH = 16
BATCH_SIZE = 8
VOCAB_SIZE = 2**5
D_MODEL = 8

collections = {
    "init": ["params", "carry", "dropout"],
    "apply": ["params", "carry", "dropout"],
}
config = {
    "vocab_size": VOCAB_SIZE,
    "d_model": D_MODEL,
    "n_layers": 1,
}


def noise(shape: tuple[int, int], bounds: tuple[int, int], rnkey: Any) -> Iterator[Any]:
    """The same random tokens for ever, as inputs and as targets."""
    while True:
        x = jax.random.randint(rnkey, shape, *bounds)
        yield x, x


def run_complete_example(output_dir: Path, n_steps: int) -> list[int]:
    """The proposal's complete example, call by call, on a small model; returns the steps it yields."""
    rnkeyg = random.sequence(seed=0)
    train_datag = noise(shape=(BATCH_SIZE, MAX_LENGTH), bounds=(1, VOCAB_SIZE), rnkey=next(rnkeyg))
    eval_datag = noise(shape=(BATCH_SIZE, MAX_LENGTH), bounds=(1, VOCAB_SIZE), rnkey=next(rnkeyg))

    train_loop = TrainLoop(
        init=CheckpointFileReader(dir=output_dir / "checkpoints", target=RNNLM(**config).init),
        task=TrainTask(
            apply=RNNLM(**config | {"deterministic": False}).apply,
            optimizer=optax.sgd(learning_rate=0.1, momentum=0.9),
            loss=categorical_cross_entropy,
            data=train_datag,
        ),
        collections=collections,
        mutable_collections=True,
        n_steps_per_checkpoint=3,
        rnkey=next(rnkeyg),
        n_steps=n_steps,
    )

    process_checkpoint = cb.serial(
        EvalLoop(
            task=EvalTask(
                apply=RNNLM(**config).apply,
                metrics={"lnpp": categorical_cross_entropy},
                data=eval_datag,
            ),
            collections=collections,
            rnkey=next(rnkeyg),
            n_steps=2,
        ),
        SummaryLogger(),
        SummaryWriter(output_dir=output_dir / "tensorboard"),
        CheckpointFileWriter(output_dir=output_dir / "checkpoints"),
        LowestCheckpointFileWriter(output_dir=output_dir / "checkpoints", metric="lnpp"),
    )

    steps = []
    for checkpoint in train_loop:
        summary = process_checkpoint(checkpoint)
        steps.append(summary.step)
    return steps


def test_the_complete_example_runs_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_complete_example(tmp_path, n_steps=8) == [3, 6, 8]
    out = capsys.readouterr().out
    assert "The lowest value for the metric eval/lnpp is set to inf." in out
    assert "Total number of trainable weights: 1088 ~ 4.2 kB." in out
    assert "Step 8 of 8  loss " in out
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert {"regular_6", "regular_8"} <= names
    assert len([name for name in names if name.startswith("lowest_eval_lnpp_")]) == 1

    assert run_complete_example(tmp_path, n_steps=9) == [9]
    out = capsys.readouterr().out
    assert "A checkpoint was loaded in " in out
    assert "8 batches of the iterator were read and skipped" in out
    curves = {run: EventAccumulator(str(tmp_path / "tensorboard" / run)).Reload() for run in ("train", "eval")}
    assert [point.step for point in curves["eval"].Scalars("lnpp")] == [3, 6, 8, 9]
    assert all(np.isfinite(point.value) for point in curves["train"].Scalars("gradients_l2norm"))
