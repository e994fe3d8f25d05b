"""The checkpoint with the best value of a metric, on disk."""

import difflib
import math
import os
import re
from pathlib import Path

from trellis.aliases import Init
from trellis.errors import ArgumentError, CheckpointFileError
from trellis.extensions import checkpoint_storage as storage
from trellis.extensions.checkpoint_files import FileReader, FileWriter
from trellis.extensions.checkpoint_names import find_files
from trellis.loops import Checkpoint, Summary
from trellis.runtime import print_line


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
        super().__init__(output_dir, keep=keep, overwrite=overwrite)
        self._group, self._metric = group, metric
        self._best: float | None = None
        self._best_step: int | None = None
        self._read_best()
        if stdout:
            print_line(f"The {self.word} value for the metric {group}/{metric} is set to {self.best_metric:.8f}.")

    @property
    def prefix(self) -> str:
        """Such as `lowest_eval_loss_`."""
        return best_prefix(self.word, self._group, self._metric)

    @property
    def best_metric(self) -> float:
        """The best value so far; infinitely bad if there is none."""
        return self.sign * math.inf if self._best is None else self._best

    @property
    def best_step(self) -> int | None:
        """The step of the best value so far; None if there is none."""
        return self._best_step

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Starts to write the checkpoint if it is the best."""
        value = self._value_in(checkpoint)
        if self.sign * value < self.sign * self.best_metric:
            self.write(checkpoint)
            self._best, self._best_step = value, checkpoint.step
        return checkpoint

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
            near = difflib.get_close_matches(name, values, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ArgumentError(
                f"Cannot read the metric {name} from the summary of step {checkpoint.step}, which holds "
                f"{', '.join(values) or 'none'}.{hint}"
            )
        return values[name]

    def _read_best(self) -> None:
        for step, path in reversed(find_files(self._dir, self.prefix)):
            try:
                metrics = storage.read_manifest(path)["metrics"]
            except CheckpointFileError as error:
                print_line(f"Skipping the damaged checkpoint file `{path}`: {error}.")
                continue
            if self._metric not in metrics.get(self._group, {}):
                raise CheckpointFileError(f"`{path}` does not hold the metric {self._group}/{self._metric}.")
            self._best, self._best_step = float(metrics[self._group][self._metric]), step
            return


class LowestCheckpointFileWriter(BestCheckpointFileWriter):
    """Writes a checkpoint to `{output_dir}/lowest_{group}_{metric}_{step}` if the metric is the lowest so far.

    Example:
        serial(EvalLoop(task=task), LowestCheckpointFileWriter(output_dir="runs/digits", metric="loss"))
    """

    word, sign = "lowest", 1


class HighestCheckpointFileWriter(BestCheckpointFileWriter):
    """Writes a checkpoint to `{output_dir}/highest_{group}_{metric}_{step}` if the metric is the highest so far.

    Example:
        serial(EvalLoop(task=task), HighestCheckpointFileWriter(output_dir="runs/digits", metric="accuracy"))
    """

    word, sign = "highest", -1


class BestCheckpointFileReader(FileReader):
    """Finds the checkpoint with the best value of a metric."""

    word: str
    """What the best value is."""

    def __init__(self, dir: str | os.PathLike[str], *, target: Init, metric: str, group: str = "eval") -> None:
        super().__init__(dir, target=target)
        self._prefix = best_prefix(self.word, group, metric)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Such as `lowest_eval_loss_`."""
        return (self._prefix,)


class LowestCheckpointFileReader(BestCheckpointFileReader):
    """Starts a loop from the file of a `LowestCheckpointFileWriter`, if there is one."""

    word = "lowest"


class HighestCheckpointFileReader(BestCheckpointFileReader):
    """Starts a loop from the file of a `HighestCheckpointFileWriter`, if there is one."""

    word = "highest"


def best_file(directory: Path) -> Path | None:
    """The file of the last best checkpoint that a directory holds, by whichever metric; None if there is none."""
    found = [
        (int(match[1]), path)
        for path in directory.glob("*est_*")
        if (match := re.fullmatch(r"(?:low|high)est_.*_(\d+)", path.name)) and storage.is_checkpoint_file(path)
    ]
    return max(found)[1] if found else None


def best_prefix(word: str, group: str, metric: str) -> str:
    """What the names of the files of a best writer begin with."""
    return f"{word}_{group}_{metric}_".replace(os.sep, "-")
