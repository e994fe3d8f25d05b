"""Batches to checkpoints."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.loops.checkpoint import (
        Checkpoint as Checkpoint,
        CheckpointSource as CheckpointSource,
        Summary as Summary,
        TrainState as TrainState,
    )
    from trellis.loops.eval_loop import EvalLoop as EvalLoop
    from trellis.loops.step import (
        EvalTask as EvalTask,
        StepOutput as StepOutput,
        TrainStep as TrainStep,
        TrainTask as TrainTask,
        ValidationStep as ValidationStep,
    )
    from trellis.loops.train_loop import TrainLoop as TrainLoop

__getattr__, __dir__, __all__ = door(__name__)
