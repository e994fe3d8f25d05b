"""The one tree of exceptions; a message names the value, the place and the way out."""


class TrellisError(Exception):
    """Every error that Trellis raises on purpose."""


class ArgumentError(TrellisError, ValueError):
    """A value given by the caller that cannot work."""


class ConfigError(ArgumentError):
    """A configuration that cannot work; the message lists every problem in it, and so does `problems`."""

    def __init__(self, message: str, *, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems or (message,)


class RegistryError(TrellisError, LookupError):
    """A name that is not registered, or that is registered already."""


class DataError(TrellisError, ValueError):
    """Data that is not what was promised: its kind, shape, order or content."""


class CutShortError(DataError):
    """A file that ends before its content does."""


class StreamEndedError(DataError):
    """A stream ended before the training did."""


class ModelError(TrellisError, ValueError):
    """A model, a loss or a metric that does not fit the loop that runs it."""


class DivergedError(TrellisError, RuntimeError):
    """A training whose loss or weights have blown up; `step` is where it was noticed."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


class RunFailedError(TrellisError, RuntimeError):
    """A `run_fn` that failed, or did not leave what it was run for."""


class ProcessLostError(RunFailedError):
    """A run that has lost one of its processes, or that one never came to; to try again may help."""


class ModelRefusedError(RunFailedError):
    """A `run_fn` that returned, but left a model that cannot be used, or its inputs changed."""


class StaleCheckpointError(TrellisError, RuntimeError):
    """A checkpoint was touched after its loop had moved on and reused its arrays."""


class FileWriteError(TrellisError, OSError):
    """A file or a directory that cannot be written."""


class DirectoryTakenError(FileWriteError):
    """A directory that another process is writing to."""


class CheckpointFileError(TrellisError, OSError):
    """A checkpoint file that cannot be written or read."""


class CheckpointMismatchError(CheckpointFileError):
    """A checkpoint file that holds another structure than the one asked for."""


class ServedModelError(TrellisError, OSError):
    """A served model that cannot be written or read."""


class RequestRefusedError(TrellisError, RuntimeError):
    """A request that a server does not answer; `status` is HTTP's word for why."""

    def __init__(self, message: str, *, status: int, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """In how many seconds the same request may be answered, if waiting helps."""


class MissingPackageError(TrellisError, ImportError):
    """An optional package that is used but not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. It comes with: pip install 'trellis-jax[{extra}]'")


class Preempted(SystemExit):
    """The run was told to stop (SIGTERM) and left in good order; the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(143)
