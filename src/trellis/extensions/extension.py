"""What consumes checkpoints: a callable from checkpoint to checkpoint, and ways to combine them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from trellis.errors import ArgumentError, shown
from trellis.loops import Checkpoint, EvalLoop, Session, whole_number


class Extension(ABC):
    """A callable from checkpoint to checkpoint that may also take part in the session of the loop.

    Any function from checkpoint to checkpoint serves as an extension; this class adds `attach`. Attached by
    `loop.attach(extension)` it takes part from the first step on, else from the first checkpoint that it sees.
    """

    def __call__(self, checkpoint: Checkpoint) -> Checkpoint:
        """Handles a checkpoint, and returns it, possibly with more in it."""
        if not isinstance(checkpoint, Checkpoint):
            raise ArgumentError(
                f"{type(self).__name__} was called with {shown(checkpoint)}, but it takes a checkpoint: what a loop "
                f"yields, or what the extension before it returns."
            )
        session = checkpoint.session
        if session is None:
            return self.handle(checkpoint)
        try:
            self.attach(session)
            return self.handle(checkpoint)
        except BaseException:
            session.fail(checkpoint.step)
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def attach(self, session: Session) -> None:
        """Takes part in a session; a second call for the same session does nothing."""
        if session.admit(self):
            self.join(session)

    def join(self, session: Session) -> None:  # noqa: B027  (most extensions have nothing to subscribe to)
        """Subscribes to the events of the session; called once for each session."""

    @abstractmethod
    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Does the work for one checkpoint."""


class _Serial(Extension):
    def __init__(self, extensions: tuple[Callable[[Any], Any], ...]) -> None:
        for extension in extensions:
            if not callable(extension):
                raise ArgumentError(f"{shown(extension)} is not an extension: it cannot be called with a checkpoint.")
        self._extensions = extensions

    def __repr__(self) -> str:
        return f"serial({self._list()})"

    def _list(self) -> str:
        return ", ".join(
            # The repr of a function has an address in it.
            repr(extension) if isinstance(extension, Extension | EvalLoop) else getattr(extension, "__name__", "…")
            for extension in self._extensions
        )

    def join(self, session: Session) -> None:
        for extension in self._extensions:
            if isinstance(extension, Extension):
                extension.attach(session)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        for extension in self._extensions:
            result = extension(checkpoint)
            if not isinstance(result, Checkpoint):
                name = type(extension).__name__ if isinstance(extension, Extension) else shown(extension)
                raise ArgumentError(
                    f"The extension {name} returned {shown(result)}, but it has to return the checkpoint."
                )
            checkpoint = result
        return checkpoint


class _Every(_Serial):
    def __init__(self, n_steps: int, extensions: tuple[Callable[[Any], Any], ...]) -> None:
        super().__init__(extensions)
        if whole_number(n_steps, "every(n_steps)") < 1:
            raise ArgumentError(f"every(n_steps={n_steps}) has a period of less than one step.")
        self._n_steps = n_steps

    def __repr__(self) -> str:
        return f"every({self._n_steps}, {self._list()})"

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        is_due = checkpoint.step % self._n_steps == 0 or checkpoint.is_last
        return super().handle(checkpoint) if is_due else checkpoint


def serial(*extensions: Callable[[Any], Any]) -> Extension:
    """One extension that calls others in order, each with what the one before it returned.

    Example:
        process = serial(EvalLoop(task=task, n_steps=20), SummaryLogger(), CheckpointFileWriter(output_dir="runs/a"))
    """
    return _Serial(extensions)


def every(n_steps: int, *extensions: Callable[[Any], Any]) -> Extension:
    """An extension that acts at multiples of `n_steps` and at the last step, and lets other checkpoints pass.

    Example:
        every(1000, EvalLoop(task=task), HighestCheckpointFileWriter(output_dir="runs/a", metric="accuracy"))
    """
    return _Every(n_steps, extensions)
