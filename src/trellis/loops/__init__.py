"""Batches to checkpoints."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.loops.checkpoint import Checkpoint as Checkpoint
    from trellis.loops.checkpoint import CheckpointSource as CheckpointSource
    from trellis.loops.checkpoint import Summary as Summary
    from trellis.loops.checkpoint import TrainState as TrainState
    from trellis.loops.eval_loop import EvalLoop as EvalLoop
    from trellis.loops.step import EvalTask as EvalTask
    from trellis.loops.step import StepOutput as StepOutput
    from trellis.loops.step import TrainStep as TrainStep
    from trellis.loops.step import TrainTask as TrainTask
    from trellis.loops.step import ValidationStep as ValidationStep
    from trellis.loops.train_loop import TrainLoop as TrainLoop

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "Checkpoint": "checkpoint",
        "CheckpointSource": "checkpoint",
        "EvalLoop": "eval_loop",
        "EvalTask": "step",
        "StepOutput": "step",
        "Summary": "checkpoint",
        "TrainLoop": "train_loop",
        "TrainState": "checkpoint",
        "TrainStep": "step",
        "TrainTask": "step",
        "ValidationStep": "step",
    },
)
