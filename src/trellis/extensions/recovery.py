"""Back to the last good checkpoint file when the loss has blown up, and past the data that did it."""

import json
import math
import os
from collections import deque
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from trellis.aliases import Batch
from trellis.data import SizedStream, StackingStream, Stream, is_stream, rows_of
from trellis.disk import describe_failure, set_aside, write_whole
from trellis.errors import ArgumentError, CheckpointFileError, DivergedError
from trellis.extensions.checkpoint_files import recorded_notes
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Session, Summary
from trellis.runtime import Placement, print_line

_N_GOOD = 40
_LEAST_GOOD = 3
_N_HIGH = 3
"""A mean loss or two that are high are batches with outliers; three in a row are a training that has lost its way."""


class DivergenceCheck(Extension):
    """Raises a `DivergedError` at a checkpoint that no run should go on from; put it before all that writes.

    That is a checkpoint whose loss is not a number or above the bound, or whose weights are not finite.

    Example:
        process = serial(DivergenceCheck(loss_upper_bound=100.0), CheckpointFileWriter(output_dir="runs/digits"))

    Args:
        begin_steps: The bound counts from this step on; a loss or a weight that is not a number always counts.
    """

    def __init__(self, *, loss_upper_bound: float = math.inf, begin_steps: int = 0) -> None:
        self._bound = loss_upper_bound
        self._begin_steps = begin_steps

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Returns a good checkpoint, with its metrics."""
        summary = Summary.from_checkpoint(checkpoint)
        reason = self._reason(summary)
        if reason:
            start = summary.step - summary.n_completed_steps
            raise DivergedError(f"Between the steps {start} and {summary.step} {reason}.", step=summary.step)
        return summary

    def _reason(self, summary: Summary) -> str:
        if math.isnan(summary.loss):
            return "the loss became NaN"
        if summary.step >= self._begin_steps and summary.loss > self._bound:
            return f"the mean loss was {summary.loss:g}, more than loss_upper_bound={self._bound:g}"
        norm = summary.metrics["train"].get("weights_l2norm", 0.0)
        return "" if math.isfinite(norm) else f"the norm of the weights became {norm}"


class BlowUpCheck(Extension):
    """Emits an event `blown_up`, and prints its line, when the loss has grown by orders though it is finite.

    That is told once, at the third checkpoint in a row whose loss is higher than all before it and more than `factor`
    times the usual one: the median of up to twenty checkpoints, some checkpoints ago. Where those differ by more than
    their size, as negative losses and noise may, their spread counts in its place. It is told again only after the loss
    was good again. The run goes on: a `DivergenceCheck` with a bound is what stops it.

    Example:
        process = serial(BlowUpCheck(), SummaryLogger(), EventWriter("runs/digits"))
    """

    def __init__(self, *, factor: float = 10.0) -> None:
        if not factor > 1:
            raise ArgumentError(
                f"factor is {factor}, but a loss that has blown up is a multiple of the usual: above 1."
            )
        self._factor = factor
        self._good: deque[float] = deque(maxlen=_N_GOOD)
        self._highest = -math.inf
        self._n_high = 0

    def join(self, session: Session) -> None:
        """Forgets the losses of another loop."""
        self._good.clear()
        self._highest = -math.inf
        self._n_high = 0

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Looks at the loss, and returns the checkpoint as it came."""
        loss = checkpoint.loss
        if not math.isfinite(loss):
            return checkpoint  # The loop itself tells of it.
        if not self._is_high(loss):
            self._good.append(loss)
            self._highest = max(self._highest, loss)
            self._n_high = 0
            return checkpoint
        self._n_high += 1
        if self._n_high == _N_HIGH:
            usual = median(self._reference())
            text = f"Step {checkpoint.step:6d}: the loss has blown up: it is {loss:.4g}, and was {usual:.4g}."
            if checkpoint.session is None:
                print_line(text)
            else:
                checkpoint.session.emit("blown_up", step=checkpoint.step, text=text, loss=loss, usual_loss=usual)
        return checkpoint

    def _is_high(self, loss: float) -> bool:
        if len(self._good) < _LEAST_GOOD:
            return False
        reference = self._reference()
        usual = median(reference)
        size = max(abs(usual), max(reference) - min(reference))
        return loss > self._highest and loss - usual > (self._factor - 1) * size

    def _reference(self) -> list[float]:
        """The older half of the good losses: the newer ones may have begun to grow."""
        return list(self._good)[: max(_LEAST_GOOD, len(self._good) // 2)]


class SkippedData:
    """The batches that a run leaves out, in a file beside its checkpoint files, so that a resumed run does the same.

    The checkpoint files note them too, under `note`: from there a file comes back that was damaged or removed.

    Args:
        placement: The devices of the run: of several processes the first one reads and writes the file.
    """

    note = "skipped_data"

    def __init__(self, model_dir: Path, placement: Placement | None = None) -> None:
        self._path = model_dir / "skipped_data.json"
        self._placement = placement
        self._damage = ""

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """Each step from which on something is left out, with the number of batches."""
        windows = self._find() if self._placement is None else self._placement.agreed(self._find)
        return [(step, n_batches) for step, n_batches in windows]

    def _find(self) -> list[tuple[int, int]]:
        recorded = recorded_notes(self._path.parent)
        notes = None if recorded is None else recorded[1].get(self.note)
        known = None if notes is None else [(step, n_batches) for step, n_batches in notes]
        try:
            windows = self._read()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = describe_failure(error) if isinstance(error, OSError) else "it is garbled"
            damage = f"`{self._path}`, which says what data this run leaves out, cannot be read: {reason}."
            if known is None:
                raise CheckpointFileError(
                    f"{damage} Bring it back, or remove it: then the run sees all of its data again."
                ) from None
            self._damage = damage
            return known
        if known and windows[: len(known)] != known:
            self._damage = f"`{self._path}` does not say what data this run leaves out."
            return known
        return windows

    def mend(self) -> None:
        """Writes a damaged file again after what a checkpoint file notes; what was there is set aside."""
        windows = self.windows
        if self._damage:
            aside = f" It is set aside as `{set_aside(self._path).name}`." if os.path.lexists(self._path) else ""
            text = f"{self._damage}{aside} It is written again after the newest checkpoint file, which notes the same."
            print_line(text)
            self._write(windows)
            self._damage = ""

    @property
    def n_windows(self) -> int:
        """How often something was left out."""
        return len(self.windows)

    def _read(self) -> list[tuple[int, int]]:
        if not os.path.lexists(self._path):
            return []
        windows = [(item["step"], item["n_batches"]) for item in json.loads(self._path.read_text())]
        if not all(isinstance(number, int) and number >= 0 for window in windows for number in window):
            raise ValueError
        return windows

    def _write(self, windows: list[tuple[int, int]]) -> None:
        items = [{"step": step, "n_batches": n_batches} for step, n_batches in windows]
        write_whole(self._path, json.dumps(items, indent=1).encode())

    def add(self, *, step: int, n_batches: int) -> None:
        """Leaves out the batches that would be those of `n_batches` steps from `step` on."""
        self.windows.append((step, n_batches))
        if self._placement is None or self._placement.is_writer:
            self._write(self.windows)

    def applied_to(self, data: Any) -> Any:
        """A stream without what is left out; other data as it is."""
        return SkippingStream(data, windows=tuple(self.windows)) if self.windows and is_stream(data) else data


class SkippingStream:
    """A stream that leaves out some batches of another: those of `n` steps from step `start` on, for each window."""

    def __init__(self, stream: Stream, *, windows: tuple[tuple[int, int], ...]) -> None:
        self._stream = stream
        self._windows = windows

    @property
    def n_batches(self) -> int | None:
        """How many batches the stream has without what is left out; None if it is endless."""
        n_batches = self._stream.n_batches if isinstance(self._stream, SizedStream) else None
        return None if n_batches is None else max(0, n_batches - sum(n for _, n in self._windows))

    def rows(self, start: int, stop: int) -> "SkippingStream":
        """The stream of some rows of every batch."""
        return SkippingStream(rows_of(self._stream, start, stop), windows=self._windows)

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        return self._stream.batch(step + self._n_skipped(step))

    def stacked_batches(self, step: int, n: int) -> Batch:
        """The batches of several steps, gathered at once if nothing is left out between them."""
        n_skipped = self._n_skipped(step)
        if isinstance(self._stream, StackingStream) and self._n_skipped(step + n - 1) == n_skipped:
            return self._stream.stacked_batches(step + n_skipped, n)
        batches: list[Any] = [self.batch(step + index) for index in range(n)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

    def _n_skipped(self, step: int) -> int:
        return sum(n for start, n in self._windows if start <= step)
