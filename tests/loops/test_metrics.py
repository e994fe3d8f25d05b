"""Metrics whose states merge: any split of the data gives the number of the whole."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef, top_k_accuracy_score

import trellis
from trellis.loops import weighted_mean


def scores_and_labels(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(60, n_classes)).astype(np.float32), random.integers(n_classes, size=60).astype(np.int32)


@pytest.mark.parametrize("n_best", [1, 3])
def test_accuracy_is_the_share_of_labels_among_the_best(n_best: int) -> None:
    scores, labels = scores_and_labels(5)
    expected = top_k_accuracy_score(labels, scores, k=n_best)
    np.testing.assert_allclose(trellis.Accuracy(n_best=n_best)(scores, labels).compute(), expected, rtol=1e-6)


def test_of_equal_scores_the_first_class_counts_as_for_argmax() -> None:
    scores, labels = jnp.zeros((2, 4)), jnp.array([0, 1])
    assert float(trellis.Accuracy()(scores, labels).compute()) == 0.5


def test_weights_leave_out_what_is_masked() -> None:
    scores, labels = scores_and_labels(5)
    weights = np.arange(60) < 30
    whole = trellis.Accuracy()(scores, labels, weights)
    half = trellis.Accuracy()(scores[:30], labels[:30])
    assert (float(whole.total), float(whole.weight)) == (float(half.total), float(half.weight))
    assert float(weighted_mean(jnp.array([1.0, 5.0]), jnp.array([3, 1])).compute()) == 2.0


@pytest.mark.parametrize(
    ("metric", "reference"), [(trellis.F1, f1_score), (trellis.MatthewsCorrelation, matthews_corrcoef)]
)
def test_scores_of_a_decision_merge_to_those_of_the_whole(metric: Any, reference: Any) -> None:
    scores, labels = scores_and_labels(2)
    parts = [metric.of(scores[start : start + 25], labels[start : start + 25]) for start in (0, 25, 50)]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    np.testing.assert_allclose(merged.compute(), reference(labels, scores.argmax(-1)), rtol=1e-5)


def test_a_class_that_is_never_said_gives_zero_and_not_nan() -> None:
    scores, labels = jnp.array([[1.0, 0.0]] * 3), jnp.array([0, 0, 0])
    assert float(trellis.F1.of(scores, labels).compute()) == 0.0
    assert float(trellis.MatthewsCorrelation.of(scores, labels).compute()) == 0.0


def test_a_score_of_two_classes_is_made_without_counts_as_accuracy_is() -> None:
    scores, labels = scores_and_labels(2)
    assert float(trellis.F1()(scores, labels).compute()) == float(trellis.F1.of(scores, labels).compute())
