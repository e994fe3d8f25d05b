"""What a training step takes of each device, with and without changes of its config, told to people."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trellis.runtime import describe_number


@dataclass(frozen=True)
class Speed:
    """What a device computes and sends in a second."""

    flops: float
    link: float
    """Bytes to other devices."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What a training step takes of each device."""

    held: Mapping[str, int]
    """Bytes between two steps, by what they hold: exact."""
    gradients: int
    """Bytes of the parameters' gradients, which are among the temporaries: exact."""
    temporaries: int | None
    """Bytes while the step runs, as XLA counts them for a CPU: an estimate. None if the step was not compiled, as what
    is held, with the gradients, has no room already."""
    n_examples: int
    """How many examples of a batch a device has."""
    flops: float
    sent: Mapping[str, int]
    """Bytes to other devices, by the kind of what sends them."""

    @property
    def total(self) -> int:
        """The bytes that the step needs, or the least that it would."""
        return sum(self.held.values()) + (self.gradients if self.temporaries is None else self.temporaries)

    def seconds(self, speed: Speed) -> float | None:
        """How long a step takes that computes, then sends; None if it was not compiled: what it sends is not known."""
        return None if self.temporaries is None else self.flops / speed.flops + sum(self.sent.values()) / speed.link


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change of the config, and what the step costs then."""

    settings: Mapping[str, Any]
    """By dotted path; empty for the config as it is."""
    cost: StepCost | None
    """None if the run cannot be built so."""
    reason: str = ""
    """Why it cannot be."""

    def fits(self, memory: int) -> bool:
        """Whether the step has room."""
        return self.cost is not None and self.cost.temporaries is not None and self.cost.total <= memory

    @property
    def flags(self) -> str:
        """What makes the change, to be pasted."""
        return " ".join(f"--set={path}={_text(value)}" for path, value in self.settings.items())


def describe_cost(cost: StepCost, *, speed: Speed | None = None) -> Iterator[str]:
    """Yields what is told of a step."""
    parts = ", ".join(f"{name} {gib(size)}" for name, size in cost.held.items() if size)
    if cost.temporaries is None:
        yield f"at least {gib(cost.total)} on each device: {parts}, gradients {gib(cost.gradients)}"
        return
    yield f"{gib(cost.total)} on each device: {parts}, temporaries about {gib(cost.temporaries)}"
    yield f"temporaries are the gradients, {gib(cost.gradients)}, and what layers keep for them, counted as on a CPU"
    sent = ", ".join(f"{kind} {gib(size)}" for kind, size in cost.sent.items())
    yield f"sent by each device: {sent or 'nothing'}"
    if speed:
        yield f"{_time(cost.seconds(speed))} a step, if nothing is sent while it computes"


def heading(speed: Speed | None = None) -> str:
    """What the columns of `describe_candidate` are."""
    time = f"{'time a step':>12}  " if speed else ""
    return f"{'each device':>12}  {'':8}  {'FLOPs':>8}  {'sent a step':>12}  {time}change"


def describe_candidate(candidate: Candidate, *, first: StepCost, memory: int, speed: Speed | None = None) -> str:
    """A row about a change: what the step needs with it, and what it costs in time.

    Args:
        first: What the step costs as it is.
        speed: If it is known, seconds are told too.
    """
    change = " ".join(f"{path}={_text(value)}" for path, value in candidate.settings.items()) or "as it is"
    cost = candidate.cost
    if cost is None:
        blank = " " * 14 if speed else ""
        return f"{'—':>12}  {'':8}  {'':>8}  {'':>12}  {blank}{change}: {candidate.reason}"
    is_compiled = cost.temporaries is not None
    total = gib(cost.total) if is_compiled else f"> {gib(cost.total)}"
    fits = "fits" if candidate.fits(memory) else "too much"
    flops = f"{max(0.0, cost.flops / first.flops - 1):+.0%}" if candidate.settings else f"{cost.flops:.2e}"
    sent = gib(sum(cost.sent.values())) if is_compiled else "not known"
    time = f"{_time(cost.seconds(speed)):>12}  " if speed else ""
    return f"{total:>12}  {fits:8}  {flops:>8}  {sent:>12}  {time}{change}"


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else short_time(seconds)


def short_time(seconds: float) -> str:
    """A time as it is told of a step."""
    return f"{describe_number(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{describe_number(1e6 * seconds)} µs"


def gib(n_bytes: int) -> str:
    """A size in the unit that the memory of devices is told in."""
    if n_bytes >= 0.1 * 2**30:
        return f"{n_bytes / 2**30:.2f} GiB"
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes >= 0.1 * 2**20 else f"{n_bytes / 2**10:.2f} KiB"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
