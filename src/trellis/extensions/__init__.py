"""Checkpoints to screen and files."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.extensions.best_checkpoint_files import (
        BestCheckpointFileWriter as BestCheckpointFileWriter,
        EarlyStopping as EarlyStopping,
        HighestCheckpointFileReader as HighestCheckpointFileReader,
        HighestCheckpointFileWriter as HighestCheckpointFileWriter,
        LowestCheckpointFileReader as LowestCheckpointFileReader,
        LowestCheckpointFileWriter as LowestCheckpointFileWriter,
        best_file as best_file,
        best_files as best_files,
    )
    from trellis.extensions.checkpoint_files import (
        CheckpointFileReader as CheckpointFileReader,
        CheckpointFileWriter as CheckpointFileWriter,
        newest_file as newest_file,
        newest_whole_file as newest_whole_file,
        recorded_notes as recorded_notes,
        regular_files as regular_files,
        resumable_files as resumable_files,
        restore_file as restore_file,
    )
    from trellis.extensions.recovery import (
        BlowUpCheck as BlowUpCheck,
        DivergenceCheck as DivergenceCheck,
        SkippedData as SkippedData,
    )
    from trellis.extensions.event_lines import (
        parse_event as parse_event,
        read_events as read_events,
        read_summaries as read_summaries,
    )
    from trellis.extensions.event_writer import EventWriter as EventWriter
    from trellis.extensions.fingerprints import (
        Fingerprints as Fingerprints,
        fingerprint as fingerprint,
        fingerprint_words as fingerprint_words,
    )
    from trellis.extensions.goodput import (
        BUCKET_NAMES as BUCKET_NAMES,
        Goodput as Goodput,
        add_up as add_up,
        read_goodput as read_goodput,
    )
    from trellis.extensions.extension import Extension as Extension, every as every, serial as serial
    from trellis.extensions.profiler import Profiler as Profiler, largest_operations as largest_operations
    from trellis.extensions.progress import ProgressBar as ProgressBar
    from trellis.extensions.summary_logger import SummaryLogger as SummaryLogger
    from trellis.extensions.summary_writer import SummaryWriter as SummaryWriter, steps_with_points as steps_with_points
    from trellis.extensions.tracker import Tracker as Tracker
    from trellis.extensions.tracking_services import TrackedRun as TrackedRun, TrackingService as TrackingService
    from trellis.extensions.configs import is_missing as is_missing
else:
    __getattr__, __dir__, __all__ = door(__name__)
