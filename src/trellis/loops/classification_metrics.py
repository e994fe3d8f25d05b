"""Metrics of classes: how often the right one was said."""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from flax import struct

from trellis.aliases import Array
from trellis.loops.metrics import Mean, weighted_mean


@dataclass(frozen=True)
class Accuracy:
    """The share of labels that are among the `n_best` classes with the highest scores.

    Example:
        EvalTask(apply=model.apply, metrics={"accuracy": Accuracy(), "top_5": Accuracy(n_best=5)}, data=stream)
    """

    n_best: int = 1

    def __call__(self, scores: Array, labels: Array, weights: Array | None = None) -> Mean:
        """The accuracy on a batch.

        Args:
            scores: Of each class along the last axis.
            labels: The right classes, as integers.
            weights: Of each label; one, if not given.
        """
        of_label = jnp.take_along_axis(scores, jnp.expand_dims(labels, -1), axis=-1)
        # Of two classes with equal scores the first is the better one, as for argmax.
        classes = jax.lax.broadcasted_iota(labels.dtype, scores.shape, scores.ndim - 1)
        earlier = classes < jnp.expand_dims(labels, -1)
        n_better = jnp.sum((scores > of_label) | ((scores == of_label) & earlier), axis=-1)
        return weighted_mean(n_better < self.n_best, weights)


@struct.dataclass
class Confusion:
    """How often each of two classes was said, by what was right: the counts that scores of a binary decision need.

    One without counts is a metric function, as `Accuracy()` is; so is `of`.
    """

    true_positives: Array | float = 0.0
    false_positives: Array | float = 0.0
    true_negatives: Array | float = 0.0
    false_negatives: Array | float = 0.0

    def __call__(self, scores: Array, labels: Array, weights: Array | None = None) -> Self:
        """The counts of a batch, as `of` has them."""
        return self.of(scores, labels, weights)

    @classmethod
    def of(cls, scores: Array, labels: Array, weights: Array | None = None) -> Self:
        """The counts of a batch: scores of two classes along the last axis, labels 0 and 1."""
        is_said, is_right = jnp.argmax(scores, axis=-1) == 1, labels == 1
        weight = jnp.ones(labels.shape) if weights is None else jnp.asarray(weights, jnp.float32)
        pairs = ((is_said, is_right), (is_said, ~is_right), (~is_said, ~is_right), (~is_said, is_right))
        return cls(*(jnp.sum((chosen & right) * weight) for chosen, right in pairs))

    def merge(self, other: Self) -> Self:
        """The counts of what both have seen."""
        merged: Self = jax.tree.map(jnp.add, self, other)
        return merged


@struct.dataclass
class F1(Confusion):
    """The harmonic mean of precision and recall of class 1.

    Example:
        EvalTask(apply=model.apply, metrics={"f1": F1()}, data=stream)
    """

    def compute(self) -> Array:
        """The score; 0 if class 1 was neither said nor right."""
        wrong = self.false_positives + self.false_negatives
        return _ratio(2 * self.true_positives, 2 * self.true_positives + wrong)


@struct.dataclass
class MatthewsCorrelation(Confusion):
    """The correlation of what was said with what was right, for two classes."""

    def compute(self) -> Array:
        """The correlation, from -1 to 1; 0 if one class was never said or never right."""
        tp, fp, tn, fn = self.true_positives, self.false_positives, self.true_negatives, self.false_negatives
        squared = _ratio(tp, tp + fp) * _ratio(tp, tp + fn) * _ratio(tn, tn + fp) * _ratio(tn, tn + fn)
        others = _ratio(fp, tp + fp) * _ratio(fn, tp + fn) * _ratio(fp, tn + fp) * _ratio(fn, tn + fn)
        return jnp.sqrt(squared) - jnp.sqrt(others)


def _ratio(part: Array | float, whole: Array | float) -> Array:
    return part / jnp.where(whole == 0, 1, whole)
