"""The modes of a run: what each of them does."""

from dataclasses import dataclass

from trellis.errors import ArgumentError
from trellis.spelling import nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """What a run does. Everything that depends on the mode of a run asks these fields, never the name."""

    name: str
    trains: bool = False
    """Whether it changes parameters."""
    evaluates: bool = False
    """Whether it measures them on the validation data, at any time."""
    evaluates_while_training: bool = False
    """Whether it does so every `trainer.validation_interval` steps."""
    evaluates_after_training: bool = False
    """Whether it does so once, after the last step."""
    follows: bool = False
    """Whether it waits for the checkpoint files that another run writes."""

    @property
    def needs_checkpoint(self) -> bool:
        """Whether there has to be a checkpoint file before it starts: it neither writes one nor waits for one."""
        return not self.trains and not self.follows

    def __str__(self) -> str:
        return self.name


TRAIN = Mode(name="train", trains=True)
EVAL = Mode(name="eval", evaluates=True)
TRAIN_AND_EVAL = Mode(name="train_and_eval", trains=True, evaluates=True, evaluates_while_training=True)
CONTINUOUS_EVAL = Mode(name="continuous_eval", evaluates=True, follows=True)
CONTINUOUS_TRAIN_AND_EVAL = Mode(name="continuous_train_and_eval", trains=True, evaluates=True, follows=True)
TRAIN_AND_POST_EVAL = Mode(name="train_and_post_eval", trains=True, evaluates=True, evaluates_after_training=True)

_MODES = {
    mode.name: mode
    for mode in (TRAIN, EVAL, TRAIN_AND_EVAL, CONTINUOUS_EVAL, CONTINUOUS_TRAIN_AND_EVAL, TRAIN_AND_POST_EVAL)
}
MODES = tuple(_MODES)
"""The names of all modes."""


def get_mode(name: str) -> Mode:
    """Returns the mode of a name; an error about a name that is none suggests the nearest.

    Example:
        >>> get_mode("train_and_eval").trains
        True
    """
    if name not in _MODES:
        close = nearest(name, MODES)
        suggestion = f" Did you mean {close}?" if close else ""
        raise ArgumentError(f"There is no mode {name!r}.{suggestion} Modes are: {', '.join(MODES)}.")
    return _MODES[name]
