"""Metrics whose states merge: any split of the data gives the number of the whole."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import (
    f1_score,
    log_loss,
    matthews_corrcoef,
    mean_absolute_error,
    mean_squared_error,
    roc_auc_score,
    top_k_accuracy_score,
)

import trellis
from tests import tiny
from trellis.errors import ModelError
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


@pytest.mark.parametrize("row", [[np.nan, np.nan, np.nan], [np.nan, 0.0, 1.0]])
def test_scores_that_are_no_numbers_are_never_right(row: list[float]) -> None:
    scores = np.array([row, [0.0, 1.0, 2.0]])
    assert float(trellis.Accuracy()(scores, np.array([2, 2])).compute()) == 0.5
    assert float(trellis.Accuracy()(scores, np.array([2, 2]), np.array([1.0, 0.0])).compute()) == 0


def test_a_score_of_two_classes_is_made_without_counts_as_accuracy_is() -> None:
    scores, labels = scores_and_labels(2)
    assert float(trellis.F1()(scores, labels).compute()) == float(trellis.F1.of(scores, labels).compute())


def merged(metric: Any, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The value of a metric over parts of the data, from a state that has seen nothing."""
    parts = [slice(0, 7), slice(7, 40), slice(40, None)]
    states = [metric(scores[part], labels[part], None if weights is None else weights[part]) for part in parts]
    total = jax.tree.map(jnp.zeros_like, states[0])
    for state in states:
        total = total.merge(state)
    return float(total.compute())


def positive(scores: np.ndarray) -> np.ndarray:
    return scores[:, 1] - scores[:, 0]


def log_loss_exponential(labels: np.ndarray, scores: np.ndarray, sample_weight: np.ndarray | None) -> float:
    return float(np.exp(log_loss(labels, np.asarray(jax.nn.softmax(scores)), sample_weight=sample_weight)))


def macro_f1(labels: np.ndarray, scores: np.ndarray, sample_weight: np.ndarray | None) -> float:
    return float(f1_score(labels, scores.argmax(-1), average="macro", sample_weight=sample_weight))


def area(labels: np.ndarray, scores: np.ndarray, sample_weight: np.ndarray | None) -> float:
    return float(roc_auc_score(labels, positive(scores), sample_weight=sample_weight))


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize(
    ("metric", "reference", "n_classes"),
    [
        (trellis.MacroF1(), macro_f1, 5),
        (trellis.MacroF1(), macro_f1, 90),  # of which some are neither said nor right
        (trellis.AUC(), area, 2),
        (trellis.Perplexity(), log_loss_exponential, 5),
    ],
)
def test_metrics_of_classes_are_those_of_scikit_learn_over_any_split(
    metric: Any, reference: Any, n_classes: int, is_weighted: bool
) -> None:
    scores, labels = scores_and_labels(n_classes)
    weights = np.random.default_rng(1).random(60).astype(np.float32) if is_weighted else None
    np.testing.assert_allclose(merged(metric, scores, labels, weights), reference(labels, scores, weights), rtol=2e-5)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("shape", [(60,), (60, 3)])
@pytest.mark.parametrize(
    ("metric", "reference"),
    [
        (trellis.MeanAbsoluteError(), mean_absolute_error),
        (trellis.MeanSquaredError(), mean_squared_error),
    ],
)
def test_errors_of_numbers_are_those_of_scikit_learn_over_any_split(
    metric: Any, reference: Any, shape: tuple[int, ...], is_weighted: bool
) -> None:
    random = np.random.default_rng(0)
    predictions, targets = random.normal(size=(2, *shape)).astype(np.float32)
    weights = random.random(60).astype(np.float32) if is_weighted else None
    expected = reference(targets, predictions, sample_weight=weights)
    np.testing.assert_allclose(merged(metric, predictions, targets, weights), expected, rtol=1e-5)


def test_a_last_axis_of_one_is_not_compared_with_all_targets() -> None:
    predictions, targets = jnp.arange(4.0)[:, None], jnp.arange(4.0)
    assert float(trellis.MeanAbsoluteError()(predictions, targets).compute()) == 0.0
    with pytest.raises(ModelError, match=r"shape \(4, 1\) are measured against targets of shape \(2, 2\)"):
        trellis.MeanSquaredError()(predictions, jnp.ones((2, 2)))


@pytest.mark.parametrize(
    ("kind", "scale"), [("scores", 1e-3), ("scores", 1), ("scores", 30), ("probabilities", 1), ("probabilities", 5)]
)
def test_an_area_from_bins_is_exact_enough_for_any_scale_of_scores(kind: str, scale: float) -> None:
    random = np.random.default_rng(0)
    labels = (random.random(20_000) < 0.1).astype(np.int32)
    scores = (random.normal(size=20_000) + labels - 3).astype(np.float32) * np.float32(scale)
    scores = scores if kind == "scores" else np.asarray(jax.nn.sigmoid(scores))
    np.testing.assert_allclose(trellis.AUC()(scores, labels).compute(), roc_auc_score(labels, scores), atol=2e-4)


def test_an_area_needs_both_classes_and_two_of_them() -> None:
    scores, labels = scores_and_labels(2)
    assert np.isnan(trellis.AUC()(scores, jnp.ones_like(labels)).compute())
    assert float(trellis.AUC()(jnp.zeros(60), labels).compute()) == 0.5
    assert float(trellis.AUC()(jnp.array([-jnp.inf, jnp.inf]), jnp.array([0, 1])).compute()) == 1.0
    with pytest.raises(ModelError, match=r"scores of 3 classes.*labels == k"):
        trellis.AUC()(jnp.zeros((60, 3)), labels)


def test_more_metrics_are_evaluated_in_a_loop() -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    x, y = tiny.examples()
    names = {"macro_f1": trellis.MacroF1(), "perplexity": trellis.Perplexity()}
    binary = trellis.EvalTask(
        apply=lambda variables, x, **options: tiny.Classifier().apply(variables, x)[:, 1],
        metrics={"auc": trellis.AUC(), "mae": trellis.MeanAbsoluteError()},
        data=trellis.ExampleStream((x, (y == 1).astype(np.int32)), batch_size=100, n_epochs=1),
    )
    task = trellis.EvalTask(apply=tiny.Classifier().apply, metrics=names, data=tiny.stream(100, n_epochs=1))
    logits = np.asarray(tiny.Classifier().apply({"params": checkpoint.model_params}, x))
    values = trellis.EvalLoop(task=task)(checkpoint).metrics["eval"]
    assert values["macro_f1"] == pytest.approx(f1_score(y, logits.argmax(-1), average="macro"), rel=1e-5)
    assert values["perplexity"] == pytest.approx(float(np.exp(tiny.cross_entropy(logits, y))), rel=1e-5)
    values = trellis.EvalLoop(task=binary)(checkpoint).metrics["eval"]
    assert values["auc"] == pytest.approx(roc_auc_score(y == 1, logits[:, 1]), abs=2e-4)


def test_small_labels_do_not_wrap_among_many_classes() -> None:
    # All scores are equal, so that the first class is the best one, and the label is the 201st.
    accuracy = trellis.Accuracy(n_best=220)(jnp.zeros((1, 300)), jnp.array([200], jnp.uint8))
    assert float(accuracy.compute()) == 1
