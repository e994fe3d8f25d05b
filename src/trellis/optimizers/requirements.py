"""What an optimization config must say before it can be built; this needs no JAX."""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise

from trellis.config import Config, Problem, origin_of
from trellis.optimizers.configs import (
    CosineRestartsLrConfig,
    EMAConfig,
    GradientClipConfig,
    OptimizationConfig,
    StepCosineLrConfig,
    StepwiseLrConfig,
)

WHOLE_RUN = {"polynomial": "decay_steps", "cosine": "decay_steps", "power_linear": "total_decay_steps"}
"""By schedule, the field whose null stands for the length of the run."""

PLACE = "trainer.optimizer_config"
"""Where an experiment has its optimization config."""
_MAY_BE_NULL = {"staircase"}
_CLIPPING = tuple(field.name for field in fields(GradientClipConfig))
_ABOVE_0 = math.nextafter(0, 1)
_BELOW_1 = math.nextafter(1, 0)
_LIMIT = "It is a limit, and null is for no limit."
_KEPT = "It is the share that is kept: from 0 to below 1."
_RATES = ("learning_rate", "initial_learning_rate", "end_learning_rate", "pre_offset_learning_rate")
_LARGEST = sys.float_info.max
_AT_LEAST_ONE = "A decay takes at least one step."
_UPHILL = "It is a number from 0 on: a negative one would go uphill."
_RANGES: dict[str, dict[str, tuple[float, float, str]]] = {
    "optimizer": {
        **dict.fromkeys(_CLIPPING, (0, math.inf, _LIMIT)),
        "gradient_clip_norm": (0, math.inf, "It is a limit, and 0 is for no limit."),
        **dict.fromkeys(("beta_1", "beta_2", "rho"), (0, _BELOW_1, _KEPT)),
        "step_offset": (-math.inf, 0, "Leave it at 0: the first step is 0 after a warm start too."),
    },
    "groups": {
        "learning_rate_factor": (0, sys.float_info.max, "It is a factor from 0 on; to train nothing is: frozen."),
        "layer_decay": (_ABOVE_0, 1, "It is a factor above 0, and at most 1."),
        "weight_decay": (0, sys.float_info.max, "It is a number from 0 on."),
    },
    "ema": {"average_decay": (0, 1, "It is a share: from 0 to 1.")},
    "learning_rate": {
        **dict.fromkeys(_RATES, (0, _LARGEST, _UPHILL)),
        **dict.fromkeys(("decay_steps", "first_decay_steps", "total_decay_steps"), (1, math.inf, _AT_LEAST_ONE)),
        **dict.fromkeys(("decay_rate", "t_mul"), (_ABOVE_0, _LARGEST, "It is a factor above 0.")),
        **dict.fromkeys(("alpha", "m_mul"), (0, _LARGEST, _UPHILL)),
        "power": (-_LARGEST, _LARGEST, "It is a finite number."),
    },
    "learning_rate.cosine_restarts": {"alpha": (0, 1, "It is a share: from 0 to 1.")},
    "learning_rate.polynomial": {
        "power": (0, _LARGEST, "A negative one would divide by zero at the end of the decay.")
    },
    "warmup": {
        "warmup_learning_rate": (0, _LARGEST, _UPHILL),
        "warmup_steps": (0, math.inf, "It is a number of steps."),
        "power": (0, _LARGEST, "It is a number from 0 on: with a negative one the first rate would be the highest."),
    },
}
"""By part of the config, or by choice in it, and field: the least value, the greatest, and what to say of others."""


def optimization_problems(config: OptimizationConfig, *, n_steps: int | None) -> list[Problem]:
    """Returns all that is in the way of building the optimizer and its schedule.

    Args:
        n_steps: The length of the run, which takes the place of a decay's length that is null.
    """
    return [*_optimizer_problems(config), *schedule_problems(config, n_steps=n_steps)]


def schedule_problems(config: OptimizationConfig, *, n_steps: int | None) -> list[Problem]:
    """Returns all that is in the way of building the schedule."""
    return [*_rate_problems(config, n_steps), *_warmup_problems(config)]


def _problem(config: OptimizationConfig, field: str, message: str, advice: str) -> Problem:
    return Problem(f"{PLACE}.{field} {message}", origin_of(config, field), f"{PLACE}.{field}", advice)


def _no_type(config: OptimizationConfig, field: str, example: str) -> Problem:
    names = [item.name for item in fields(vars(config)[field]) if item.name not in {"type", "slide"}]
    advice = f"Choose one of {', '.join(names)}, as in: --params_override={PLACE}.{field}.type={example}"
    return _problem(config, f"{field}.type", "is not set.", advice)


def _optimizer_problems(config: OptimizationConfig) -> Iterator[Problem]:
    name = config.optimizer.type
    if name is None:
        yield _no_type(config, "optimizer", "adamw")
    elif name == "slide":
        advice = "lamb is the nearest that was: it has most fields."
        yield _problem(config, "optimizer.type", "is slide, which was never published.", advice)
    else:
        rule = config.optimizer.get()
        field = f"optimizer.{name}"
        yield from _range_problems(config, field, rule)
        if isinstance(rule, GradientClipConfig) and rule.clipnorm and rule.global_clipnorm:
            message = f"is {rule.clipnorm} while {PLACE}.{field}.global_clipnorm is {rule.global_clipnorm}."
            advice = "Set one of them to null: a gradient is clipped by one norm."
            yield _problem(config, f"{field}.clipnorm", message, advice)
        yield from _pattern_problems(config, field, rule)
    yield from _part_problems(config)
    if config.ema is not None:
        yield from _average_problems(config, config.ema)


def _range_problems(config: OptimizationConfig, field: str, part: Config) -> Iterator[Problem]:
    ranges = _RANGES[re.split(r"[.\[]", field)[0]] | _RANGES.get(field, {})
    for name, (least, greatest, advice) in ranges.items():
        value = vars(part).get(name)
        # A number that is traced has no value yet; it was checked when it was chosen.
        if isinstance(value, int | float) and not least <= value <= greatest:
            yield _problem(config, f"{field}.{name}", f"is {value}.", advice)


def _pattern_problems(config: OptimizationConfig, field: str, rule: Config) -> Iterator[Problem]:
    for name, patterns in vars(rule).items():
        if not name.startswith(("include_in", "exclude_from")):
            continue
        for pattern in patterns or ():
            try:
                re.compile(pattern)
            except re.error as error:
                message = f"has {pattern!r}, which is not a regular expression: {error}."
                advice = "Put a backslash before a character that is meant itself."
                yield _problem(config, f"{field}.{name}", message, advice)


def _part_problems(config: OptimizationConfig) -> Iterator[Problem]:
    if any(not pattern.strip("/") for pattern in config.frozen):
        yield _problem(config, "frozen", f"is {config.frozen}.", "Each is a path, such as encoder/embeddings.")
    names = [group.title for group in config.groups]
    for number, group in enumerate(config.groups):
        field = f"groups[{number}]"
        if not group.parameters or any(not pattern.strip("/") for pattern in group.parameters):
            advice = "Say of what: one path or more, such as encoder/embeddings."
            yield _problem(config, f"{field}.parameters", f"is {group.parameters}.", advice)
        elif names.index(group.title) != number:
            yield _problem(config, f"{field}.name", f"is {group.title}, as that of another.", "Give each its own name.")
        yield from _range_problems(config, field, group)
        rule = None if config.optimizer.type is None else config.optimizer.get()
        if group.weight_decay is not None and rule is not None and weight_decay_field(rule) is None:
            message = f"is {group.weight_decay}, but {config.optimizer.type} has no weight decay."
            yield _problem(config, f"{field}.weight_decay", message, "Take adamw, or leave it out.")


def weight_decay_field(rule: Config) -> str | None:
    """Returns the name that an optimizer's config has for its weight decay; None if it has none."""
    return next((name for name in ("weight_decay_rate", "weight_decay") if name in vars(rule)), None)


def _average_problems(config: OptimizationConfig, ema: EMAConfig) -> Iterator[Problem]:
    if not ema.trainable_weights_only:
        message = "is false, but only parameters are averaged."
        advice = "Leave it at true: batch statistics are averages already."
        yield _problem(config, "ema.trainable_weights_only", message, advice)
    for name in _CLIPPING:
        if vars(ema)[name] is not None:
            advice = f"Set {PLACE}.optimizer.{config.optimizer.type}.{name} instead."
            yield _problem(config, f"ema.{name}", "is set, but an average has no gradients.", advice)
    yield from _range_problems(config, "ema", ema)


def _rate_problems(config: OptimizationConfig, n_steps: int | None) -> Iterator[Problem]:
    name = config.learning_rate.type
    if name is None:
        yield _no_type(config, "learning_rate", "constant")
        return
    rate = config.learning_rate.get()
    field = f"learning_rate.{name}"
    for key in [item.name for item in fields(rate) if vars(rate)[item.name] is None and item.name not in _MAY_BE_NULL]:
        is_whole_run = WHOLE_RUN.get(name) == key
        if not (is_whole_run and n_steps):
            also = " Or give the run a length: a decay takes the whole run by default." if is_whole_run else ""
            advice = f"Give it a value, as in: --params_override={PLACE}.{field}.{key}=….{also}"
            yield _problem(config, f"{field}.{key}", "is not set.", advice)
    yield from _range_problems(config, field, rate)
    if isinstance(rate, StepwiseLrConfig | StepCosineLrConfig):
        yield from _level_problems(config, field, rate)
    if isinstance(rate, CosineRestartsLrConfig) and n_steps:
        yield from _shrinking_problems(config, field, rate, n_steps)


def _shrinking_problems(
    config: OptimizationConfig, field: str, rate: CosineRestartsLrConfig, n_steps: int
) -> Iterator[Problem]:
    if not 0 < rate.t_mul < 1 or not rate.first_decay_steps:
        return
    # The sum of all periods, where the published formula takes the logarithm of zero.
    end = rate.offset + rate.first_decay_steps / (1 - rate.t_mul)
    if n_steps < end:
        return
    message = (
        f"is {rate.t_mul}, so that the periods become shorter and end before step {math.ceil(end)}, but the run has "
        f"{n_steps} steps."
    )
    enough = math.floor((n_steps - rate.offset) * (1 - rate.t_mul)) + 1
    advice = f"Take 1 or more, or set first_decay_steps to {enough} or more."
    yield _problem(config, f"{field}.t_mul", message, advice)


def _level_problems(
    config: OptimizationConfig, field: str, rate: StepwiseLrConfig | StepCosineLrConfig
) -> Iterator[Problem]:
    if any(not 0 <= value < math.inf for value in rate.values or ()):
        yield _problem(config, f"{field}.values", f"is {rate.values}.", _UPHILL)
    if rate.boundaries is None or rate.values is None:
        return
    n_boundaries = len(rate.boundaries)
    n_values = len(rate.values)
    n_more = 1 if isinstance(rate, StepwiseLrConfig) else 0
    if n_values != n_boundaries + n_more or not n_values:
        rule = "one more than there are boundaries" if n_more else "as many as there are boundaries, and at least one"
        message = f"has {n_values} entries for {n_boundaries} boundaries."
        yield _problem(config, f"{field}.values", message, f"It takes {rule}.")
    if any(first >= second for first, second in pairwise(rate.boundaries)):
        yield _problem(config, f"{field}.boundaries", f"is {rate.boundaries}.", "Each is greater than the one before.")


def _warmup_problems(config: OptimizationConfig) -> Iterator[Problem]:
    name = config.warmup.type
    if name is None:
        return
    yield from _range_problems(config, f"warmup.{name}", config.warmup.get())
    if config.warmup.get().warmup_steps is None:
        advice = f"Give it a value, or set {PLACE}.warmup.type to null for no warm-up."
        yield _problem(config, f"warmup.{name}.warmup_steps", "is not set.", advice)
