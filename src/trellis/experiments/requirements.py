"""What a run can do, and what each mode needs of a config; known without JAX."""

from collections.abc import Iterator

from trellis.config import Problem
from trellis.errors import ArgumentError
from trellis.experiments.corrections import problem_at
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.input_files import data_file_problems, warm_start_problems
from trellis.optimizers import optimization_problems
from trellis.runtime import runtime_problems
from trellis.spelling import nearest

MODES = ("train", "eval", "train_and_eval", "continuous_eval", "continuous_train_and_eval", "train_and_post_eval")
"""What a run can do."""


def check_mode(mode: str) -> None:
    """Raises an error that names the nearest mode, if there is none of this name."""
    if mode not in MODES:
        close = nearest(mode, MODES)
        meant = f" Did you mean {close}?" if close else ""
        raise ArgumentError(f"There is no mode {mode!r}.{meant} Modes are: {', '.join(MODES)}.")


def trains(mode: str) -> bool:
    """Whether a run in this mode changes parameters."""
    return "train" in mode


def evaluates(mode: str) -> bool:
    """Whether a run in this mode measures them on the validation data."""
    return "eval" in mode


def mode_problems(params: ExperimentConfig, *, mode: str) -> Iterator[Problem]:
    """Yields what is wrong with a config, if it is to be run in a mode: its numbers, and the files that it names."""
    yield from _number_problems(params, mode)
    yield from _early_stopping_problems(params)
    yield from runtime_problems(params.runtime)
    if trains(mode):
        yield from _optimizer_problems(params)
        yield from _warmup_problems(params)
        yield from _microbatch_problems(params)
        yield from data_file_problems(params, side="train_data")
    if evaluates(mode):
        yield from data_file_problems(params, side="validation_data")
    if mode == "continuous_train_and_eval":
        yield from _pretraining_problems(params)
    elif trains(mode):
        yield from warm_start_problems(params)


def _number_problems(params: ExperimentConfig, mode: str) -> Iterator[Problem]:
    least = {"max_to_keep": 1, "n_microbatches": 1, "early_stopping_steps": 0, "validation_steps": -1}
    least |= dict.fromkeys(("steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"), 1)
    least |= {"train_steps": 1} if trains(mode) and params.trainer.train_epochs <= 0 else {}
    for name in ("export_checkpoint_interval", "export_max_to_keep"):
        least |= {name: 1} if getattr(params.trainer, name, None) is not None else {}
    for name, value in least.items():
        given = getattr(params.trainer, name)
        if given < value:
            advice = f"It has to be {value} or more."
            yield problem_at(f"trainer.{name}", config=params, said=f"is {given}.", advice=advice)
    if params.trainer.validation_steps == 0:
        advice = "Give the number of batches, or -1 for all of them."
        yield problem_at("trainer.validation_steps", config=params, said="is 0.", advice=advice)


def _early_stopping_problems(params: ExperimentConfig) -> Iterator[Problem]:
    config = params.trainer
    says_what_is_best = config.best_checkpoint_export_subdir and config.best_checkpoint_eval_metric
    if config.early_stopping_steps and not says_what_is_best:
        said = "is set, but nothing says what is best."
        advice = "Set best_checkpoint_export_subdir and best_checkpoint_eval_metric, which say what better means."
        yield problem_at("trainer.early_stopping_steps", config=params, said=said, advice=advice)


def _pretraining_problems(params: ExperimentConfig) -> Iterator[Problem]:
    # That there is nothing yet is no problem: the pretraining that is to be followed may not have begun.
    if not params.task.init_checkpoint:
        advice = "Give the model_dir of the pretraining, as in: --set=task.init_checkpoint=runs/pretraining"
        yield problem_at("task.init_checkpoint", config=params, said="is not set.", advice=advice)


def _optimizer_problems(params: ExperimentConfig) -> Iterator[Problem]:
    config = params.trainer.optimizer_config
    # A task may have an optimizer of its own, which needs no config; one without is fine until it is built.
    if config.optimizer.type is None:
        return
    # So is a warm-up whose length is left open, which then follows from that of the run.
    found = optimization_problems(config, n_steps=max(1, params.trainer.train_steps))
    yield from (problem for problem in found if not problem.message.endswith(".warmup_steps is not set."))


def _warmup_problems(params: ExperimentConfig) -> Iterator[Problem]:
    warmup, n_steps = params.trainer.optimizer_config.warmup, params.trainer.train_steps
    n_warmup_steps = 0 if warmup.type is None else warmup.get().warmup_steps or 0
    if 0 < n_steps <= n_warmup_steps:
        path = f"trainer.optimizer_config.warmup.{warmup.type}.warmup_steps"
        said = f"is {n_warmup_steps}, but the run ends at step {n_steps}: it would end while it warms up."
        advice = "Train for longer, or warm up for less, as here for a tenth of the run. Write:"
        yield problem_at(path, config=params, said=said, advice=advice, value=n_steps // 10)


def _microbatch_problems(params: ExperimentConfig) -> Iterator[Problem]:
    n_parts, size = params.trainer.n_microbatches, params.task.train_data.global_batch_size
    if n_parts > 1 and size % n_parts:
        lower = size - size % n_parts
        said = f"is {size}, which cannot be cut into trainer.n_microbatches={n_parts} equal parts."
        path = "task.train_data.global_batch_size"
        yield problem_at(path, config=params, said=said, advice="Write:", value=lower or n_parts)
