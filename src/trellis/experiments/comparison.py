"""Two runs, compared by what they have left: up to where they are the same to the bit, and in what they part."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trellis.disk import describe_failure, local_path
from trellis.errors import ArgumentError
from trellis.experiments.reports import diff_configs
from trellis.extensions import parse_event
from trellis.loops import CLOCKED_METRICS

_N_DIGITS = 16
_TREES = ("params", "model_state", "optimizer_state", "batch")


@dataclass(frozen=True)
class Difference:
    """A value that two runs tell differently, or that only one of them tells (then the other is None)."""

    step: int
    name: str
    """Of a tensor, such as `params/dense/kernel`, or of a metric, such as `train/loss`."""
    first: str | float | None
    second: str | float | None


@dataclass(frozen=True)
class Comparison:
    """In what two runs differ, at the steps that both tell of."""

    config: str
    """The values in which their configs differ, as lines; empty if there are none, or a config is not there."""
    last_step: int
    """The last that both tell of."""
    n_fingerprints: int
    """How many steps have fingerprints in both."""
    n_summaries: int
    """How many steps have metrics in both."""
    tensors: tuple[Difference, ...]
    """At the first step whose states or batches differ, what differs there."""
    metrics: tuple[Difference, ...]
    """At the first step whose metrics differ, what differs there."""
    lonely_steps: tuple[int, ...]
    """Steps up to the last that both tell of, of which only one of them tells something."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing was found that differs; configs may."""
        return not self.tensors and not self.metrics

    @property
    def parted_at(self) -> int | None:
        """The first step at which they differ; None if they do not."""
        steps = [differences[0].step for differences in (self.tensors, self.metrics) if differences]
        return min(steps, default=None)


class RunRecord:
    """What a run has left in `events.jsonl`: its metrics and its fingerprints.

    Args:
        model_dir: The directory of the run.
    """

    def __init__(self, model_dir: str | os.PathLike[str]) -> None:
        self.model_dir = local_path(model_dir, name="model_dir")
        if not self.model_dir.is_dir():
            raise ArgumentError(f"There is no directory `{self.model_dir}`. Give the model_dir of a run.")
        file = self.model_dir / "events.jsonl"
        try:
            lines = file.read_bytes().splitlines()
        except FileNotFoundError:
            raise ArgumentError(
                f"`{self.model_dir}` has no events.jsonl, so it tells of no run. Give the model_dir of a run that was "
                f"started, with save_summary left on."
            ) from None
        except OSError as error:
            raise ArgumentError(f"`{file}` cannot be read: {describe_failure(error)}. Bring it back.") from None
        self._events = [event for event in map(parse_event, lines) if event]
        if not self._events:
            what = f"its {len(lines)} lines hold no event" if lines else "it is empty"
            raise ArgumentError(f"`{file}` tells nothing of the run: {what}. Bring it back, or run it again.")
        n_damaged = len(lines) - len(self._events)
        self.damage = f"`{file}` is damaged: {n_damaged} of its {len(lines)} lines hold no event." if n_damaged else ""
        """What is wrong with the file; empty if nothing is."""

    @cached_property
    def metrics(self) -> dict[int, dict[str, float]]:
        """The metrics by step, under names such as `eval/accuracy`, without those that tell of time."""
        return {
            step: {
                f"{group}/{name}": float(value)
                for group, values in event.get("metrics", {}).items()
                for name, value in values.items()
                if name not in CLOCKED_METRICS
            }
            for step, event in self._of_kind("summary")
        }

    @cached_property
    def fingerprints(self) -> dict[int, dict[str, str]]:
        """The digits of every tensor by step, under names such as `params/dense/kernel`."""
        fingerprints: dict[int, dict[str, str]] = {}
        names: list[str] = []
        for step, event in self._of_kind("fingerprint"):
            names = event.get("names", names)
            fingerprints[step] = _tensors(event, names)
        return fingerprints

    @cached_property
    def batch_digits(self) -> dict[int, str]:
        """The digits of the last batch by step."""
        return {step: str(event["batch"]) for step, event in self._of_kind("fingerprint") if "batch" in event}

    def _of_kind(self, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for event in self._events:
            if event.get("kind") == kind and isinstance(event.get("step"), int):
                yield event["step"], event


def _tensors(event: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    """The digits of each tensor; those of the trees, if the names of their tensors are not known."""
    text = str(event.get("tensors", ""))
    if len(text) != _N_DIGITS * len(names):
        return {tree: str(event[tree]) for tree in _TREES if tree in event}
    starts = range(0, len(text), _N_DIGITS)
    return {name: text[start : start + _N_DIGITS] for name, start in zip(names, starts, strict=True)}


def compare_runs(first: RunRecord, second: RunRecord, *, tolerance: float | None = None) -> Comparison:
    """Compares two runs at the steps that both tell of.

    Args:
        tolerance: How far losses may be from each other, as a share; then states and other metrics are not compared,
            and batches still have to be equal. The default is that all is equal to the bit.
    """
    is_exact = tolerance is None
    steps = {*first.metrics, *first.fingerprints}, {*second.metrics, *second.fingerprints}
    if not steps[0] & steps[1]:
        raise ArgumentError(
            f"`{first.model_dir}` and `{second.model_dir}` have no step in common: {_told(steps[0])}, and "
            f"{_told(steps[1])}. Runs can be compared that report at the same steps (trainer.steps_per_loop)."
        )
    last_step = max(steps[0] & steps[1])
    return Comparison(
        config=_diff_configs(first.model_dir, second.model_dir),
        last_step=last_step,
        n_fingerprints=len(first.fingerprints.keys() & second.fingerprints.keys()),
        n_summaries=len(first.metrics.keys() & second.metrics.keys()),
        tensors=_first_differences(
            first.fingerprints,
            second.fingerprints,
            is_compared=lambda name: is_exact or name.startswith("batch"),
            is_same=lambda one, other: one == other,
        ),
        metrics=_first_differences(
            first.metrics,
            second.metrics,
            is_compared=lambda name: is_exact or name.rpartition("/")[2] == "loss",
            is_same=lambda one, other: _is_near(one, other, tolerance or 0.0),
        ),
        lonely_steps=tuple(sorted(step for step in steps[0] ^ steps[1] if step <= last_step)),
    )


def _told(steps: set[int]) -> str:
    return f"one tells of the steps {min(steps)} to {max(steps)}" if steps else "one tells of none"


def _is_near(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return False
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=tolerance)


def _first_differences(
    first: Mapping[int, Mapping[str, Any]],
    second: Mapping[int, Mapping[str, Any]],
    *,
    is_compared: Callable[[str], bool],
    is_same: Callable[[Any, Any], bool],
) -> tuple[Difference, ...]:
    for step in sorted(first.keys() & second.keys()):
        one, other = first[step], second[step]
        names = filter(is_compared, dict.fromkeys([*one, *other]))
        differences = [
            Difference(step, name, one.get(name), other.get(name))
            for name in names
            if not is_same(one.get(name), other.get(name))
        ]
        if differences:
            return tuple(differences)
    return ()


def _diff_configs(first: Path, second: Path) -> str:
    files = [directory / "params.yaml" for directory in (first, second)]
    if not all(file.is_file() for file in files):
        return ""
    return diff_configs(*map(str, files)).removesuffix("\n")
