"""The points of a metric, of which a long run has more than anyone can look at."""

import math
from typing import NamedTuple

_MOST_POINTS = 1000


class Point(NamedTuple):
    """A value, and when it was measured."""

    step: int
    time: float
    """In seconds since 1970."""
    value: float


class Curve:
    """The points of one metric in order; of a long run the lowest and the highest of every stretch are kept.

    What it holds is bounded, whatever comes; the lowest and the highest of all, the last one, and of each stretch one
    that is no number are always among it. A step that is not after the last one replaces all from it on, as a run does
    that goes back to a checkpoint.

    Example:
        curve = Curve()
        curve.append(Point(100, time.time(), 0.5))
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._stretch: list[Point] = []
        self._n_in_stretch = 1
        self._last: Point | None = None

    def append(self, point: Point) -> None:
        """Adds the next point."""
        if self._last is not None and point.step <= self._last.step:
            self._points = [one for one in self._points if one.step < point.step]
            self._stretch = [one for one in self._stretch if one.step < point.step]
        self._last = point
        self._stretch.append(point)
        if len(self._stretch) < self._n_in_stretch:
            return
        self._points += _extremes(self._stretch)
        self._stretch = []
        if len(self._points) >= 2 * _MOST_POINTS:
            self._points = _halved(self._points)
            # Two points stand for each stretch, so that four of them are two stretches.
            self._n_in_stretch = 4 if self._n_in_stretch == 1 else 2 * self._n_in_stretch

    @property
    def last(self) -> Point:
        """The last point; a curve has one when it has any."""
        assert self._last is not None
        return self._last

    def points(self, *, n_most: int = 2 * _MOST_POINTS) -> list[Point]:
        """The points that are kept, in order, with the very last one.

        Args:
            n_most: How many there may be, about.
        """
        points = [*self._points, *_extremes(self._stretch)]
        while len(points) > max(n_most, 4):
            points = _halved(points)
        return points if self._last is None or points[-1] == self._last else [*points, self._last]

    def best(self, *, is_lower_better: bool) -> Point | None:
        """The first of the points with the best value; None if no value is a finite number."""
        finite = [point for point in self.points() if math.isfinite(point.value)]
        choose = min if is_lower_better else max
        return choose(finite, key=_value) if finite else None


def _halved(points: list[Point]) -> list[Point]:
    fours = (points[i : i + 4] for i in range(0, len(points), 4))
    return [point for four in fours for point in _extremes(four)]


def _extremes(points: list[Point]) -> list[Point]:
    """The lowest and the highest of some points, in their order, and one that is no number if there is one."""
    if len(points) < 3:
        return list(points)
    numbers = [point for point in points if math.isfinite(point.value)]
    wild = next((point for point in points if not math.isfinite(point.value)), None)
    chosen = {min(numbers, key=_value), max(numbers, key=_value)} if numbers else set()
    return sorted(chosen | ({wild} if wild else set()))


def _value(point: Point) -> float:
    return point.value
