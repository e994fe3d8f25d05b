"""What an optimization config is refused for: the field by its whole path, and the way out."""

import subprocess
import sys
from typing import Any

import pytest

from trellis.errors import ConfigError
from trellis.optimizers import OptimizationConfig, build_optimizer, optimization_problems

AT = "trainer.optimizer_config."
WHOLE = {"optimizer": {"type": "adamw"}, "learning_rate": {"type": "constant"}}


def rate(name: str, **fields: Any) -> dict[str, Any]:
    return {"learning_rate": {"type": name, name: fields}}


def rule(name: str, **fields: Any) -> dict[str, Any]:
    return {"optimizer": {"type": name, name: fields}}


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no optimizer": ({"optimizer": {}}, "optimizer.type is not set", "optimizer.type=adamw"),
    "no learning rate": ({"learning_rate": {}}, "learning_rate.type is not set", "learning_rate.type=constant"),
    "slide": (rule("slide"), "optimizer.type is slide", "lamb"),
    "two norms": (
        rule("sgd", clipnorm=1.0, global_clipnorm=2.0),
        "sgd.clipnorm is 1.0 while trainer.optimizer_config.optimizer.sgd.global_clipnorm is 2.0",
        "Set one of them to null",
    ),
    "two norms, one by default": (rule("adamw_experimental", clipnorm=1.0), "global_clipnorm is 1.0", "to null"),
    "a negative limit": (rule("adam", clipvalue=-1.0), "adam.clipvalue is -1.0", "null is for no limit"),
    "a negative norm": (rule("adamw", gradient_clip_norm=-1.0), "gradient_clip_norm is -1.0", "0 is for no limit"),
    "a bad pattern": (
        rule("lamb", exclude_from_weight_decay=["bias", "(norm"]),
        "lamb.exclude_from_weight_decay has '(norm'",
        "backslash",
    ),
    "a share above one": (rule("adam", beta_2=1.0), "adam.beta_2 is 1.0", "from 0 to below 1"),
    "a step offset": (rule("adafactor", step_offset=9), "adafactor.step_offset is 9", "Leave it at 0"),
    "an average of state": (
        {"ema": {"trainable_weights_only": False}},
        "ema.trainable_weights_only is false",
        "Leave it at true",
    ),
    "clipping of an average": (
        {"ema": {"clipnorm": 1.0}},
        "ema.clipnorm is set",
        "Set trainer.optimizer_config.optimizer.adamw.clipnorm instead",
    ),
    "an average that grows": ({"ema": {"average_decay": 1.5}}, "ema.average_decay is 1.5", "from 0 to 1"),
    "a group of nothing": ({"groups": [{}]}, "groups[0].parameters is []", "such as encoder/embeddings"),
    "two groups of one name": (
        {"groups": [{"parameters": ["a"], "name": "x"}, {"parameters": ["b"], "name": "x"}]},
        "groups[1].name is x, as that of another",
        "Give each its own name",
    ),
    "a group that goes uphill": (
        {"groups": [{"parameters": ["a"], "learning_rate_factor": -1.0}]},
        "groups[0].learning_rate_factor is -1.0",
        "to train nothing is: frozen",
    ),
    "layers that grow": (
        {"groups": [{"parameters": ["a"], "layer_decay": 1.5}]},
        "groups[0].layer_decay is 1.5",
        "at most 1",
    ),
    "a decay of nothing": (
        rule("sgd") | {"groups": [{"parameters": ["a"], "weight_decay": 0.1}]},
        "groups[0].weight_decay is 0.1, but sgd has no weight decay",
        "Take adamw",
    ),
    "an empty path": ({"frozen": [""]}, "frozen is ['']", "such as encoder/embeddings"),
    "no start": (rate("power"), "power.initial_learning_rate is not set", "power.initial_learning_rate=…"),
    "no length": (
        rate("cosine", initial_learning_rate=0.1),
        "cosine.decay_steps is not set",
        "Or give the run a length",
    ),
    "no length of a period": (
        rate("exponential", initial_learning_rate=0.1, decay_rate=0.5),
        "exponential.decay_steps is not set",
        "exponential.decay_steps=…",
    ),
    "a length of zero": (
        rate("polynomial", initial_learning_rate=0.1, decay_steps=0),
        "polynomial.decay_steps is 0",
        "at least one step",
    ),
    "a factor of zero": (
        rate("exponential", initial_learning_rate=0.1, decay_steps=1, decay_rate=0.0),
        "exponential.decay_rate is 0.0",
        "above 0",
    ),
    "a negative rate": (rate("constant", learning_rate=-0.1), "constant.learning_rate is -0.1", "from 0 on"),
    "a rate that is no number": (
        rate("cosine", initial_learning_rate=float("nan"), decay_steps=1),
        "cosine.initial_learning_rate is nan",
        "from 0 on",
    ),
    "a negative end": (
        rate("polynomial", initial_learning_rate=0.1, decay_steps=1, end_learning_rate=-1.0),
        "polynomial.end_learning_rate is -1.0",
        "from 0 on",
    ),
    "a negative level": (
        rate("stepwise", boundaries=[1], values=[0.1, -0.2]),
        "stepwise.values is [0.1, -0.2]",
        "from 0 on",
    ),
    "a warm-up from below": (
        {"warmup": {"type": "linear", "linear": {"warmup_steps": 1, "warmup_learning_rate": -1.0}}},
        "warmup.linear.warmup_learning_rate is -1.0",
        "from 0 on",
    ),
    "periods of no length": (
        rate("cosine_restarts", initial_learning_rate=0.1, first_decay_steps=1, t_mul=0.0),
        "cosine_restarts.t_mul is 0.0",
        "a factor above 0",
    ),
    "periods that change sign": (
        rate("cosine_restarts", initial_learning_rate=0.1, first_decay_steps=1, m_mul=-1.0),
        "cosine_restarts.m_mul is -1.0",
        "from 0 on",
    ),
    "a cosine that ends below zero": (
        rate("cosine", initial_learning_rate=0.1, decay_steps=1, alpha=-0.5),
        "cosine.alpha is -0.5",
        "from 0 on",
    ),
    "a power that is infinite at the end": (
        rate("polynomial", initial_learning_rate=0.1, decay_steps=1, power=-1.0),
        "polynomial.power is -1.0",
        "divide by zero at the end",
    ),
    "a power that is no number": (
        rate("power", initial_learning_rate=0.1, power=float("nan")),
        "power.power is nan",
        "a finite number",
    ),
    "a warm-up that begins at infinity": (
        {"warmup": {"type": "polynomial", "polynomial": {"warmup_steps": 9, "power": -1.0}}},
        "warmup.polynomial.power is -1.0",
        "from 0 on",
    ),
    "a whole decay of zero": (
        rate("power_linear", initial_learning_rate=0.1, total_decay_steps=0),
        "power_linear.total_decay_steps is 0",
        "at least one step",
    ),
    "a value too few": (
        rate("stepwise", boundaries=[1, 2], values=[0.1, 0.2]),
        "stepwise.values has 2 entries for 2 boundaries",
        "one more than there are boundaries",
    ),
    "a level too many": (
        rate("step_cosine_with_offset", boundaries=[1, 2], values=[0.1, 0.2, 0.3]),
        "step_cosine_with_offset.values has 3 entries for 2 boundaries",
        "as many as there are boundaries",
    ),
    "no level": (rate("step_cosine_with_offset", boundaries=[], values=[]), "has 0 entries", "at least one"),
    "boundaries out of order": (
        rate("stepwise", boundaries=[2, 1], values=[0.1, 0.2, 0.3]),
        "stepwise.boundaries is [2, 1]",
        "greater than the one before",
    ),
    "a warm-up without a length": (
        {"warmup": {"type": "polynomial"}},
        "warmup.polynomial.warmup_steps is not set",
        "set trainer.optimizer_config.warmup.type to null",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_is_refused_with_the_place_and_the_way_out(name: str) -> None:
    changes, place, way_out = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        build_optimizer(OptimizationConfig(WHOLE | changes), n_steps=None)
    message = " ".join(str(caught.value).split())
    assert message.startswith(AT)
    assert place in message
    assert way_out in message
    assert len(caught.value.problems) == 1


def test_periods_that_shrink_have_to_last_for_the_whole_run() -> None:
    shrinking = rate("cosine_restarts", initial_learning_rate=0.1, first_decay_steps=100, t_mul=0.5)
    config = OptimizationConfig(WHOLE | shrinking)
    assert optimization_problems(config, n_steps=199) == []
    (problem,) = optimization_problems(config, n_steps=200)
    assert problem.message.endswith(
        "cosine_restarts.t_mul is 0.5, so that the periods become shorter and end before step 200, but the run has 200 "
        "steps."
    )
    assert problem.advice == "Take 1 or more, or set first_decay_steps to 101 or more."
    config.learning_rate.cosine_restarts.offset = 1
    assert optimization_problems(config, n_steps=200) == []


def test_everything_that_is_wrong_is_told_at_once() -> None:
    config = OptimizationConfig(
        {"learning_rate": {"type": "polynomial"}, "warmup": {"type": "linear"}, "ema": {"clipvalue": 1.0}}
    )
    assert [problem.path.removeprefix(AT) for problem in optimization_problems(config, n_steps=0)] == [
        "optimizer.type",
        "ema.clipvalue",
        "learning_rate.polynomial.initial_learning_rate",
        "learning_rate.polynomial.decay_steps",
        "warmup.linear.warmup_steps",
    ]


def test_configs_are_checked_without_jax() -> None:
    program = (
        "import sys; from trellis.optimizers import OptimizationConfig, optimization_problems; "
        "assert optimization_problems(OptimizationConfig(), n_steps=0); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
