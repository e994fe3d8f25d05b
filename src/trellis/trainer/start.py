"""Where a training begins."""

from collections.abc import Callable

from trellis.extensions import CheckpointFileReader
from trellis.loops import Checkpoint, CheckpointSource


class Start(CheckpointSource):
    """The newest checkpoint file of the run; if there is none, what the task starts from."""

    def __init__(self, reader: CheckpointFileReader, initialize: Callable[[], Checkpoint]) -> None:
        self.target = reader.target
        self._reader = reader
        self._initialize = initialize

    def __call__(self, initializer: Checkpoint) -> Checkpoint:
        """The checkpoint to start from."""
        found = self._reader(initializer)
        return self._initialize() if found is initializer else found
