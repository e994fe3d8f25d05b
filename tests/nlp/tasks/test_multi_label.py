"""The task of any number of labels: loss and scores, models of Hugging Face's, answers."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import sklearn.metrics

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.nlp.data.small_text import write_vocabulary
from tests.nlp.tasks.small import LENGTH, bound, encoder, sequences, validated
from tests.nlp.tasks.test_fine_tuned import fine_tuned
from trellis.bridges import read_hugging_face, write_hugging_face
from trellis.errors import ConfigError
from trellis.nlp.answers import LabelsAnswerer, load_predictor
from trellis.nlp.data import MultiLabelDataConfig
from trellis.nlp.tasks import MultiLabelConfig, MultiLabelModelConfig, read_hugging_face_experiment
from trellis.nlp.tasks.sentence_metrics import multi_label_scores
from trellis.tasks import get_task

NAMES = ["joy", "love", "rage"]


def config(**changes: Any) -> MultiLabelConfig:
    data = MultiLabelDataConfig(seq_length=LENGTH, text_fields=["text"])
    settings: dict[str, Any] = {
        "model": MultiLabelModelConfig(encoder=encoder()),
        "class_names": NAMES,
        "train_data": data,
        "validation_data": data.replace(is_training=False),
    }
    return MultiLabelConfig(**settings | changes)


def test_loss_and_scores_are_those_of_scikit_learn() -> None:
    labels = np.random.default_rng(0).integers(0, 2, (9, 3)).astype(np.int8)
    batch = {**sequences(9), "label_ids": labels}
    task = get_task(config(threshold=0.4))
    model = bound(task, batch)
    logs = validated(task, model, batch)
    chances = np.asarray(jax.nn.sigmoid(jax.jit(model.model.apply)({"params": model.params}, batch)), np.float64)
    losses = [sklearn.metrics.log_loss(labels[:, place], chances[:, place]) for place in range(3)]
    assert float(logs["loss"].compute()) == pytest.approx(np.mean(losses), rel=1e-5)
    assert float(logs["label_accuracy"].compute()) == pytest.approx(np.mean((chances >= 0.4) == labels))
    np.testing.assert_array_equal(logs["predicted"], chances >= 0.4)
    parts = [
        {name: np.asarray(logs[name])[rows] for name in ("predicted", "labels")} for rows in (slice(5), slice(5, 9))
    ]
    scores = task.reduce_aggregated_logs(task.aggregate_logs(task.aggregate_logs(None, parts[0]), parts[1]))
    assert scores == multi_label_scores(chances >= 0.4, labels=labels == 1)


def test_scores_of_random_labels_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(1)
    labels, predicted = (random.integers(0, 2, (40, 5)) == 1 for _ in range(2))
    labels[:, 4] = predicted[:, 4] = False
    scores = multi_label_scores(predicted, labels=labels)
    for average in ("micro", "macro"):
        theirs = sklearn.metrics.f1_score(labels, predicted, average=average, zero_division=0)
        assert scores[f"{average}_f1"] == pytest.approx(theirs)
    assert scores["exact_match"] == sklearn.metrics.accuracy_score(labels, predicted)


def test_a_threshold_is_a_probability() -> None:
    with pytest.raises(ConfigError, match="task.threshold is 1.5, but it is a probability."):
        get_task(config(threshold=1.5))


def test_labels_are_those_of_the_training_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the cat", "labels": ["pet", "art"]}\n')
    paths = {"input_path": str(tmp_path / "a.jsonl"), "vocab_file": write_vocabulary(tmp_path / "vocab.txt")}
    data = MultiLabelDataConfig(seq_length=LENGTH, text_fields=["text"], global_batch_size=1, **paths)
    task = get_task(config(class_names=None, train_data=data))
    assert task.task_config.class_names == ["art", "pet"]
    assert list(task.plan_notes())[-1] == "labels: art (1), pet (1)"
    assert task.build_inputs(data).batch(0)["label_ids"].tolist() == [[1, 1]]


def test_a_model_of_hugging_face_is_asked_and_written_again(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in", problem_type="multi_label_classification")
    fields, params = read_hugging_face(directory)
    assert "sentence_prediction" not in params
    predictor = load_predictor(directory, params=read_hugging_face_experiment(directory))
    (answer,) = predictor([("the cat sat",)])
    chances = answer.values["probabilities"]
    assert list(chances) == ["bad", "good"]
    assert answer.values["labels"] == [name for name, chance in chances.items() if chance >= 0.5]
    parts = {name: params[name] for name in ("encoder", "multi_label")}
    write_hugging_face(tmp_path / "out", config=fields, params=parts, label_names=["bad", "good"])
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["problem_type"] == "multi_label_classification"
    assert written["architectures"] == ["BertForSequenceClassification"]
    jax.tree.map(np.testing.assert_array_equal, read_hugging_face(tmp_path / "out")[1], parts)


def test_labels_are_told_with_their_probabilities() -> None:
    prediction = LabelsAnswerer(8, NAMES)._prediction(("so good",), np.array([0.9, 0.6, 0.2]))
    assert prediction.text == "joy (90%), love (60%)  so good"
    assert prediction.values["labels"] == ["joy", "love"]
    assert LabelsAnswerer(8, NAMES)._prediction(("hm",), np.zeros(3)).text == "(no label)  hm"
