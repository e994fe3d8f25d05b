"""Checkpoints to screen and files."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.extensions.best_checkpoint_files import BestCheckpointFileWriter as BestCheckpointFileWriter
    from trellis.extensions.best_checkpoint_files import HighestCheckpointFileReader as HighestCheckpointFileReader
    from trellis.extensions.best_checkpoint_files import HighestCheckpointFileWriter as HighestCheckpointFileWriter
    from trellis.extensions.best_checkpoint_files import LowestCheckpointFileReader as LowestCheckpointFileReader
    from trellis.extensions.best_checkpoint_files import LowestCheckpointFileWriter as LowestCheckpointFileWriter
    from trellis.extensions.best_checkpoint_files import best_file as best_file
    from trellis.extensions.checkpoint_files import CheckpointFileReader as CheckpointFileReader
    from trellis.extensions.checkpoint_files import CheckpointFileWriter as CheckpointFileWriter
    from trellis.extensions.checkpoint_files import restore_file as restore_file
    from trellis.extensions.checkpoint_names import newest_file as newest_file
    from trellis.extensions.checkpoint_names import regular_files as regular_files
    from trellis.extensions.disk import replace_file as replace_file
    from trellis.extensions.early_stopping import EarlyStopping as EarlyStopping
    from trellis.extensions.event_writer import EventWriter as EventWriter
    from trellis.extensions.extension import Extension as Extension
    from trellis.extensions.extension import every as every
    from trellis.extensions.extension import serial as serial
    from trellis.extensions.progress import ProgressBar as ProgressBar
    from trellis.extensions.recovery import DivergenceCheck as DivergenceCheck
    from trellis.extensions.recovery import SkippedData as SkippedData
    from trellis.extensions.summary_logger import SummaryLogger as SummaryLogger
    from trellis.extensions.summary_writer import SummaryWriter as SummaryWriter

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "BestCheckpointFileWriter": "best_checkpoint_files",
        "CheckpointFileReader": "checkpoint_files",
        "CheckpointFileWriter": "checkpoint_files",
        "DivergenceCheck": "recovery",
        "EarlyStopping": "early_stopping",
        "EventWriter": "event_writer",
        "Extension": "extension",
        "HighestCheckpointFileReader": "best_checkpoint_files",
        "HighestCheckpointFileWriter": "best_checkpoint_files",
        "LowestCheckpointFileReader": "best_checkpoint_files",
        "LowestCheckpointFileWriter": "best_checkpoint_files",
        "ProgressBar": "progress",
        "SkippedData": "recovery",
        "SummaryLogger": "summary_logger",
        "SummaryWriter": "summary_writer",
        "best_file": "best_checkpoint_files",
        "every": "extension",
        "newest_file": "checkpoint_names",
        "regular_files": "checkpoint_names",
        "replace_file": "disk",
        "restore_file": "checkpoint_files",
        "serial": "extension",
    },
)
