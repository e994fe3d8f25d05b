"""The one tree of exceptions; a message names the value, the place and the way out."""

import re
from collections.abc import Mapping
from enum import IntEnum

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
_LONGEST_VALUE = 160


def shown(value: object) -> str:
    """Writes what somebody gave into an error: in one line, without arrays and memory addresses.

    Example:
        >>> shown("10"), shown(len), shown({"params": object()}), shown(object())
        ("'10'", 'the function len', "a dict of 'params'", 'an object')
    """
    name = getattr(value, "__name__", None)
    if isinstance(value, type):
        return f"the class {name}"
    if callable(value) and isinstance(name, str):
        return f"the function {name}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and shape and dtype is not None:
        return f"an array of {dtype}[{','.join(map(str, shape))}]"
    text = repr(value)
    if len(text) <= _LONGEST_VALUE and "\n" not in text and "array(" not in text.lower() and not _ADDRESS.search(text):
        return text
    if isinstance(value, str | bytes):
        return f"{text[:_LONGEST_VALUE]}…"
    kind = type(value).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    keys = [repr(key) for key in value if isinstance(key, str)] if isinstance(value, Mapping) else []
    return f"{article} {kind} of {', '.join(keys[:5])}" if keys else f"{article} {kind}"


def drop_jax_note(error: BaseException) -> None:
    """Takes from an error the note in which JAX tells that it has shortened the trace, which helps nobody."""
    error.__notes__ = [note for note in getattr(error, "__notes__", []) if "internal frames" not in note]


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


class ExitCode(IntEnum):
    """What a process tells by its end to whoever has started it."""

    DONE = 0
    BAD_INPUT = 2
    LOST = 75
    """A process of several was lost; to try again may help."""
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    STOPPED = 143
    """Told to stop (SIGTERM), with everything saved."""


class Preempted(SystemExit):
    """The run was told to stop (SIGTERM) and left in good order; the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(ExitCode.STOPPED)
