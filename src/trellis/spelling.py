"""The nearest of several names to one that is misspelt."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def nearest(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Returns the candidate most like `name`, or None if none is like it.

    Case, hyphens and underscores do not count, so `train-steps` and `trainSteps` are `train_steps`.

    Example:
        >>> nearest("trainStep", ["train_steps", "task"])
        'train_steps'
    """
    by_plain: dict[str, str] = {}
    for candidate in candidates:
        by_plain.setdefault(_plain(candidate), candidate)
    close = get_close_matches(_plain(name), by_plain, n=1, cutoff=cutoff)
    return by_plain[close[0]] if close else None


def did_you_mean(name: str, candidates: Iterable[str], *, form: str = "{}") -> str:
    """Returns a sentence with the nearest candidate, after a blank, to go on with a message; empty if none is like it.

    Example:
        >>> f"There is no task.{did_you_mean('tsak', ['task', 'data'], form='`{}.py`')}"
        'There is no task. Did you mean `task.py`?'
    """
    close = nearest(name, candidates)
    return f" Did you mean {form.replace('{}', close)}?" if close else ""


def likeness(first: str, second: str) -> float:
    """Returns how alike two names are, from 0 to 1."""
    return SequenceMatcher(None, _plain(first), _plain(second)).ratio()


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
