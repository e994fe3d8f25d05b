"""Where the time of a run went, over all of its attempts, by its events; nothing here needs JAX."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.aliases import JSON
from trellis.disk import describe_failure
from trellis.errors import ArgumentError
from trellis.extensions.event_lines import read_events
from trellis.loops import BUCKETS

BUCKET_NAMES = {
    "step": "steps",
    "input_wait": "waiting for input",
    "compile": "compiling",
    "start": "start",
    "eval": "evaluation",
    "checkpoint": "waiting for checkpoint files",
    "lost": "lost work",
    "downtime": "downtime",
    "other": "other",
}
"""What people are told a second was spent on, in the order in which they are told."""

_KEPT = ("start", "compile")
"""What an attempt needs whatever becomes of its steps: this is not lost with them."""
_LEAST_JUMP = 10.0
_LEAST_SHARE_OF_JUMP = 0.01
"""By so much, in seconds and as a share of an attempt, its own clock and that of the machine may differ by chance."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The seconds of a run, from the start of its first attempt to its last sign of life.

    Steps, and what was done with their checkpoints, are `lost` if a later attempt or a recovery went back behind them.
    `downtime` is what lies between the last sign of life of an attempt and the start of the next.
    """

    seconds: Mapping[str, float]
    """By bucket: those of a process, then `lost` and `downtime`."""
    wall_seconds: float
    """By the clock of the machine, without its jumps; the buckets add up to it."""
    clock_jump: float
    """By how many seconds the clock of the machine was set forward meanwhile, or the machine slept; below 0, back."""
    n_attempts: int
    step: int
    hidden_input: float
    """Seconds in which batches were made while the devices were busy, in whatever bucket."""

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """What part of all seconds is in each bucket."""
        total = max(self.total, 1e-9)
        return {name: seconds / total for name, seconds in self.seconds.items()}

    def as_json(self) -> dict[str, JSON]:
        """All of it, for programs."""
        return {
            "n_attempts": self.n_attempts,
            "step": self.step,
            "wall_seconds": self.wall_seconds,
            "clock_jump": self.clock_jump,
            "goodput": self.shares["step"],
            "seconds": dict(self.seconds),
            "hidden_input": self.hidden_input,
        }


def read_goodput(model_dir: Path) -> Goodput:
    """Where the time of the run in a directory went; an ArgumentError if it says nothing about it."""
    path = model_dir / "events.jsonl"
    try:
        events = read_events(path)
    except OSError as error:
        raise ArgumentError(
            f"`{path}` cannot be read: {describe_failure(error)}. Give the model_dir of a run."
        ) from None
    goodput = add_up(events)
    if goodput is None:
        raise ArgumentError(
            f"`{path}` has no event of the kind `time`: its run was too short to write one, or is of an older version."
        )
    return goodput


def add_up(events: Iterable[Mapping[str, Any]]) -> Goodput | None:
    """Adds up the events of the kind `time`, in order; None if there are none."""
    parts: list[_Part] = []
    attempts: list[float] = []
    before: dict[str, float] = {}
    hidden_input = hidden_before = downtime = clock_jump = last_time = 0.0
    last_step = 0
    for event in filter(_is_whole, events):
        is_new = not attempts or event["attempt"] != attempts[-1]
        if is_new:
            if attempts:
                gap = event["attempt"] - last_time
                downtime += max(0.0, gap)
                clock_jump += _jump(attempts[-1], last_time, sum(before.values())) + _jump(0.0, min(0.0, gap), 0.0)
            attempts.append(event["attempt"])
            before, hidden_before = dict.fromkeys(BUCKETS, 0.0), 0.0
        if is_new or event["step"] < last_step:
            for part in parts:
                part.is_lost = part.is_lost or part.step > event["step"]
        seconds = {name: float(event["seconds"].get(name, 0.0)) for name in BUCKETS}
        parts.append(_Part(event["step"], {name: seconds[name] - before[name] for name in BUCKETS}))
        hidden_input += event["hidden_input"] - hidden_before
        before, hidden_before = seconds, event["hidden_input"]
        last_time, last_step = event["time"], event["step"]
    if not attempts:
        return None
    clock_jump += _jump(attempts[-1], last_time, sum(before.values()))
    totals = dict.fromkeys((*BUCKETS, "lost", "downtime"), 0.0)
    for part in parts:
        for name, value in part.seconds.items():
            totals["lost" if part.is_lost and name not in _KEPT else name] += value
    return Goodput(
        seconds=totals | {"downtime": downtime},
        wall_seconds=last_time - attempts[0] - clock_jump,
        clock_jump=clock_jump,
        n_attempts=len(attempts),
        step=last_step,
        hidden_input=hidden_input,
    )


def _jump(begin: float, end: float, seconds: float) -> float:
    """By how much a clock that went from one time to another jumped, in so many seconds."""
    jump = end - begin - seconds
    return jump if abs(jump) > max(_LEAST_JUMP, _LEAST_SHARE_OF_JUMP * seconds) else 0.0


@dataclass
class _Part:
    """What was spent from one event to the next, which ends at a step."""

    step: int
    seconds: dict[str, float]
    is_lost: bool = False


def _is_whole(event: Mapping[str, Any]) -> bool:
    numbers = (event.get(name) for name in ("attempt", "time", "step", "hidden_input"))
    return (
        event.get("kind") == "time"
        and isinstance(event.get("seconds"), dict)
        and all(isinstance(seconds, int | float) for seconds in event["seconds"].values())
        and all(isinstance(number, int | float) for number in numbers)
    )
