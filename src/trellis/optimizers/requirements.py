"""What an optimization config must say before it can be built; this needs no JAX."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

from trellis.config import Config, Problem, origin_of
from trellis.optimizers.configs import EMAConfig, GradientClipConfig, OptimizationConfig

OPTIMIZER_CONFIG = "trainer.optimizer_config"
"""Where an experiment has its optimization config."""

WHOLE_RUN = {"polynomial": "decay_steps", "cosine": "decay_steps", "power_linear": "total_decay_steps"}
"""By schedule, the field whose null stands for the length of the run."""

_MAY_BE_NULL = {"staircase"}
_COUNTS = ("decay_steps", "first_decay_steps")
_CLIPPING = tuple(field.name for field in fields(GradientClipConfig))
_SHARES = ("beta_1", "beta_2", "rho")


def optimization_problems(
    config: OptimizationConfig, *, n_steps: int | None, path: str = OPTIMIZER_CONFIG
) -> list[Problem]:
    """Returns all that is in the way of building the optimizer and its schedule.

    Args:
        n_steps: The length of the run, which takes the place of a decay's length that is null.
        path: Where the config is, to be named in errors.
    """
    return [*_optimizer_problems(_Checked(config, path)), *schedule_problems(config, n_steps=n_steps, path=path)]


def schedule_problems(
    config: OptimizationConfig, *, n_steps: int | None, path: str = OPTIMIZER_CONFIG
) -> list[Problem]:
    """Returns all that is in the way of building the schedule."""
    checked = _Checked(config, path)
    return [*_rate_problems(checked, n_steps), *_warmup_problems(checked)]


@dataclass(frozen=True)
class _Checked:
    """A config that is being checked, and its place, which problems name."""

    config: OptimizationConfig
    path: str

    def full(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def problem(self, field: str, message: str, advice: str) -> Problem:
        return Problem(f"{self.full(field)} {message}", origin_of(self.config, field), self.full(field), advice)

    def no_type(self, field: str, example: str) -> Problem:
        names = [item.name for item in fields(vars(self.config)[field]) if item.name not in {"type", "slide"}]
        advice = f"Choose one of {', '.join(names)}, as in: --params_override={self.full(field)}.type={example}"
        return self.problem(f"{field}.type", "is not set.", advice)


def _optimizer_problems(checked: _Checked) -> Iterator[Problem]:
    name = checked.config.optimizer.type
    if name is None:
        yield checked.no_type("optimizer", "adamw")
    elif name == "slide":
        yield checked.problem(
            "optimizer.type",
            "is slide, which was never published.",
            "lamb is the nearest that was: it has most fields.",
        )
    else:
        rule = checked.config.optimizer.get()
        if isinstance(rule, GradientClipConfig):
            yield from _clipping_problems(checked, f"optimizer.{name}", rule)
        yield from _pattern_problems(checked, f"optimizer.{name}", rule)
        yield from _range_problems(checked, f"optimizer.{name}", rule)
    if checked.config.ema is not None:
        yield from _average_problems(checked, checked.config.ema)


def _clipping_problems(checked: _Checked, field: str, rule: GradientClipConfig) -> Iterator[Problem]:
    for name in (*_CLIPPING, "gradient_clip_norm"):
        value = vars(rule).get(name)
        if value is not None and value < 0:
            off = "0" if name == "gradient_clip_norm" else "null"
            yield checked.problem(f"{field}.{name}", f"is {value}, but it is a limit.", f"{off} is for no limit.")
    if rule.clipnorm and rule.global_clipnorm:
        both = f"is {rule.clipnorm} while {checked.full(field)}.global_clipnorm is {rule.global_clipnorm}."
        yield checked.problem(f"{field}.clipnorm", both, "Set one of them to null: a gradient is clipped by one norm.")


def _pattern_problems(checked: _Checked, field: str, rule: Config) -> Iterator[Problem]:
    for name, patterns in vars(rule).items():
        if not name.startswith(("include_in", "exclude_from")):
            continue
        for pattern in patterns or ():
            try:
                re.compile(pattern)
            except re.error as error:
                message = f"has {pattern!r}, which is not a regular expression: {error}."
                advice = "Put a backslash before a character that is meant itself."
                yield checked.problem(f"{field}.{name}", message, advice)


def _range_problems(checked: _Checked, field: str, rule: Config) -> Iterator[Problem]:
    for name in _SHARES:
        value = vars(rule).get(name)
        if value is not None and not 0 <= value < 1:
            yield checked.problem(f"{field}.{name}", f"is {value}.", "It is the share that is kept: from 0 to below 1.")
    if vars(rule).get("step_offset", 0) > 0:
        yield checked.problem(
            f"{field}.step_offset",
            f"is {vars(rule)['step_offset']}, but the first step is 0 after a warm start too.",
            "Leave it at 0.",
        )


def _average_problems(checked: _Checked, ema: EMAConfig) -> Iterator[Problem]:
    if not ema.trainable_weights_only:
        yield checked.problem(
            "ema.trainable_weights_only",
            "is false, but only parameters are averaged.",
            "Leave it at true: batch statistics are averages already.",
        )
    for name in _CLIPPING:
        if vars(ema)[name] is not None:
            way_out = f"Set {checked.full('optimizer')}.{checked.config.optimizer.type}.{name} instead."
            yield checked.problem(f"ema.{name}", "is set, but an average has no gradients.", way_out)
    if not 0 <= ema.average_decay <= 1:
        yield checked.problem("ema.average_decay", f"is {ema.average_decay}.", "It is a share: from 0 to 1.")


def _rate_problems(checked: _Checked, n_steps: int | None) -> Iterator[Problem]:
    name = checked.config.learning_rate.type
    if name is None:
        yield checked.no_type("learning_rate", "constant")
        return
    field, rate = f"learning_rate.{name}", checked.config.learning_rate.get()
    values = {item.name: vars(rate)[item.name] for item in fields(rate)}
    for key in [key for key, value in values.items() if value is None and key not in _MAY_BE_NULL]:
        whole_run = WHOLE_RUN.get(name) == key
        if not (whole_run and n_steps):
            also = " Or give the run a length: a decay takes the whole run by default." if whole_run else ""
            way_out = f"Give it a value, as in: --params_override={checked.full(field)}.{key}=….{also}"
            yield checked.problem(f"{field}.{key}", "is not set.", way_out)
    for key in _COUNTS:
        if values.get(key) is not None and values[key] <= 0:
            yield checked.problem(f"{field}.{key}", f"is {values[key]}.", "A decay takes at least one step.")
    if values.get("decay_rate") is not None and values["decay_rate"] <= 0:
        yield checked.problem(f"{field}.decay_rate", f"is {values['decay_rate']}.", "It is a factor above 0.")
    if values.get("t_mul", 1) < 1:
        yield checked.problem(f"{field}.t_mul", f"is {rate.t_mul}.", "Periods of finite sum would end: take 1 or more.")
    if values.get("boundaries") is not None and values.get("values") is not None:
        yield from _level_problems(checked, field, n_more=1 if name == "stepwise" else 0)


def _level_problems(checked: _Checked, field: str, *, n_more: int) -> Iterator[Problem]:
    rate = checked.config.learning_rate.get()
    n_boundaries, n_values = len(rate.boundaries), len(rate.values)
    if n_values != n_boundaries + n_more or not n_values:
        rule = "one more than there are boundaries" if n_more else "as many as there are boundaries, and at least one"
        message = f"has {n_values} entries for {n_boundaries} boundaries."
        yield checked.problem(f"{field}.values", message, f"It takes {rule}.")
    if any(first >= second for first, second in pairwise(rate.boundaries)):
        yield checked.problem(f"{field}.boundaries", f"is {rate.boundaries}.", "Each is greater than the one before.")


def _warmup_problems(checked: _Checked) -> Iterator[Problem]:
    name = checked.config.warmup.type
    if name is not None and checked.config.warmup.get().warmup_steps is None:
        way_out = f"Give it a value, or set {checked.full('warmup.type')} to null for no warm-up."
        yield checked.problem(f"warmup.{name}.warmup_steps", "is not set.", way_out)
