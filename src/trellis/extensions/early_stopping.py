"""The end of a run that does not get better."""

import dataclasses

from trellis.errors import ArgumentError
from trellis.extensions.best_checkpoint_files import BestCheckpointFileWriter
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint


class EarlyStopping(Extension):
    """Marks a checkpoint as the last one if the best was written `n_steps` steps ago or more.

    What comes after it does what is due at the last step; whoever runs the loop leaves it when `is_last` is set. The
    best so far is that of a best writer, whose file tells it after a resume too.

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
