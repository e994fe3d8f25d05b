"""The task of learning from a teacher: its answers are computed once, and a run goes on without it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.nlp.small_experiments import ROWS, small_experiment, write_teacher, write_texts
from tests.nlp.tasks.small import encoder
from trellis.errors import ArgumentError, ConfigError, DataError
from trellis.experiments import ExperimentConfig, run_experiment
from trellis.extensions import checkpoint_storage
from trellis.nlp.answers import load_predictor
from trellis.nlp.tasks import DistillationConfig, SentencePredictionModelConfig, read_hugging_face_experiment
from trellis.nlp.tasks.teacher import TEACHER_LOGITS
from trellis.tasks import Task, get_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, and a vocabulary."""
    return write_texts(tmp_path_factory.mktemp("text"))


def experiment(folder: Path, output_dir: Path, **task: Any) -> ExperimentConfig:
    params = small_experiment("encoder/distillation", folder, output_dir)
    params.override({"task": {"train_data": {"seed": 0}, **task}})
    params.override({"trainer": {"train_steps": 2, "checkpoint_interval": 1, "validation_interval": 2}})
    return params


def loss_of(logits: np.ndarray, batch: dict[str, np.ndarray], *, n_classes: int = 3, **settings: Any) -> float:
    model = SentencePredictionModelConfig(num_classes=n_classes, encoder=encoder())
    data = {"seq_length": 12, "label_type": "float" if n_classes == 1 else "int"}
    metric = "pearson_spearman_corr" if n_classes == 1 else "accuracy"
    config = DistillationConfig(model=model, metric_type=metric, **settings)
    config.override({"train_data": data, "validation_data": data})
    loss = get_task(config).build_losses(batch, logits)
    return float(loss.total / loss.weight)


def test_the_loss_is_that_of_the_labels_and_the_divergence_from_the_teacher_each_with_its_share() -> None:
    random = np.random.default_rng(0)
    logits, teacher = random.normal(size=(2, 5, 3)).astype(np.float32)
    batch = {"label": np.array([0, 1, 2, 1, 0], np.int32), TEACHER_LOGITS: teacher}
    hard = -np.mean(scipy.special.log_softmax(logits, axis=1)[np.arange(5), batch["label"]])
    p, q = (scipy.special.softmax(values / 4, axis=1) for values in (teacher, logits))
    soft = 16 * np.mean(np.sum(p * np.log(p / q), axis=1))
    assert loss_of(logits, batch, temperature=4.0, soft_weight=0.3) == pytest.approx(0.7 * hard + 0.3 * soft, rel=1e-5)
    assert loss_of(teacher, batch, temperature=4.0, soft_weight=1.0) == pytest.approx(0, abs=1e-6)
    del batch[TEACHER_LOGITS]
    assert loss_of(logits, batch, soft_weight=0.3) == pytest.approx(hard, rel=1e-5)


def test_numbers_are_learned_from_those_of_the_teacher() -> None:
    logits, teacher = np.float32([[1], [2]]), np.float32([[3], [3]])
    batch = {"label": np.float32([1, 0]), TEACHER_LOGITS: teacher}
    assert loss_of(logits, batch, n_classes=1, soft_weight=0.25) == pytest.approx(0.75 * 2 + 0.25 * 2.5)


def built(params: ExperimentConfig, model_dir: Path | None = None) -> tuple[Task, dict[str, np.ndarray]]:
    task = get_task(params.task, logging_dir=None if model_dir is None else str(model_dir))
    return task, dict(task.build_inputs(task.task_config.train_data).batch(0))


def test_the_data_has_the_logits_of_the_teacher_for_each_text(folder: Path, tmp_path: Path) -> None:
    params = experiment(folder, tmp_path)
    task, batch = built(params)
    teacher = load_predictor(params.task.teacher_dir, params=read_hugging_face_experiment(params.task.teacher_dir))
    by_label = dict(zip((1, 0), teacher.logits([row[:2] for row in ROWS[:2]]), strict=True))
    expected = np.stack([by_label[label] for label in batch["Quality"].tolist()])
    np.testing.assert_allclose(batch[TEACHER_LOGITS], expected, atol=1e-6)
    assert TEACHER_LOGITS not in task.build_inputs(task.task_config.validation_data).batch(0)


def test_classes_with_names_are_matched_by_them(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    lines = ["a\tb\tsame", *("\t".join((*row[:2], {"1": "yes", "0": "no"}[row[2]])) for row in ROWS)]
    (text / "rows.tsv").write_text("\n".join(lines) + "\n")
    names = {"input_path": str(text / "rows.tsv"), "text_fields": ["a", "b"], "label_field": "same"}
    params = experiment(folder, tmp_path)
    config = tmp_path / "teacher" / "config.json"
    config.write_text(config.read_text().replace("LABEL_0", "yes").replace("LABEL_1", "no"))
    logits = []
    for labels in (["yes", "no"], ["no", "yes"]):
        sides = {**names, "label_values": labels}
        params.override({"task": {"train_data": sides, "validation_data": sides}})
        logits.append(built(params)[1][TEACHER_LOGITS])
    np.testing.assert_array_equal(logits[0], logits[1][:, ::-1])
    sides = {**names, "label_values": ["yes", "maybe"]}
    (text / "rows.tsv").write_text((text / "rows.tsv").read_text().replace("\tno", "\tmaybe"))
    params.override({"task": {"train_data": sides, "validation_data": sides}})
    with pytest.raises(ArgumentError, match=r"has the classes \['yes', 'no'\], but the task has \['yes', 'maybe'\]"):
        built(params)


def test_a_run_resumes_without_its_teacher_to_the_bit(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "text")
    params = experiment(tmp_path / "text", tmp_path)
    run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "whole")
    params.trainer.train_steps = 1
    run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "run")
    shutil.rmtree(tmp_path / "teacher")
    params.trainer.train_steps = 2
    run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "run")
    files = [tmp_path / name / "regular_2" for name in ("whole", "run")]
    trees = [checkpoint_storage.read_manifest(file)["tree"] for file in files]
    assert trees[0].keys() == trees[1].keys()
    arrays = [checkpoint_storage.read_arrays(file, tree) for file, tree in zip(files, trees, strict=True)]
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)
    # Where the answers are gone too, another teacher is not taken for the one that the run began with.
    shutil.rmtree(tmp_path / "text" / ".trellis")
    params.trainer.train_steps = 3
    with pytest.raises(DataError, match="is not the teacher that the run in .* began with"):
        run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "run")


def test_a_teacher_of_other_classes_or_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    params = experiment(folder, tmp_path)
    shutil.rmtree(tmp_path / "teacher")
    write_teacher(folder, tmp_path, n_classes=3)
    with pytest.raises(ArgumentError, match="has 3 classes, but the task has 2"):
        built(params)
    golden = Path(__file__).parents[2] / "golden"
    params.task.teacher_dir = str(golden / "sentence_transformers" / "mean")
    with pytest.raises(ArgumentError, match="cannot teach: The model answers embeddings"):
        built(params)
    (tmp_path / "empty").mkdir()
    params.task.teacher_dir = str(tmp_path / "empty")
    with pytest.raises(ArgumentError, match="task.teacher_dir: .*empty` cannot teach: .*config.json` does not exist"):
        built(params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher_dir": ""}, "task.teacher_dir is empty, but somebody has to teach"),
        ({"teacher_dir": "nowhere"}, "task.teacher_dir is nowhere, which does not exist"),
        ({"temperature": 0.0}, "task.temperature is 0"),
        ({"soft_weight": 1.5}, "task.soft_weight is 1.5, but it is the teacher's share"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    settings: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    params = experiment(folder, tmp_path, **settings)
    with pytest.raises(ConfigError, match=message):
        get_task(params.task)
