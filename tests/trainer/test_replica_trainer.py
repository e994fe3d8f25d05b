import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trellis.errors import ArgumentError, ConfigError
from trellis.experiments import ExperimentConfig, ReplicaRun, replica_problems, resolve, run_experiment, run_replicas
from trellis.extensions import Extension, read_summaries
from trellis.json_text import parse_json
from trellis.loops import Checkpoint

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
DROPOUT = "task.dropout_rate"
SETTINGS = [
    "runtime.distribution_strategy=one_device",
    "task.hidden_size=8",
    "task.validation_data.global_batch_size=99",
    "trainer.train_steps=20",
    *(f"trainer.{name}=10" for name in ("steps_per_loop", "summary_interval", "checkpoint_interval")),
    "trainer.validation_interval=10",
    "trainer.optimizer_config.warmup.type=null",
]
TRIALS = [
    [f"{RATE}=0.01", f"{DROPOUT}=0.0"],
    [f"{RATE}=0.001", f"{DROPOUT}=0.4", "runtime.seed=7"],
    [f"{RATE}=1e38", f"{DROPOUT}=0.2"],
]
PATHS = [RATE, DROPOUT, "runtime.seed"]


def config_of(settings: Sequence[str]) -> ExperimentConfig:
    return resolve("digits/classifier", settings=[*SETTINGS, *settings])


def run(directory: Path, extensions: Sequence[Extension] = ()) -> list[Exception | None]:
    runs = [
        ReplicaRun(name=f"{i}", params=config_of(trial), model_dir=directory / f"{i}", extensions=extensions)
        for i, trial in enumerate(TRIALS)
    ]
    return run_replicas(runs, paths=PATHS)


def fingerprints(directory: Path) -> dict[int, Any]:
    lines = [parse_json(line) for line in (directory / "events.jsonl").read_bytes().splitlines()]
    return {line["step"]: line["params"] for line in lines if line["kind"] == "fingerprint"}


def metrics(directory: Path, step: int) -> dict[str, float]:
    groups = read_summaries(directory / "events.jsonl")[step]["metrics"]
    return {"loss": float(groups["train"]["loss"]), **groups["eval"]}


class Interrupt(Extension):
    """Interrupts after the second checkpoint of a run's: those of some replicas are committed, and others not."""

    def __init__(self) -> None:
        self.n_checkpoints = 0

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        self.n_checkpoints += 1
        if self.n_checkpoints == 2:
            raise KeyboardInterrupt
        return checkpoint


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("together")
    errors = run(directory)
    assert errors[:2] == [None, None] and "became NaN" in str(errors[2])
    return directory


@pytest.mark.parametrize("index", [0, 1])
def test_each_replica_is_what_it_would_be_alone_also_beside_one_that_diverges(
    together: Path, tmp_path: Path, index: int
) -> None:
    run_experiment(config_of(TRIALS[index]), mode="train_and_eval", model_dir=tmp_path)
    for step in (10, 20):
        assert metrics(together / f"{index}", step) == pytest.approx(metrics(tmp_path, step), rel=1e-4)
    assert not any(math.isnan(value) for value in metrics(tmp_path, 20).values())


def test_a_replica_is_gone_on_with_alone(together: Path) -> None:
    params = config_of([*TRIALS[0], "trainer.train_steps=30", f"{RATE.rpartition('.')[0]}.decay_steps=20"])
    run_experiment(params, mode="train_and_eval", model_dir=together / "0", allow_changes=True)
    assert sorted(read_summaries(together / "0" / "events.jsonl")) == [10, 20, 30]


def test_replicas_that_were_interrupted_at_different_steps_end_with_the_same_bits(
    together: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, [Interrupt()])
    assert (tmp_path / "0" / "regular_10").exists() and not (tmp_path / "1" / "regular_10").exists()
    run(tmp_path)
    for index in (0, 1):
        ours, theirs = fingerprints(tmp_path / f"{index}"), fingerprints(together / f"{index}")
        assert ours[10] == theirs[10] and ours[20] == theirs[20]


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("task.hidden_size", []),
        ("trainer.optimizer_config.optimizer.sgd.momentum", ["trainer.optimizer_config.optimizer.type=sgd"]),
        ("trainer.train_steps", []),
        ("trainer.optimizer_config.optimizer.type", []),
    ],
)
def test_what_decides_the_program_is_refused_by_its_name(path: str, settings: list[str]) -> None:
    problems = replica_problems([config_of(settings)], paths=[RATE, path])
    assert [problem.path for problem in problems] == [path]


def test_numbers_of_the_optimizer_and_dropout_rates_may_differ() -> None:
    adamw = "trainer.optimizer_config.optimizer.adamw"
    names = ("weight_decay_rate", "beta_1", "beta_2", "epsilon")
    paths = [RATE, DROPOUT, *(f"{adamw}.{name}" for name in names)]
    assert not replica_problems([config_of(["trainer.optimizer_config.optimizer.type=adamw"])], paths=paths)


def test_batches_of_two_sizes_are_refused_before_the_first_step(tmp_path: Path) -> None:
    sizes = ["task.train_data.global_batch_size=32", "task.train_data.global_batch_size=64"]
    runs = [ReplicaRun(name=s, params=config_of([s]), model_dir=tmp_path / s[-2:]) for s in sizes]
    with pytest.raises(ConfigError, match=r"global_batch_size gives batches of other shapes"):
        run_replicas(runs)


def test_modes_that_do_not_train_are_refused() -> None:
    with pytest.raises(ArgumentError, match="the mode is eval"):
        run_replicas([], mode="eval")
