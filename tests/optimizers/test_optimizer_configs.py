"""The published settings of optimizers, learning rates and warm-ups."""

from typing import Any

import pytest

from trellis.config.fields import branches
from trellis.optimizers import BertOptimizationConfig, LrConfig, OptimizationConfig, OptimizerConfig, WarmupConfig
from trellis.trainer import TrainerConfig

CLIP = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}
BETAS = {"beta_1": 0.9, "beta_2": 0.999}

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "SGD", "decay": 0.0, "nesterov": False, "momentum": 0.0},
    "sgd_experimental": {"name": "SGD", "nesterov": False, "momentum": 0.0, "jit_compile": False},
    "adam": {"name": "Adam", **BETAS, "epsilon": 1e-7, "amsgrad": False},
    "adam_experimental": {"name": "Adam", **BETAS, "epsilon": 1e-7, "amsgrad": False, "jit_compile": False},
    "adamw": {
        "name": "AdamWeightDecay",
        **BETAS,
        "epsilon": 1e-7,
        "amsgrad": False,
        "weight_decay_rate": 0.0,
        "include_in_weight_decay": None,
        "exclude_from_weight_decay": None,
        "gradient_clip_norm": 1.0,
    },
    "adamw_experimental": {
        "name": "AdamWeightDecayExperimental",
        **BETAS,
        "epsilon": 1e-7,
        "amsgrad": False,
        "weight_decay": 0.0,
        "global_clipnorm": 1.0,
        "jit_compile": False,
    },
    "lamb": {
        "name": "LAMB",
        **BETAS,
        "epsilon": 1e-6,
        "weight_decay_rate": 0.0,
        "exclude_from_weight_decay": None,
        "exclude_from_layer_adaptation": None,
    },
    "rmsprop": {"name": "RMSprop", "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False},
    "lars": {
        "name": "LARS",
        "momentum": 0.9,
        "eeta": 0.001,
        "weight_decay_rate": 0.0,
        "nesterov": False,
        "classic_momentum": True,
        "exclude_from_weight_decay": None,
        "exclude_from_layer_adaptation": None,
    },
    "adagrad": {"name": "Adagrad", "initial_accumulator_value": 0.1, "epsilon": 1e-7},
    "slide": {
        "name": "SLIDE",
        **BETAS,
        "epsilon": 1e-6,
        "weight_decay_rate": 0.0,
        "weight_decay_type": "inner",
        "exclude_from_weight_decay": None,
        "exclude_from_layer_adaptation": None,
        "include_in_sparse_layer_adaptation": None,
        "sparse_layer_learning_rate": 0.1,
        "do_gradient_rescaling": True,
        "norm_type": "layer",
        "ratio_clip_norm": 1e5,
    },
    "adafactor": {
        "name": "Adafactor",
        "factored": True,
        "multiply_by_parameter_scale": True,
        "beta1": None,
        "decay_rate": 0.8,
        "step_offset": 0,
        "clipping_threshold": 1.0,
        "min_dim_size_to_factor": 128,
        "epsilon1": 1e-30,
        "epsilon2": 1e-3,
        "weight_decay": None,
        "include_in_weight_decay": None,
    },
    "adafactor_keras": {
        "name": "Adafactor",
        "learning_rate": 0.001,
        "beta_2_decay": -0.8,
        "epsilon_1": 1e-30,
        "epsilon_2": 1e-3,
        "clip_threshold": 1.0,
        "relative_step": True,
    },
}
START = {"initial_learning_rate": None}
RATES: dict[str, dict[str, Any]] = {
    "constant": {"name": "Constant", "learning_rate": 0.1},
    "stepwise": {"name": "PiecewiseConstantDecay", "boundaries": None, "values": None, "offset": 0},
    "exponential": {
        "name": "ExponentialDecay",
        **START,
        "decay_steps": None,
        "decay_rate": None,
        "staircase": None,
        "offset": 0,
    },
    "polynomial": {
        "name": "PolynomialDecay",
        **START,
        "decay_steps": None,
        "end_learning_rate": 0.0001,
        "power": 1.0,
        "cycle": False,
        "offset": 0,
    },
    "cosine": {"name": "CosineDecay", **START, "decay_steps": None, "alpha": 0.0, "offset": 0},
    "cosine_restarts": {
        "name": "CosineDecayRestarts",
        **START,
        "first_decay_steps": None,
        "t_mul": 2.0,
        "m_mul": 1.0,
        "alpha": 0.0,
        "offset": 0,
    },
    "power": {"name": "DirectPowerDecay", **START, "power": -0.5},
    "power_linear": {
        "name": "PowerAndLinearDecay",
        **START,
        "total_decay_steps": None,
        "power": -0.5,
        "linear_decay_fraction": 0.1,
        "offset": 0,
    },
    "power_with_offset": {
        "name": "PowerDecayWithOffset",
        **START,
        "power": -0.5,
        "offset": 0,
        "pre_offset_learning_rate": 1.0e6,
    },
    "step_cosine_with_offset": {
        "name": "StepCosineDecayWithOffset",
        "boundaries": None,
        "values": None,
        "offset": 0,
    },
}
WARMUPS: dict[str, dict[str, Any]] = {
    "linear": {"name": "linear", "warmup_learning_rate": 0, "warmup_steps": None},
    "polynomial": {"name": "polynomial", "power": 1, "warmup_steps": None},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_have_the_published_fields(name: str) -> None:
    assert OptimizerConfig(type=name).get().as_dict() == CLIP | OPTIMIZERS[name]


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_have_the_published_fields(name: str) -> None:
    assert LrConfig(type=name).get().as_dict() == RATES[name]


@pytest.mark.parametrize("name", WARMUPS)
def test_warm_ups_have_the_published_fields(name: str) -> None:
    assert WarmupConfig(type=name).get().as_dict() == WARMUPS[name]


def test_the_choices_are_the_published_ones() -> None:
    for config, names in ((OptimizerConfig(), OPTIMIZERS), (LrConfig(), RATES), (WarmupConfig(), WARMUPS)):
        assert {path for path, _ in branches(config)} == {"", *names}


def test_an_optimization_config_is_made_of_a_mapping() -> None:
    config = OptimizationConfig(
        {
            "optimizer": {"type": "sgd", "sgd": {}},
            "learning_rate": {"type": "polynomial"},
            "warmup": {"type": "linear", "linear": {"warmup_steps": 500, "warmup_learning_rate": 0.01}},
        }
    )
    assert config.optimizer.get().as_dict() == CLIP | OPTIMIZERS["sgd"]
    assert config.warmup.get().warmup_steps == 500


def test_the_optimization_of_bert_is_the_published_one() -> None:
    config = BertOptimizationConfig()
    rule = config.optimizer.get()
    assert (config.optimizer.type, rule.weight_decay_rate, rule.gradient_clip_norm) == ("adamw", 0.01, 1.0)
    assert rule.exclude_from_weight_decay == ["LayerNorm", "layer_norm", "bias"]
    rate = config.learning_rate.get()
    assert (rate.initial_learning_rate, rate.decay_steps, rate.end_learning_rate) == (1e-4, 1_000_000, 0.0)
    assert (config.warmup.type, config.warmup.get().warmup_steps) == ("polynomial", 10_000)
    assert TrainerConfig(optimizer_config=config, train_steps=1_000_000).optimizer_config == config
    # A change to one field leaves the others.
    assert BertOptimizationConfig({"warmup": {"polynomial": {"warmup_steps": 5}}}).warmup.get().warmup_steps == 5
