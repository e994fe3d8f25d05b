"""Scores of predictions on whole sets of sentences, as GLUE defines them; computed on the host."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]


def f1_score(predicted: Ints, *, labels: Ints) -> float:
    """The harmonic mean of precision and recall of class 1; 0 if there is no example of it on either side.

    Example:
        >>> f1_score(np.array([1, 1, 0, 0]), labels=np.array([1, 0, 1, 0]))
        0.5
    """
    n_right = np.sum((predicted == 1) & (labels == 1))
    n_positive = np.sum(predicted == 1) + np.sum(labels == 1)
    return float(2 * n_right / n_positive) if n_positive else 0.0


def matthews_corrcoef(predicted: Ints, *, labels: Ints) -> float:
    """The correlation of two classifications, of any number of classes; 0 if either has one class only."""
    n_classes = int(max(predicted.max(), labels.max())) + 1
    counts = np.bincount(labels * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)
    of_labels = counts.sum(axis=1, dtype=np.float64)
    of_predicted = counts.sum(axis=0, dtype=np.float64)
    n = of_labels.sum()
    covariance = n * np.trace(counts) - of_labels @ of_predicted
    spread = (n**2 - of_predicted @ of_predicted) * (n**2 - of_labels @ of_labels)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


def pearson_correlation(predicted: Floats, *, labels: Floats) -> float:
    """The linear correlation; 0 if either side is constant."""
    x, y = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (predicted, labels))
    spread = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / spread) if spread else 0.0


def spearman_correlation(predicted: Floats, *, labels: Floats) -> float:
    """The linear correlation of the ranks."""
    return pearson_correlation(_ranks(predicted), labels=_ranks(labels))


def average_precision(scores: Floats, *, labels: Ints) -> float:
    """The area under the curve of precision over recall, in steps; 0 if nothing is of class 1."""
    order = np.argsort(-scores, kind="stable")
    is_right = labels[order] == 1
    if not is_right.any():
        return 0.0
    # Examples of equal scores are one point of the curve, after the last of them.
    lasts = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    n_right = np.cumsum(is_right)[lasts]
    gains = np.diff(n_right, prepend=0) / is_right.sum()
    return float(np.sum(gains * n_right / (lasts + 1)))


def multi_label_scores(predicted: NDArray[np.bool_], *, labels: NDArray[np.bool_]) -> dict[str, float]:
    """The F1 of all labels together, the mean of their F1, and the share of rows that have all labels right.

    A label that is neither given nor right has an F1 of 0, as in scikit-learn.

    Args:
        predicted: Of shape (rows, labels), as the others.
    """
    n_right = np.sum(predicted & labels, axis=0)
    n_either = predicted.sum(axis=0) + labels.sum(axis=0)
    of_labels = 2 * n_right / np.maximum(n_either, 1)
    return {
        "micro_f1": float(2 * n_right.sum() / max(n_either.sum(), 1)),
        "macro_f1": float(of_labels.mean()),
        "exact_match": float((predicted == labels).all(axis=1).mean()),
    }


def _ranks(values: Floats) -> Floats:
    """The place of each value in order, from 1; equal values have the mean of their places."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[group]
