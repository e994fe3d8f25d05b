"""What the experiments on language are, before any file or flag."""

from typing import Any

import pytest

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.cli.command import trellis_without_jax
from trellis.experiments import get_exp_config

FAMILIES = ("bert", "albert", "mobilebert")


def test_the_command_lists_all_of_them_without_jax() -> None:
    done = trellis_without_jax("experiments")
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.splitlines() if "/" in line.split(" ")[0]}
    kinds = ("pretraining", "sentence_prediction", "sentence_prediction_text", "squad")
    assert {f"{family}/{kind}" for family in FAMILIES for kind in kinds} | {"bert/local"} <= listed


@pytest.mark.parametrize(
    ("kind", "learning_rate", "trainer"),
    [
        ("pretraining", 1e-4, {"train_steps": 1_000_000, "train_epochs": 0}),
        ("sentence_prediction", 3e-5, {"train_steps": 0, "train_epochs": 3}),
        ("sentence_prediction_text", 3e-5, {"train_steps": 0, "train_epochs": 3}),
        ("squad", 8e-5, {"train_steps": 0, "train_epochs": 2}),
    ],
)
def test_experiments_have_the_published_optimizer_and_leave_lengths_open(
    kind: str, learning_rate: float, trainer: dict[str, Any]
) -> None:
    for family in FAMILIES:
        params = get_exp_config(f"{family}/{kind}")
        optimization = params.trainer.optimizer_config
        rule, rate = optimization.optimizer.get(), optimization.learning_rate.get()
        assert (rule.name, rule.weight_decay_rate) == ("AdamWeightDecay", 0.01)
        assert rule.exclude_from_weight_decay == ["LayerNorm", "layer_norm", "bias"]
        assert (rate.initial_learning_rate, rate.end_learning_rate, rate.decay_steps) == (learning_rate, 0.0, None)
        assert (optimization.warmup.type, optimization.warmup.get().warmup_steps) == ("polynomial", None)
        assert {name: getattr(params.trainer, name) for name in trainer} == trainer
        assert params.task.model.encoder.type == family
        assert params.task.train_data.is_training is True
        assert params.task.validation_data.is_training is False
        assert params.runtime.enable_xla is (kind == "pretraining")


def test_an_experiment_refuses_data_of_which_it_is_not_known_what_it_is_for() -> None:
    params = get_exp_config("albert/squad")
    params.task.train_data.is_training = None
    with pytest.raises(ValueError, match="task.train_data.is_training"):
        params.validate()
