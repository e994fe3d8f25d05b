"""Scores equal those of scikit-learn and scipy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from trellis.nlp.tasks.sentence_metrics import (
    average_precision,
    f1_score,
    matthews_corrcoef,
    pearson_correlation,
    spearman_correlation,
)

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
@pytest.mark.parametrize(
    ("ours", "theirs", "n_classes"),
    [
        (f1_score, sklearn.metrics.f1_score, 2),
        (matthews_corrcoef, sklearn.metrics.matthews_corrcoef, 2),
        (matthews_corrcoef, sklearn.metrics.matthews_corrcoef, 4),
    ],
)
def test_scores_of_classes_equal_scikit_learns(
    ours: Callable[..., float], theirs: Callable[..., Any], n_classes: int, n: int
) -> None:
    for _ in range(20):
        labels, predicted = RANDOM.integers(0, n_classes, (2, n))
        labels[:2] = (0, 1)
        predicted[:2] = (1, 1)
        assert ours(predicted, labels=labels) == pytest.approx(theirs(labels, predicted), abs=1e-12)


@pytest.mark.parametrize("n", [3, 10, 1500])
def test_correlations_equal_scipys_with_ties_too(n: int) -> None:
    for n_levels in (3, 10_000):
        labels, predicted = RANDOM.integers(0, n_levels, (2, n)).astype(np.float32)
        labels[:2] = predicted[:2] = (0, 1)
        assert pearson_correlation(predicted, labels=labels) == pytest.approx(
            scipy.stats.pearsonr(predicted, labels)[0]
        )
        assert spearman_correlation(predicted, labels=labels) == pytest.approx(
            scipy.stats.spearmanr(predicted, labels)[0]
        )


@pytest.mark.parametrize("n_levels", [3, 10_000])
def test_the_area_under_precision_and_recall_equals_scikit_learns(n_levels: int) -> None:
    scores, labels = RANDOM.integers(0, n_levels, 300) / n_levels, RANDOM.integers(0, 2, 300)
    expected = sklearn.metrics.average_precision_score(labels, scores)
    assert average_precision(scores, labels=labels) == pytest.approx(expected)


def test_what_cannot_be_told_apart_scores_zero() -> None:
    same, labels = np.zeros(4, np.int64), np.array([0, 1, 0, 1])
    assert f1_score(same, labels=same) == 0.0
    assert matthews_corrcoef(same, labels=labels) == 0.0
    assert pearson_correlation(same, labels=labels) == spearman_correlation(same, labels=labels) == 0.0
    assert average_precision(same, labels=same) == 0.0
