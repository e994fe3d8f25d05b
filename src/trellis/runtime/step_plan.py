"""Which steps a checkpoint is due at, and how the steps between are cut into compiled calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from trellis.errors import ArgumentError


@dataclass(frozen=True)
class StepPlan:
    """Periods of checkpoints: one is due at every multiple of one of them.

    All is a function of absolute step numbers, so that a resumed run executes the same programs as any other.
    """

    periods: tuple[int, ...]

    @classmethod
    def of(cls, periods: int | Sequence[int]) -> "StepPlan":
        """The plan for one period or several."""
        plan = cls((periods,) if isinstance(periods, int) else tuple(periods))
        if not plan.periods or min(plan.periods) < 1:
            raise ArgumentError(f"n_steps_per_checkpoint is {periods}, but a period has at least one step.")
        return plan

    def due_after(self, step: int) -> int:
        """The next step at which a checkpoint is due."""
        return min((step // period + 1) * period for period in self.periods)

    def n_steps_in_call(self, step: int, lengths: tuple[int, int], end: int) -> int:
        """How many steps from `step` on go into one call.

        Args:
            lengths: The least steps that are worth a call, and the most that one takes.
            end: A later step that is due too: where the run ends.
        """
        if lengths[1] == 1:
            return 1
        last = max(step // period * period for period in self.periods)
        due = min(self.due_after(step), end)
        n = _even_cut(due - last, *lengths)
        return min(due - step, n - (step - last) % n)


@lru_cache
def _even_cut(n_steps: int, least: int, most: int) -> int:
    """The length of the calls that make up `n_steps`: equal ones, which are one program, if they are not too short."""
    most = min(n_steps, most)
    even = max(n for n in range(1, most + 1) if n_steps % n == 0)
    return even if even >= min(least, most // 2 + 1) else most
