"""Trellis: a training library for JAX.

The loops, then what they yield, what they take, and what consumes their checkpoints.
"""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.data.stream import ExampleStream as ExampleStream
    from trellis.data.stream import Stream as Stream
    from trellis.extensions.best_checkpoint_files import HighestCheckpointFileReader as HighestCheckpointFileReader
    from trellis.extensions.best_checkpoint_files import HighestCheckpointFileWriter as HighestCheckpointFileWriter
    from trellis.extensions.best_checkpoint_files import LowestCheckpointFileReader as LowestCheckpointFileReader
    from trellis.extensions.best_checkpoint_files import LowestCheckpointFileWriter as LowestCheckpointFileWriter
    from trellis.extensions.checkpoint_files import CheckpointFileReader as CheckpointFileReader
    from trellis.extensions.checkpoint_files import CheckpointFileWriter as CheckpointFileWriter
    from trellis.extensions.event_writer import EventWriter as EventWriter
    from trellis.extensions.extension import Extension as Extension
    from trellis.extensions.extension import every as every
    from trellis.extensions.extension import serial as serial
    from trellis.extensions.progress import ProgressBar as ProgressBar
    from trellis.extensions.summary_logger import SummaryLogger as SummaryLogger
    from trellis.extensions.summary_writer import SummaryWriter as SummaryWriter
    from trellis.loops.checkpoint import Checkpoint as Checkpoint
    from trellis.loops.checkpoint import Summary as Summary
    from trellis.loops.checkpoint import TrainState as TrainState
    from trellis.loops.eval_loop import EvalLoop as EvalLoop
    from trellis.loops.step import EvalTask as EvalTask
    from trellis.loops.step import StepOutput as StepOutput
    from trellis.loops.step import TrainTask as TrainTask
    from trellis.loops.train_loop import TrainLoop as TrainLoop
    from trellis.metrics import Mean as Mean

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "TrainLoop": "loops",
        "TrainTask": "loops",
        "EvalLoop": "loops",
        "EvalTask": "loops",
        "Checkpoint": "loops",
        "Summary": "loops",
        "TrainState": "loops",
        "StepOutput": "loops",
        "Mean": "metrics",
        "ExampleStream": "data",
        "Stream": "data",
        "Extension": "extensions",
        "serial": "extensions",
        "every": "extensions",
        "ProgressBar": "extensions",
        "SummaryLogger": "extensions",
        "SummaryWriter": "extensions",
        "EventWriter": "extensions",
        "CheckpointFileWriter": "extensions",
        "CheckpointFileReader": "extensions",
        "LowestCheckpointFileWriter": "extensions",
        "LowestCheckpointFileReader": "extensions",
        "HighestCheckpointFileWriter": "extensions",
        "HighestCheckpointFileReader": "extensions",
    },
)
