"""What a task has built to measure with: each metric with a name, called or, as in published tasks, updated."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import jax
import numpy as np

from trellis.aliases import Array
from trellis.errors import ModelError, shown
from trellis.loops import Metric, MetricFunction, as_metric, is_metric_class

_COUNTERPARTS = {
    "SparseCategoricalAccuracy": "trellis.Accuracy()",
    "CategoricalAccuracy": "trellis.Accuracy()",
    "Accuracy": "trellis.Accuracy()",
    "SparseTopKCategoricalAccuracy": "trellis.Accuracy(n_best=5)",
    "TopKCategoricalAccuracy": "trellis.Accuracy(n_best=5)",
    "F1Score": "trellis.F1()",
    "AUC": "trellis.AUC()",
    "MeanSquaredError": "trellis.MeanSquaredError()",
    "MeanAbsoluteError": "trellis.MeanAbsoluteError()",
    "Mean": "trellis.loops.weighted_mean",
}
"""By the names of Keras's metrics, which keep what they have seen in variables of their own."""


class BuiltMetric:
    """A metric function with its name: `metric(outputs, labels)` returns what it measures.

    A published task does not use what a metric returns, but updates it: `metric.update_state(labels, outputs)` keeps
    what is measured until the step is over, and then it counts as if the step had returned it.
    """

    def __init__(self, name: str, function: MetricFunction) -> None:
        self.name = name
        self.function = function
        self._states: list[Metric] = []

    def __call__(self, *outputs_and_targets: Any, **options: Any) -> Array | Metric:
        """What the function measures on a batch."""
        return self.function(*outputs_and_targets, **options)

    def update_state(self, *values: Any, sample_weight: Any = None) -> None:
        """Measures labels, outputs and by wish weights, in this order; a metric of values alone takes these."""
        labels_and_outputs, weights = values[:2], values[2:]
        if sample_weight is not None:
            weights = (sample_weight,)
        self.keep(self.function(*reversed(labels_and_outputs), *weights), n_examples=_length(values[0]))

    def keep(self, measured: Array | Metric, *, n_examples: int) -> None:
        """Has what was measured counted when the step is over."""
        self._states.append(as_metric(measured, n_examples, f"{self.name!r}"))

    @property
    def is_updated(self) -> bool:
        """Whether there is a result."""
        return bool(self._states)

    def result(self) -> Metric:
        """What it was updated with: sums and weights, until all batches are seen. `result().compute()` is a number."""
        if not self._states:
            raise ModelError(f"The metric {self.name!r} has no result: it was not updated. Call update_state before.")
        return reduce(lambda one, other: one.merge(other), self._states)

    def __getattr__(self, attribute: str) -> Any:
        # Only what a wrapper has not itself comes here.
        if attribute == "function":
            raise AttributeError(attribute)
        return getattr(self.function, attribute)


BuiltMetrics = dict[str, BuiltMetric] | list[BuiltMetric]
"""In the shape that the task has chosen."""


def name_metrics(metrics: Any, *, place: str) -> BuiltMetrics:
    """What `build_metrics` returned, each metric with its name: a mapping as a mapping, a list as a list.

    Args:
        place: What returned it, for errors.
    """
    if isinstance(metrics, Mapping):
        return {str(name): _built(name, metric, place) for name, metric in metrics.items()}
    if not isinstance(metrics, Sequence) or isinstance(metrics, str):
        kind = "nothing" if metrics is None else f"a {type(metrics).__name__}"
        raise ModelError(f"{place} returned {kind}. Return metrics by name: {{'accuracy': trellis.Accuracy()}}")
    named = [_built(_name_of(metric, place), metric, place) for metric in metrics]
    names = [metric.name for metric in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ModelError(
            f"{place} returned two metrics that are called {twice[0]!r}. Give each a name: "
            f"return {{{twice[0]!r}: …, {'second_' + twice[0]!r}: …}}"
        )
    return named


def renewed(metrics: BuiltMetrics) -> BuiltMetrics:
    """The same metrics, none of them updated yet: what another trace has left in them is of no use in this one."""
    if isinstance(metrics, dict):
        return {name: BuiltMetric(metric.name, metric.function) for name, metric in metrics.items()}
    return [BuiltMetric(metric.name, metric.function) for metric in metrics]


def all_metrics(metrics: BuiltMetrics) -> Sequence[BuiltMetric]:
    """The metrics, of either shape."""
    return list(metrics.values()) if isinstance(metrics, dict) else metrics


def measure(metrics: Any, *, labels: Any, outputs: Any, place: str) -> dict[str, Array | Metric]:
    """What metrics measure on a batch, by name; that is also their result.

    Args:
        place: What built them, for errors.
    """
    values = {}
    for metric in all_metrics(name_metrics(metrics, place=place)):
        values[metric.name] = metric(outputs, labels)
        metric.keep(values[metric.name], n_examples=_length(labels))
    return values


def results(metrics: BuiltMetrics) -> Iterator[tuple[str, Metric]]:
    """Yields the name and the result of each metric that was updated."""
    for metric in all_metrics(metrics):
        if metric.is_updated:
            yield metric.name, metric.result()


def _built(name: Any, metric: Any, place: str) -> BuiltMetric:
    if isinstance(metric, BuiltMetric):
        return metric
    if is_metric_class(metric):
        kind = metric.__name__
        raise ModelError(f"{place} returned the class {kind} as {str(name)!r}. Return one of it: {kind}()")
    if callable(getattr(metric, "update_state", None)):
        kind = type(metric).__name__
        function = _COUNTERPARTS.get(kind, "a function of (outputs, labels) that returns trellis.Mean(total, weight)")
        note = " (the area under the ROC curve)" if kind == "AUC" else ""
        raise ModelError(
            f"{place} returned Keras's {kind} as {str(name)!r}, which keeps what it has seen in variables: a step that "
            f"is compiled cannot change these. Return in its place: {{{str(name)!r}: {function}}}{note}"
        )
    if not callable(metric):
        raise ModelError(
            f"{place} returned {shown(metric)} as {str(name)!r}, which cannot be called. Return a function of "
            f"(outputs, labels), such as trellis.Accuracy()."
        )
    return BuiltMetric(str(name), metric)


def _name_of(metric: Any, place: str) -> str:
    """The name of a metric in a list: its own, or else that of its function or class."""
    name = getattr(metric, "name", None)
    if isinstance(name, str) and name:
        return name
    if inspect.isfunction(metric) and metric.__name__ != "<lambda>":
        return metric.__name__
    if isinstance(metric, type):
        return metric.__name__
    if type(metric).__module__ in ("builtins", "functools"):
        raise ModelError(
            f"{place} returned {shown(metric)} in a list, where nothing says what it is called. Return a mapping: "
            f"{{'accuracy': …}}"
        )
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()


def _length(values: Any) -> int:
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(values)]
    return next((int(shape[0]) for shape in shapes if shape), 1)
