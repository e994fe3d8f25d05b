"""What a run takes up: memory on each device, and room on the disk."""

import math
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import jax

from trellis.aliases import PyTree
from trellis.optimizers import AverageState
from trellis.runtime import describe_size
from trellis.trainer import StageOutline, TrainerConfig


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on each device, without what the model's layers keep for their gradients."""

    parameters: int
    gradients: int
    optimizer_state: int
    averages: int
    model_state: int
    batch: int

    @classmethod
    def of(cls, outline: StageOutline) -> "Memory":
        """What the arrays of a run take up; a run that only evaluates has no gradients and no optimizer."""
        checkpoint = outline.checkpoint
        nodes = jax.tree.leaves(checkpoint.optimizer_state, is_leaf=lambda node: isinstance(node, AverageState))
        averages = _on_each([node.average for node in nodes if isinstance(node, AverageState)])
        trains = outline.train is not None
        side = outline.train or outline.validation
        return cls(
            parameters=_on_each(checkpoint.model_params),
            gradients=_on_each(checkpoint.model_params) if trains else 0,
            optimizer_state=_on_each(checkpoint.optimizer_state) - averages if trains else 0,
            averages=averages,
            model_state=_on_each(checkpoint.model_state),
            batch=0 if side is None else -(-n_bytes(side.batch) // outline.placement.n_parts),
        )

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Bytes on the file system that a run writes to."""

    file: int
    """What a checkpoint file takes up."""
    n_files: int
    """The most that there will be at once, one that is being written included."""
    free: int

    @classmethod
    def of(cls, outline: StageOutline, *, config: TrainerConfig, model_dir: Path, n_existing: int) -> "Disk":
        """What a training will take up.

        Args:
            n_existing: How many checkpoint files are there already.
        """
        checkpoint = outline.checkpoint
        n_due = -(-config.train_steps // config.checkpoint_interval)
        keeps_best = bool(config.best_checkpoint_export_subdir and config.best_checkpoint_eval_metric)
        n_files = min(config.max_to_keep, n_due) + 1 + 2 * keeps_best
        existing = next(path for path in (model_dir.absolute(), *model_dir.absolute().parents) if path.exists())
        return cls(
            file=n_bytes([checkpoint.model_params, checkpoint.model_state, checkpoint.optimizer_state]),
            n_files=max(1, n_files - n_existing),
            free=shutil.disk_usage(existing).free,
        )

    @property
    def total(self) -> int:
        """What the files take up at most."""
        return self.file * self.n_files


def size_text(n_bytes: int) -> str:
    """A size for people, such as `1.2 MB`."""
    return describe_size(n_bytes).lstrip("=~ ")


def n_bytes(tree: PyTree) -> int:
    """What the arrays of a tree take up."""
    return sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _on_each(shapes: PyTree) -> int:
    """What the arrays take up on each of the devices that they are shared out over."""
    shared = (
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)
    )
    return sum(shared)


def device_memory() -> int | None:
    """The bytes of a device's memory, where its platform tells them."""
    statistics: dict[str, int] = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit")
