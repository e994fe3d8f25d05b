"""Lengths that a config leaves open, derived from its data."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from trellis.config import origin_of
from trellis.data import DataConfig, ExampleStream
from trellis.errors import ArgumentError
from trellis.experiments import ExperimentConfig, derive_lengths
from trellis.optimizers import OptimizationConfig, PolynomialWarmupConfig, WarmupConfig
from trellis.tasks import Task, TaskConfig
from trellis.trainer import TrainerConfig


class Counted(Task):
    def build_inputs(self, params: DataConfig, input_context: Any = None) -> ExampleStream:
        return ExampleStream(np.zeros((3668, 1)), batch_size=32)


class Endless(Task):
    def build_inputs(self, params: DataConfig, input_context: Any = None) -> Iterator[Any]:
        return iter(())


def experiment(**trainer: Any) -> ExperimentConfig:
    warmup = WarmupConfig(type="polynomial")
    task = TaskConfig(train_data=DataConfig(global_batch_size=32))
    return ExperimentConfig(
        task=task, trainer=TrainerConfig(optimizer_config=OptimizationConfig(warmup=warmup), **trainer)
    )


def test_epochs_become_steps_a_tenth_of_them_warm_up_and_evaluations_come_twice_an_epoch() -> None:
    params = derive_lengths(experiment(train_epochs=3, checkpoint_interval=50), task=Counted(TaskConfig()))
    trainer = params.trainer
    assert (trainer.train_steps, trainer.validation_interval, trainer.checkpoint_interval) == (342, 57, 50)
    assert trainer.optimizer_config.warmup.polynomial.warmup_steps == 34
    assert str(origin_of(params, "trainer.train_steps")) == "3 epochs of 3668 examples, 32 a batch"
    assert str(origin_of(params, "trainer.optimizer_config.warmup.polynomial.warmup_steps")) == "a tenth of 342 steps"


def test_steps_that_are_given_come_before_epochs_and_no_data_is_read() -> None:
    params = derive_lengths(experiment(train_steps=100, train_epochs=3), task=Endless(TaskConfig()))
    assert params.trainer.train_steps == 100
    assert params.trainer.optimizer_config.warmup.polynomial.warmup_steps == 10
    assert params.trainer.validation_interval == 1000


def test_a_config_that_leaves_nothing_open_stays_as_it_is() -> None:
    params = experiment(train_steps=100)
    params.trainer.optimizer_config.warmup.polynomial = PolynomialWarmupConfig(warmup_steps=7)
    assert derive_lengths(params, task=Endless(TaskConfig())) is params


def test_a_part_of_an_epoch_has_at_least_one_step() -> None:
    assert derive_lengths(experiment(train_epochs=0.001), task=Counted(TaskConfig())).trainer.train_steps == 1


def test_an_evaluation_reads_no_training_data() -> None:
    params = derive_lengths(experiment(train_epochs=3), task=Endless(TaskConfig()), trains=False)
    assert params.trainer.train_steps == 1


def test_data_that_does_not_know_its_size_is_refused_with_the_flag_to_give() -> None:
    with pytest.raises(ArgumentError, match="a tuple_iterator, does not know .*trainer.train_steps=1000"):
        derive_lengths(experiment(train_epochs=3), task=Endless(TaskConfig()))


def test_many_short_epochs_are_not_reported_twice_each() -> None:
    assert derive_lengths(experiment(train_epochs=30), task=Counted(TaskConfig())).trainer.validation_interval == 171
