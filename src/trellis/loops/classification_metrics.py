"""Metrics of classes, how often the right one was said, and of numbers, how far off they were."""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from flax import struct

from trellis.aliases import Array
from trellis.errors import ModelError
from trellis.loops.metrics import Mean, weighted_mean
from trellis.runtime import pick, sum_rows


def cross_entropy(logits: Array, labels: Array) -> Array:
    """The cross-entropy of each label: logits of each class along the last axis, the right classes as integers.

    It is what `optax.softmax_cross_entropy_with_integer_labels` computes, with a gradient that GPUs add up quickly and
    in the same order each time.
    """
    return jax.nn.logsumexp(logits, axis=-1) - pick(logits, labels)


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
        classes = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
        earlier = classes < jnp.expand_dims(labels, -1)
        # Scores that are no numbers are better than any: a model that has blown up is never right.
        n_better = jnp.sum(~(scores <= of_label) | ((scores == of_label) & earlier), axis=-1)
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


@struct.dataclass
class MacroF1:
    """The mean over all classes of their F1, each class counting the same; one without counts is a metric function.

    A class that was neither said nor right is left out, as scikit-learn does.

    Example:
        EvalTask(apply=model.apply, metrics={"macro_f1": MacroF1()}, data=stream)
    """

    true_positives: Array | float = 0.0
    """Of each class, as the others."""
    n_said: Array | float = 0.0
    n_right: Array | float = 0.0

    def __call__(self, scores: Array, labels: Array, weights: Array | None = None) -> "MacroF1":
        """The counts of a batch: scores of each class along the last axis, the right classes as integers."""
        n_classes = scores.shape[-1]
        weight = jnp.ones(labels.shape) if weights is None else jnp.broadcast_to(weights, labels.shape)
        said = jax.nn.one_hot(jnp.argmax(scores, axis=-1), n_classes) * weight[..., None]
        right = jax.nn.one_hot(labels, n_classes)
        axes = tuple(range(labels.ndim))
        return MacroF1((said * right).sum(axes), said.sum(axes), (right * weight[..., None]).sum(axes))

    def merge(self, other: "MacroF1") -> "MacroF1":
        """The counts of what both have seen."""
        merged: MacroF1 = jax.tree.map(jnp.add, self, other)
        return merged

    def compute(self) -> Array:
        """The score, from 0 to 1; 0 if nothing was seen."""
        n_both = jnp.asarray(self.n_said + self.n_right)
        return _ratio(_ratio(2 * self.true_positives, n_both).sum(), (n_both > 0).sum())


@struct.dataclass
class AUC:
    """How often an example of class 1 has a higher score than one of class 0: the area under the ROC curve.

    Scores are counted in bins, so that counts of parts add up: two scores that differ by less than a thousandth of
    themselves may share one, and a tie counts as half. One without counts is a metric function.

    Example:
        EvalTask(apply=model.apply, metrics={"auc": AUC()}, data=stream)
    """

    positives: Array | float = 0.0
    """The weight of the examples of class 1 in each bin, from the lowest scores to the highest."""
    negatives: Array | float = 0.0

    def __call__(self, scores: Array, labels: Array, weights: Array | None = None) -> "AUC":
        """The counts of a batch.

        Args:
            scores: Of class 1, one for each label; or of two classes along the last axis. Logits are told apart better
                than probabilities, many of which are close to 1.
            labels: 0 or 1.
            weights: Of each label; one, if not given.
        """
        scores = jnp.asarray(scores, jnp.float32)
        labels = jnp.asarray(labels)
        if scores.ndim == labels.ndim + 1:
            if scores.shape[-1] not in (1, 2):
                raise ModelError(
                    f"AUC was given scores of {scores.shape[-1]} classes, but it is about two. Give scores[..., k] "
                    f"and labels == k for each class k that is of interest."
                )
            scores = scores[..., -1] if scores.shape[-1] == 1 else scores[..., 1] - scores[..., 0]
        if scores.shape != labels.shape:
            raise ModelError(f"AUC was given scores of shape {scores.shape} and labels of shape {labels.shape}.")
        weight = jnp.ones(labels.shape) if weights is None else jnp.broadcast_to(weights, labels.shape)
        bins = _bin_of(scores)
        weight = weight.astype(jnp.float32)
        return AUC(sum_rows(weight * (labels == 1), bins, _N_BINS), sum_rows(weight * (labels != 1), bins, _N_BINS))

    def merge(self, other: "AUC") -> "AUC":
        """The counts of what both have seen."""
        return AUC(self.positives + other.positives, self.negatives + other.negatives)

    def compute(self) -> Array:
        """The area, from 0 to 1, 0.5 for scores that tell nothing; NaN if one of the classes was not seen."""
        positives, negatives = jnp.asarray(self.positives), jnp.asarray(self.negatives)
        shares = negatives / negatives.sum()
        # Shares, and not counts: a product of large counts would not fit float32.
        n_below = jnp.cumsum(shares) - shares / 2
        return (positives / positives.sum() * n_below).sum()


# A score's bin is made of the first bits of its float: the sign, of the exponent what lies between 2**-40 and 2**24,
# and ten bits of the mantissa. So bins are finest around zero, whatever the scale of the scores.
_MANTISSA_BITS = 10
_EXPONENTS = (127 - 40, 127 + 24)
_N_BINS_OF_SIGN = (_EXPONENTS[1] - _EXPONENTS[0]) << _MANTISSA_BITS
_N_BINS = 2 * _N_BINS_OF_SIGN + 1


def _bin_of(scores: Array) -> Array:
    bits = jax.lax.bitcast_convert_type(jnp.abs(scores), jnp.int32) >> (23 - _MANTISSA_BITS)
    distance = jnp.clip(bits - (_EXPONENTS[0] << _MANTISSA_BITS) + 1, 0, _N_BINS_OF_SIGN)
    return _N_BINS_OF_SIGN + jnp.where(scores < 0, -distance, distance)


@struct.dataclass
class Perplexity:
    """The exponential of the mean cross-entropy: among how many equally likely classes a model hesitates.

    One that has seen nothing is a metric function.

    Example:
        EvalTask(apply=model.apply, metrics={"perplexity": Perplexity()}, data=stream)
    """

    cross_entropy: Mean | None = None

    def __call__(self, scores: Array, labels: Array, weights: Array | None = None) -> "Perplexity":
        """The cross-entropy of a batch: logits of each class along the last axis, the right classes as integers."""
        log_likelihoods = jnp.take_along_axis(
            jax.nn.log_softmax(jnp.asarray(scores, jnp.float32)), jnp.expand_dims(labels, -1), axis=-1
        )
        return Perplexity(weighted_mean(-log_likelihoods[..., 0], weights))

    def merge(self, other: "Perplexity") -> "Perplexity":
        """The cross-entropy of what both have seen."""
        if self.cross_entropy is None or other.cross_entropy is None:
            return self if other.cross_entropy is None else other
        return Perplexity(self.cross_entropy.merge(other.cross_entropy))

    def compute(self) -> Array:
        """The perplexity; NaN if nothing was seen."""
        return jnp.exp(jnp.float32(jnp.nan) if self.cross_entropy is None else self.cross_entropy.compute())


@dataclass(frozen=True)
class MeanAbsoluteError:
    """The mean of the distances between predictions and targets.

    Example:
        EvalTask(apply=model.apply, metrics={"mae": MeanAbsoluteError(), "mse": MeanSquaredError()}, data=stream)
    """

    def __call__(self, predictions: Array, targets: Array, weights: Array | None = None) -> Mean:
        """The error on a batch: one weight for each target, or for each example; one, if not given."""
        return _mean_over_targets(jnp.abs(_differences(predictions, targets)), weights)


@dataclass(frozen=True)
class MeanSquaredError:
    """The mean of the squared differences between predictions and targets."""

    def __call__(self, predictions: Array, targets: Array, weights: Array | None = None) -> Mean:
        """The error on a batch: one weight for each target, or for each example; one, if not given."""
        return _mean_over_targets(jnp.square(_differences(predictions, targets)), weights)


def _differences(predictions: Array, targets: Array) -> Array:
    predictions = jnp.asarray(predictions, jnp.float32)
    targets = jnp.asarray(targets, jnp.float32)
    # A model's last layer of one unit has an axis that targets often lack; to broadcast it would compare all with all.
    if predictions.shape == (*targets.shape, 1):
        predictions = predictions[..., 0]
    if predictions.shape != targets.shape:
        raise ModelError(
            f"Predictions of shape {predictions.shape} are measured against targets of shape {targets.shape}. "
            f"Give both one shape."
        )
    return predictions - targets


def _mean_over_targets(errors: Array, weights: Array | None) -> Mean:
    if weights is not None:
        weights = jnp.asarray(weights)
        weights = weights.reshape(*weights.shape, *(1,) * (errors.ndim - weights.ndim))
    return weighted_mean(errors, weights)


def _ratio(part: Array | float, whole: Array | float) -> Array:
    return part / jnp.where(whole == 0, 1, whole)
