"""One step of a run, run again from the checkpoint file before it and looked into; nothing is written."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import PyTree
from trellis.errors import ArgumentError
from trellis.experiments.comparison import RunRecord
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.lengths import derive_lengths
from trellis.experiments.mode import get_mode
from trellis.experiments.run import build_task, build_trainer
from trellis.extensions import best_files, fingerprint, newest_whole_file, restore_file, resumable_files
from trellis.loops import Checkpoint
from trellis.runtime import fetch
from trellis.trainer import ReplayStart, Stage


@dataclass(frozen=True)
class TensorReport:
    """What there is to say of an array."""

    name: str
    kind: str
    """Its dtype and shape, such as `float32[64,10]`."""
    norm: float
    least: float
    greatest: float
    n_not_finite: int


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that was run again."""

    step: int
    started_from: str
    """The checkpoint file, or `step 0`."""
    n_steps: int
    """How many steps were run."""
    loss: float
    metrics: Mapping[str, float]
    batch: tuple[TensorReport, ...]
    batch_digits: str
    """Its fingerprint."""
    is_batch_of_run: bool | None
    """Whether the run has told the same fingerprint for this step; None if it has told none."""
    gradients: tuple[TensorReport, ...]
    """Empty if the task's step does not tell them."""
    first_not_finite: str
    """The first array in the order of computing that holds something that is not finite; empty if none does."""

    @property
    def gradient_norms(self) -> dict[str, float]:
        """The norms of the gradients of each layer at the top, and of all of them under an empty name."""
        squares: dict[str, float] = {"": 0.0}
        for gradient in self.gradients:
            layer = gradient.name.split("/")[0]
            for name in ("", layer):
                squares[name] = squares.get(name, 0.0) + gradient.norm**2
        return {name: float(np.sqrt(square)) for name, square in squares.items()}


def replay_step(params: ExperimentConfig, *, model_dir: Path, step: int, starts_anew: bool = False) -> StepReport:
    """Runs a step again, from the checkpoint file before it; the run is left as it is.

    Steps up to the one before it run as in a training, to the bit if calls are cut where they were; the last one runs
    by itself, which rounds otherwise than in a call with others.

    Args:
        params: The config that the run was trained with.
        starts_anew: Whether to begin at step 0 where no checkpoint file is left.
    """
    if step < 1:
        raise ArgumentError(f"step is {step}, but the first step is 1.")
    task, params = build_task(params, model_dir=None)
    params = derive_lengths(params, task=task, trains=True)
    last = params.trainer.train_steps
    if last and step > last:
        raise ArgumentError(f"step is {step}, but the run ends with step {last}. Give one up to that.")
    trainer = build_trainer(params, mode=get_mode("train"), model_dir=model_dir, task=task, save_summary=False)
    stage = trainer.stage_of(step)
    path = _find_file(params, model_dir, stage=stage, step=step, starts_anew=starts_anew)
    start = int(path.name.removesuffix(".replaced").rpartition("_")[2]) if path is not None else 0

    def read(initializer: Checkpoint) -> Checkpoint:
        return initializer if path is None else restore_file(path, template=initializer)

    before = _run_up_to(stage, read, step=step - 1) if start < step - 1 else None
    alone = dataclasses.replace(stage, config=stage.config.replace(n_fused_steps=1, keep_gradients=True))
    report = _look_into(alone, read if before is None else lambda _: before, record=_record(model_dir))
    started_from = "step 0" if path is None else str(path)
    return dataclasses.replace(report, started_from=started_from, n_steps=step - start)


def _run_up_to(stage: Stage, read: Callable[[Checkpoint], Checkpoint], *, step: int) -> Checkpoint:
    """The checkpoint of a step, in memory of its own."""
    last = None
    for checkpoint in stage.build_replay_loop(ReplayStart(stage.learner, read)).run(step):
        last = checkpoint.copy() if checkpoint.step == step else None
    if last is None:
        raise ArgumentError(f"The data of the run ends before step {step}. Give the data that it was started with.")
    return last


def _look_into(stage: Stage, read: Callable[[Checkpoint], Checkpoint], *, record: RunRecord | None) -> StepReport:
    """Runs the step that comes after a checkpoint."""
    with _watching_modules() as outputs:
        loop = stage.build_replay_loop(ReplayStart(stage.learner, read))
        started = loop.start()
        state_before = _not_finite({"params": started.model_params, "model_state": started.model_state}, "before it")
        checkpoint = loop.next_step()
        jax.effects_barrier()
    assert checkpoint.last_batch is not None
    batch = checkpoint.last_batch()
    digits = fingerprint(batch).digits
    known = None if record is None else record.batch_digits.get(checkpoint.step)
    candidates = [
        *_not_finite({"batch": batch}, ""),
        *state_before,
        *(f"the output of {name}" for name in outputs),
        *([] if np.isfinite(checkpoint.loss) else ["the loss"]),
        *_not_finite({"gradients": checkpoint.grads}, ""),
        *_not_finite({"params": checkpoint.model_params, "model_state": checkpoint.model_state}, "after it"),
    ]
    return StepReport(
        step=checkpoint.step,
        started_from="",
        n_steps=1,
        loss=checkpoint.loss,
        metrics={name: float(value) for name, value in checkpoint.train_metrics.items()},
        batch=tuple(_reports(batch)),
        batch_digits=digits,
        is_batch_of_run=None if known is None else known == digits,
        gradients=tuple(_reports(checkpoint.grads)),
        first_not_finite=next(iter(candidates), ""),
    )


def _find_file(params: ExperimentConfig, model_dir: Path, *, stage: Stage, step: int, starts_anew: bool) -> Path | None:
    """The newest whole checkpoint file before a step, of the stage that ran it; None to begin at step 0."""
    subdir = params.trainer.best_checkpoint_export_subdir
    best = [(int(path.name.rpartition("_")[2]), path) for path in (best_files(model_dir / subdir) if subdir else ())]
    # Of one step a regular file comes last, and so is tried first.
    files = sorted([*best, *resumable_files(model_dir)], key=lambda file: file[0])
    # At a border of two stages a file holds the model of the one that ends there.
    least = stage.start_step + 1 if stage.start_step else 0
    found = newest_whole_file([file for file in files if least <= file[0] < step])
    if found is not None:
        return found[0]
    if starts_anew and not stage.start_step:
        return None
    names = ", ".join(path.name for _, path in files) or "none"
    stage_hint = f" of its stage, which begins after step {stage.start_step}," if stage.start_step else ""
    way_out = "" if stage.start_step else ", or begin at step 0 with --from_start"
    raise ArgumentError(
        f"There is no checkpoint file{stage_hint} before step {step} in `{model_dir}`. There are: {names}. Give a step "
        f"after one of these{way_out}."
    )


def _record(model_dir: Path) -> RunRecord | None:
    try:
        return RunRecord(model_dir)
    except ArgumentError:
        return None  # what the run has told is of use, and not needed


@contextmanager
def _watching_modules() -> Iterator[list[str]]:
    """Gives the names of modules of Flax linen whose output was not finite, in the order in which they were run."""
    numbers: dict[str, int] = {}
    found: set[str] = set()
    names: list[str] = []

    def note(number: int, is_finite: Any) -> None:
        if not is_finite:
            found.add([*numbers][number])
            names[:] = [name for name in numbers if name in found]

    def watch(call: Callable[..., Any], arguments: Any, options: Any, context: Any) -> Any:
        output = call(*arguments, **options)
        leaves = [leaf for leaf in jax.tree.leaves(output) if _is_float(leaf)]
        if context.method_name == "__call__" and leaves:
            name = "/".join(context.module.path) or type(context.module).__name__
            number = numbers.setdefault(name, len(numbers))
            is_finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]).all()
            jax.debug.callback(lambda flag, number=number: note(number, np.all(flag)), is_finite)
        return output

    with nn.intercept_methods(watch):
        yield names


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _not_finite(tree: PyTree, when: str) -> list[str]:
    """The names of arrays that hold something that is not finite."""
    named = {name: leaf for name, leaf in _leaves(tree) if _is_float(leaf)}
    flags = jax.device_get({name: _has_only_finite(leaf) for name, leaf in named.items()})
    return [f"{name} {when}".strip() for name in named if not flags[name]]


@jax.jit
def _has_only_finite(leaf: Any) -> Any:
    return jnp.all(jnp.isfinite(leaf))


def _reports(tree: PyTree) -> Iterator[TensorReport]:
    for name, leaf in _leaves(tree):
        array = np.asarray(fetch(leaf))
        kind = f"{array.dtype}[{','.join(map(str, array.shape))}]"
        values = array.astype(np.float64)
        finite = values[np.isfinite(values)]
        yield TensorReport(
            name,
            kind,
            norm=float(np.linalg.norm(values)),
            least=float(finite.min(initial=np.inf)) if finite.size else float("nan"),
            greatest=float(finite.max(initial=-np.inf)) if finite.size else float("nan"),
            n_not_finite=int(values.size - finite.size),
        )


def _leaves(tree: PyTree) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
