"""How long a run is, where its config leaves that to its data."""

from collections.abc import Mapping

from trellis.config import DEFAULT, Origin, merge, origin_of, raise_if_any, setting_at
from trellis.data import CountedStream
from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig
from trellis.tasks import Task
from trellis.trainer import build_task_inputs, check_shapes

_INTERVALS = ("steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval")
_WARMUP_SHARE = 0.1
_MOST_REPORTS = 20
_TENTH = "a tenth of "


def derive_lengths(params: ExperimentConfig, *, task: Task, trains: bool = True) -> ExperimentConfig:
    """Returns the config with the lengths that it leaves open, each with what it was derived from as its origin.

    | left open | becomes |
    |---|---|
    | `train_steps: 0`, with `train_epochs` | so many epochs, of whole batches |
    | with it, an interval that nobody has set | half an epoch, or a twentieth of the run if that is longer |
    | the length of a warm-up | a tenth of the run |

    A decay whose length is null takes the whole run anyway.

    Args:
        task: Builds the training data, which is counted.
        trains: Whether lengths matter at all: an evaluation needs no training data.
    """
    leaves_steps = not params.trainer.train_steps and params.trainer.train_epochs > 0
    warmup = params.trainer.optimizer_config.warmup
    leaves_warmup = warmup.type is not None and warmup.get().warmup_steps is None
    if not leaves_steps and not leaves_warmup:
        return params
    derived = params.replace()
    if leaves_steps:
        _derive_steps(derived, task, trains=trains)
    if leaves_warmup:
        n_steps = derived.trainer.train_steps
        values = {"warmup_steps": int(_WARMUP_SHARE * n_steps)}
        _merge(derived, f"trainer.optimizer_config.warmup.{warmup.type}", values, Origin(f"{_TENTH}{n_steps} steps"))
    derived.lock()
    return derived


def is_derived(origin: Origin) -> bool:
    """Whether a value is one that `derive_lengths` has found."""
    return str(origin).startswith(_TENTH)


def _derive_steps(params: ExperimentConfig, task: Task, *, trains: bool) -> None:
    trainer = params.trainer
    if not trains:
        _merge(params, "trainer", {"train_steps": 1}, Origin("nothing is trained"))
        return
    check_shapes(task)
    stream = build_task_inputs(task, params=params.task.train_data, runtime=params.runtime)
    if not isinstance(stream, CountedStream):
        raise ArgumentError(
            f"trainer.train_steps is 0, and cannot be derived from trainer.train_epochs={trainer.train_epochs:g}: "
            f"the training data, a {type(stream).__name__}, does not know its number of examples. "
            f"Give the steps, as in: --params_override=trainer.train_steps=1000"
        )
    batch_size = params.task.train_data.global_batch_size
    n_per_epoch = max(1, stream.n_examples // batch_size)
    n_steps = max(1, int(n_per_epoch * trainer.train_epochs))
    # With little data, half an epoch is too short for a report of its own.
    interval = max(1, n_per_epoch // 2, n_steps // _MOST_REPORTS)
    values = {"train_steps": n_steps}
    values |= dict.fromkeys((name for name in _INTERVALS if origin_of(trainer, name) == DEFAULT), interval)
    epochs = f"{trainer.train_epochs:g} epochs of {stream.n_examples} examples, {batch_size} a batch"
    _merge(params, "trainer", values, Origin(epochs))


def _merge(params: ExperimentConfig, path: str, values: Mapping[str, int], origin: Origin) -> None:
    raise_if_any(merge(params, setting_at(path, values, origin)))
