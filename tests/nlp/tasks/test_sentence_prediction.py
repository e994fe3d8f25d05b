"""The sentence-prediction task: classes and numbers, scores of the whole set, settings that do not go together."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow
import pytest
import scipy.stats
import sklearn.metrics
from pyarrow import parquet

from tests.nlp.data.small_text import write_vocabulary
from tests.nlp.tasks.small import LENGTH, bound, encoder, one_step, part_of, sequences, validated
from trellis.config import origin_of
from trellis.data import cached_columns
from trellis.errors import ConfigError, DataError
from trellis.nlp.data import SentencePredictionDataConfig, SentencePredictionTextDataConfig
from trellis.nlp.tasks import SentencePredictionConfig, SentencePredictionModelConfig
from trellis.tasks import Task, get_task


def config(n_classes: int, *, metric: str = "accuracy", **changes: Any) -> SentencePredictionConfig:
    data = SentencePredictionDataConfig(seq_length=LENGTH, label_type="float" if n_classes == 1 else "int")
    settings: dict[str, Any] = {
        "metric_type": metric,
        "model": SentencePredictionModelConfig(num_classes=n_classes, encoder=encoder()),
        "train_data": data,
        "validation_data": data.replace(is_training=False),
    }
    return SentencePredictionConfig(**settings | changes)


def labelled(n: int, *, n_classes: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    labels = random.uniform(0, 5, n).astype(np.float32) if n_classes == 1 else random.integers(0, n_classes, n)
    return {**sequences(n), "label_ids": labels if n_classes == 1 else labels.astype(np.int32)}


def evaluated(task: Task, batch: dict[str, np.ndarray]) -> tuple[dict[str, float], np.ndarray]:
    """What is measured in two batches of different size, as an evaluation does it; and the logits."""
    model, totals, state = bound(task, batch), {}, None
    for rows in (slice(20), slice(20, None)):
        logs = validated(task, model, part_of(batch, rows))
        arrays = {name: np.asarray(logs.pop(name)) for name in ("logits", "labels", "input_word_ids")}
        totals = {name: totals[name].merge(metric) if totals else metric for name, metric in logs.items()}
        state = task.aggregate_logs(state, arrays)
    values = {name: float(metric.compute()) for name, metric in totals.items()}
    return values | task.reduce_aggregated_logs(state), np.concatenate([logits for logits, *_ in state])


@pytest.mark.parametrize(
    ("metric", "theirs"),
    [("f1", sklearn.metrics.f1_score), ("matthews_corrcoef", sklearn.metrics.matthews_corrcoef), ("accuracy", None)],
)
def test_two_classes_are_scored_as_scikit_learn_scores_them(metric: str, theirs: Any) -> None:
    batch = labelled(31, n_classes=2)
    values, logits = evaluated(get_task(config(2, metric=metric)), batch)
    labels, predicted = batch["label_ids"], logits.argmax(axis=1)
    assert values["cls_accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(labels, predicted))
    assert values["loss"] == pytest.approx(sklearn.metrics.log_loss(labels, _shares(logits)), rel=1e-5)
    area = sklearn.metrics.average_precision_score(labels, _shares(logits)[:, 1])
    assert values["auc"] == pytest.approx(area, rel=1e-3)
    if theirs is not None:
        assert values[metric] == pytest.approx(theirs(labels, predicted))


def test_numbers_are_scored_by_both_correlations_and_the_squared_error() -> None:
    batch = labelled(31, n_classes=1)
    values, logits = evaluated(get_task(config(1, metric="pearson_spearman_corr")), batch)
    pearson, spearman = (
        measure(logits[:, 0], batch["label_ids"])[0] for measure in (scipy.stats.pearsonr, scipy.stats.spearmanr)
    )
    assert values["pearson_spearman_corr"] == pytest.approx((pearson + spearman) / 2)
    error = sklearn.metrics.mean_squared_error(batch["label_ids"], logits[:, 0])
    assert values["mean_squared_error"] == values["loss"] == pytest.approx(error, rel=1e-5)


def test_three_classes_have_an_accuracy_and_no_area() -> None:
    values, _ = evaluated(get_task(config(3)), labelled(31, n_classes=3))
    assert set(values) == {"loss", "cls_accuracy"}


def test_a_step_changes_the_head_and_the_encoder() -> None:
    task = get_task(config(3))
    batch = labelled(8, n_classes=3)
    before, (after, output) = bound(task, batch).params, one_step(task, batch)
    assert set(before["sentence_prediction"]) == {"pooler_dense", "logits"}
    for part in ("sentence_prediction", "encoder"):
        changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), before[part], after.params[part])
        assert sum(jax.tree.leaves(changed)) > 1
    assert set(output.metrics) == {"cls_accuracy"}


@pytest.mark.parametrize(
    ("n_classes", "metric", "message"),
    [
        (0, "accuracy", "task.model.num_classes is 0, and there is no training data to count them in."),
        (-1, "accuracy", "task.model.num_classes is -1."),
        (1, "f1", "task.metric_type is f1, but task.model.num_classes is 1."),
        (2, "pearson_spearman_corr", "task.metric_type is pearson_spearman_corr, but task.model.num_classes is 2."),
        (3, "f1", "task.metric_type is f1, but task.model.num_classes is 3."),
    ],
)
def test_a_metric_that_does_not_fit_the_number_of_classes_is_refused(n_classes: int, metric: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_task(config(n_classes, metric=metric))


def test_numbers_are_scored_by_correlations_unless_another_metric_was_asked_for() -> None:
    filled = get_task(config(1)).task_config
    assert filled.metric_type == "pearson_spearman_corr"
    assert str(origin_of(filled, "metric_type")) == "task.model.num_classes=1"
    asked_for = config(1)
    asked_for.override({"metric_type": "accuracy"})
    with pytest.raises(ConfigError, match=r"num_classes is 1.(.|\n)*Set task.metric_type=pearson_spearman_corr."):
        get_task(asked_for)


def small_text(folder: Path) -> SentencePredictionTextDataConfig:
    (folder / "train.tsv").write_text("label\ttext\n0\tthe cat\n2\ta dog\n")
    return SentencePredictionTextDataConfig(
        input_path=str(folder / "train.tsv"),
        vocab_file=write_vocabulary(folder / "vocab.txt"),
        text_fields=["text"],
        global_batch_size=1,
        seq_length=LENGTH,
    )


def test_labels_beyond_the_classes_are_refused_before_the_first_step(tmp_path: Path) -> None:
    data = small_text(tmp_path)
    task = get_task(config(2, train_data=data))
    with pytest.raises(DataError, match=r"has the label 2 in example 1.*\(task.model.num_classes\)"):
        task.build_inputs(data)
    assert get_task(config(3, train_data=data)).build_inputs(data).n_examples == 2
    numbers = data.replace(label_type="float")
    rated = get_task(config(1, metric="pearson_spearman_corr", train_data=numbers))
    assert rated.build_inputs(numbers).n_examples == 2
    with pytest.raises(ConfigError, match="task.train_data.label_values names 3 classes, but .* is 2"):
        get_task(config(2, train_data=data.replace(label_values=["a", "b", "c"])))


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [
        (["no", "yes"], ["yes", "no"], r"validation_data.label_values is \['yes', 'no'\], but task.train"),
        (["no", "no"], None, "task.train_data.label_values has 'no' more than once.\n  Name each class once"),
        (None, ["yes", "yes"], "task.validation_data.label_values has 'yes' more than once."),
    ],
)
def test_names_of_classes_are_the_same_on_both_sides_and_each_there_once(
    tmp_path: Path, train: list[str] | None, validation: list[str] | None, message: str
) -> None:
    data = small_text(tmp_path)
    with pytest.raises(ConfigError, match=message):
        get_task(
            config(
                2, train_data=data.replace(label_values=train), validation_data=data.replace(label_values=validation)
            )
        )


def test_numbers_to_be_learned_are_no_classes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task.train_data.label_type is float, but task.model.num_classes is 3."):
        get_task(config(3, train_data=small_text(tmp_path).replace(label_type="float")))


def test_files_to_train_on_and_to_validate_with_may_call_their_labels_differently(tmp_path: Path) -> None:
    train = small_text(tmp_path)
    (tmp_path / "dev.tsv").write_text("text\tquality\nthe cat\t1\n")
    dev = train.replace(input_path=str(tmp_path / "dev.tsv"), label_field="quality", is_training=False)
    task = get_task(config(3, train_data=train, validation_data=dev))
    batch = task.build_inputs(dev).batch(0)
    model = bound(task, {name: array for name, array in batch.items() if name != "quality"})
    assert np.asarray(validated(task, model, batch)["labels"]).tolist() == [1]


@pytest.mark.parametrize("label", ["nan", "inf", "-Infinity"])
def test_numbers_that_are_not_finite_are_refused_in_text_and_in_records(tmp_path: Path, label: str) -> None:
    data = small_text(tmp_path).replace(label_type="float")
    (tmp_path / "train.tsv").write_text(f"label\ttext\n0.5\tthe cat\n{label}\ta dog\n")
    task = get_task(config(1, train_data=data))
    with pytest.raises(DataError, match=f"train.tsv:3: the label '{label}' is no finite number. Correct it"):
        task.build_inputs(data)
    columns = {**sequences(2), "label_ids": np.array([0.5, float(label)], np.float32)}
    cached_columns(tmp_path / "records", iter([columns]))
    records = SentencePredictionDataConfig(
        input_path=str(tmp_path / "records"), seq_length=LENGTH, label_type="float", global_batch_size=1
    )
    with pytest.raises(DataError, match=r"has the label -?(nan|inf) in example 1, which is no finite number."):
        task.build_inputs(records)


def test_classes_that_nobody_counted_are_counted_in_the_training_data(tmp_path: Path) -> None:
    data = small_text(tmp_path)

    def counted(**changes: Any) -> int:
        metric = "pearson_spearman_corr" if "label_type" in changes else "accuracy"
        open_config = config(0, metric=metric, train_data=data.replace(**changes))
        open_config.lock()
        filled = get_task(open_config).task_config
        assert open_config.model.num_classes == 0
        assert str(origin_of(filled, "model.num_classes")) == "the labels of the training data"
        return int(filled.model.num_classes)

    assert counted() == 3
    assert counted(label_values=["0", "1", "2", "3"]) == 4
    assert counted(label_type="float") == 1
    (tmp_path / "one.tsv").write_text("label\ttext\n0\tthe cat\n")
    assert counted(input_path=str(tmp_path / "one.tsv")) == 2
    with pytest.raises(ConfigError, match="task.metric_type is f1, but task.model.num_classes is 3"):
        get_task(config(0, metric="f1", train_data=data))


def _shares(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits.astype(np.float64))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def test_labels_that_are_names_are_those_of_the_training_data(tmp_path: Path) -> None:
    data = small_text(tmp_path)
    (tmp_path / "train.tsv").write_text("label\ttext\nyes\tthe cat\nno\ta dog\nyes\ta cat\n")
    held_out = data.replace(is_training=False, drop_remainder=False)
    task = get_task(config(0, train_data=data, validation_data=held_out))
    filled = task.task_config
    assert filled.train_data.label_values == filled.validation_data.label_values == ["no", "yes"]
    assert str(origin_of(filled, "train_data.label_values")) == "the labels of the training data"
    assert filled.model.num_classes == 2
    assert list(task.plan_notes())[-1] == "labels: no (1), yes (2)"
    labels = task.build_inputs(filled.validation_data).batch(0)["label"]
    assert labels.tolist() == [1]
    assert list(task.answerer.label_values) == ["no", "yes"]


def test_a_column_that_can_hold_no_labels_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"text {number}\tthe cat\n" for number in range(1001))
    data = small_text(tmp_path)
    (tmp_path / "train.tsv").write_text(f"label\ttext\n{rows}")
    with pytest.raises(DataError, match="train_data.label_field: 'label' has 1,001 different values in .*'text 0'"):
        get_task(config(0, train_data=data))


def test_sentences_of_parquet_are_those_of_tables(tmp_path: Path) -> None:
    data = small_text(tmp_path)
    parquet.write_table(pyarrow.table({"label": [0, 2], "text": ["the cat", "a dog"]}), tmp_path / "a.parquet")
    task = get_task(config(3, train_data=data))
    of_table, of_parquet = (
        task.build_inputs(data.replace(is_training=False, input_path=str(tmp_path / name))).batch(1)
        for name in ("train.tsv", "a.parquet")
    )
    jax.tree.map(np.testing.assert_array_equal, of_parquet, of_table)
