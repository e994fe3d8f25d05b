"""The checkpoint with the best value of a metric, on disk, and the end of a run that does not get better."""

import dataclasses
import math
import os
import re
import zlib
from pathlib import Path

from trellis.aliases import Init, Metrics
from trellis.errors import ArgumentError, CheckpointFileError
from trellis.extensions import checkpoint_storage as storage
from trellis.extensions.checkpoint_files import FileReader, FileWriter, find_files, newest_whole_file
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Session, Summary
from trellis.runtime import gathered, print_line
from trellis.spelling import did_you_mean

_LONGEST_NAME = 180
"""Bytes; a file system takes 255 with all that is put before and after it."""


class BestCheckpointFileWriter(FileWriter):
    """Writes a checkpoint if its metric is better than every one before; equal is not better, and NaN never is."""

    word: str
    """What the best value is."""
    sign: int
    """1 if less is better, -1 if more is."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        *,
        metric: str,
        group: str = "eval",
        keep: int = 1,
        overwrite: bool = True,
        stdout: bool = True,
    ) -> None:
        super().__init__(output_dir, prefix=best_prefix(self.word, group, metric), keep=keep, overwrite=overwrite)
        self._group = group
        self._metric = metric
        self.best_metric: float
        """The best value so far; infinitely bad if there is none."""
        self.best_step: int | None
        """The step of the best value so far; None if there is none."""
        self.best_metrics: Metrics = {}
        """All metrics of the checkpoint that the best file holds, of the group that decides."""
        self._read_best()
        if stdout:
            print_line(f"The {self.word} value for the metric {group}/{metric} is set to {self.best_metric:.8f}.")

    def join(self, session: Session) -> None:
        """Sets aside files that are damaged, which were skipped to find the best."""
        super().join(session)
        for step, path in find_files(self._dir, self.prefix):
            if self.best_step is None or step > self.best_step:
                self._set_aside(path, session)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Starts to write the checkpoint if it is the best."""
        is_best = self.is_better(checkpoint)
        if storage.spans(checkpoint):
            # All write or none: what the first one has read from its files counts.
            is_best = gathered(f"looking whether step {checkpoint.step} is the best", is_best)[0]
        if is_best:
            self.write(checkpoint)
            self.best_metric = self._value_in(checkpoint)
            self.best_step = checkpoint.step
        return checkpoint

    def is_better(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is better than every one before."""
        return self.sign * self._value_in(checkpoint) < self.sign * self.best_metric

    def _value_in(self, checkpoint: Checkpoint) -> float:
        name = f"{self._group}/{self._metric}"
        if not isinstance(checkpoint, Summary):
            raise ArgumentError(
                f"Cannot read the metric {name} from a checkpoint without metrics. Put an EvalLoop before the writer."
            )
        values = {
            f"{group}/{key}": value for group, named in checkpoint.metrics.items() for key, value in named.items()
        }
        if name not in values:
            raise ArgumentError(
                f"Cannot read the metric {name} from the summary of step {checkpoint.step}, which holds "
                f"{', '.join(values) or 'none'}.{did_you_mean(name, values, show=str)}"
            )
        return values[name]

    def _drop(self, hidden: Path, *, is_committer: bool) -> None:
        super()._drop(hidden, is_committer=is_committer)
        # What was the best before is so again.
        self._read_best()

    def _read_best(self) -> None:
        self.best_metric, self.best_step = self.sign * math.inf, None
        file = newest_whole_file(find_files(self._dir, self.prefix))
        if file is None:
            return
        path, manifest = file
        metrics = manifest["metrics"].get(self._group, {})
        if self._metric not in metrics:
            raise CheckpointFileError(f"`{path}` does not hold the metric {self._group}/{self._metric}.")
        self.best_metric = float(metrics[self._metric])
        self.best_step = manifest["step"]
        self.best_metrics = metrics


class LowestCheckpointFileWriter(BestCheckpointFileWriter):
    """Writes a checkpoint to `{output_dir}/lowest_{group}_{metric}_{step}` if the metric is the lowest so far.

    Example:
        serial(EvalLoop(task=task), LowestCheckpointFileWriter(output_dir="runs/digits", metric="loss"))
    """

    word = "lowest"
    sign = 1


class HighestCheckpointFileWriter(BestCheckpointFileWriter):
    """Writes a checkpoint to `{output_dir}/highest_{group}_{metric}_{step}` if the metric is the highest so far.

    Example:
        serial(EvalLoop(task=task), HighestCheckpointFileWriter(output_dir="runs/digits", metric="accuracy"))
    """

    word = "highest"
    sign = -1


class EarlyStopping(Extension):
    """Marks a checkpoint as the last one if the best was written `n_steps` steps ago or more.

    The extensions after this one then do what is due at the last step; whoever runs the loop leaves it when `is_last`
    is set. What the best is, a best writer knows: after a resume it reads that from its file.

    Example:
        best = HighestCheckpointFileWriter(output_dir="runs/digits", metric="accuracy")
        process = serial(EvalLoop(task=task), best, EarlyStopping(best, n_steps=1000))
        for checkpoint in loop:
            if process(checkpoint).is_last:
                break
    """

    def __init__(self, best: BestCheckpointFileWriter, *, n_steps: int) -> None:
        if n_steps < 1:
            raise ArgumentError(f"EarlyStopping has n_steps={n_steps}, but it waits for at least one step.")
        self._best = best
        self._n_steps = n_steps

    def is_over(self, step: int) -> bool:
        """Whether a run that was evaluated at this step ends here."""
        return self._best.best_step is not None and step - self._best.best_step >= self._n_steps

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Returns the checkpoint, marked if the run is over."""
        if checkpoint.is_last or not self.is_over(checkpoint.step):
            return checkpoint
        if checkpoint.session is not None:
            text = f"Step {checkpoint.step:6d}: nothing better since step {self._best.best_step}; the run ends here."
            checkpoint.session.emit("stopped_early", step=checkpoint.step, text=text, best_step=self._best.best_step)
        return dataclasses.replace(checkpoint, is_last=True)


class BestCheckpointFileReader(FileReader):
    """Finds the checkpoint with the best value of a metric."""

    word: str
    """What the best value is."""

    def __init__(self, dir: str | os.PathLike[str], *, target: Init, metric: str, group: str = "eval") -> None:
        super().__init__(dir, target=target)
        self.prefixes = (best_prefix(self.word, group, metric),)


class LowestCheckpointFileReader(BestCheckpointFileReader):
    """Starts a loop from the file of a `LowestCheckpointFileWriter`, if there is one."""

    word = "lowest"


class HighestCheckpointFileReader(BestCheckpointFileReader):
    """Starts a loop from the file of a `HighestCheckpointFileWriter`, if there is one."""

    word = "highest"


def best_files(directory: Path) -> list[Path]:
    """The files of best checkpoints that a directory holds, by whichever metric, oldest first."""
    files = [
        (int(match[1]), path)
        for path in directory.glob("*est_*")
        if (match := re.fullmatch(r"(?:low|high)est_.*_(\d+)", path.name)) and storage.is_checkpoint_file(path)
    ]
    return [path for _, path in sorted(files)]


def best_file(directory: Path) -> Path | None:
    """The file of the last best checkpoint that a directory holds, by whichever metric; None if there is none."""
    files = best_files(directory)
    return files[-1] if files else None


def best_prefix(word: str, group: str, metric: str) -> str:
    """What the names of the files of a best writer begin with, such as `lowest_eval_loss_`."""
    metric = f"{group}_{metric}"
    name = "".join(letter if letter.isprintable() else "-" for letter in metric.replace(os.sep, "-"))
    if name != metric.replace(os.sep, "-") or len(name.encode()) > _LONGEST_NAME:
        # Two names that are cut or changed to the same are still two.
        name = f"{name.encode()[:_LONGEST_NAME].decode(errors='ignore')}-{zlib.crc32(repr(metric).encode()):08x}"
    return f"{word}_{name}_"
