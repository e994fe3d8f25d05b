"""The tagging task: tags that are found, scores of whole sentences, answers, models of Hugging Face's."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.core.meta import unbox

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.nlp.data.small_text import write_vocabulary
from tests.nlp.tasks.small import LENGTH, bound, encoder, one_step, validated
from tests.nlp.tasks.test_fine_tuned import fine_tuned
from trellis.bridges import read_hugging_face, write_hugging_face
from trellis.config import origin_of
from trellis.errors import ConfigError
from trellis.nlp.answers import TagAnswerer, load_predictor
from trellis.nlp.data import TaggingDataConfig
from trellis.nlp.tasks import TaggingConfig, TaggingModelConfig, read_hugging_face_experiment
from trellis.tasks import BoundModel, Task, get_task

LINES = ["the B-PET", "cat I-PET", "sat O", "", "dogs B-PET", "ran O", ". O", ""]


def config(folder: Path, lines: list[str] = LINES, **changes: Any) -> TaggingConfig:
    (folder / "train.conll").write_text("\n".join(lines))
    data = TaggingDataConfig(
        input_path=str(folder / "train.conll"),
        vocab_file=write_vocabulary(folder / "vocab.txt"),
        seq_length=LENGTH,
        global_batch_size=2,
    )
    settings: dict[str, Any] = {
        "model": TaggingModelConfig(encoder=encoder(), head_dropout=0.0),
        "train_data": data,
        "validation_data": data.replace(is_training=False, drop_remainder=False),
    }
    return TaggingConfig(**settings | changes)


def test_tags_are_those_of_the_training_data_and_told(tmp_path: Path) -> None:
    task = get_task(config(tmp_path))
    assert task.task_config.class_names == ["B-PET", "I-PET", "O"]
    assert str(origin_of(task.task_config, "class_names")) == "the tags of the training data"
    assert list(task.plan_notes())[-1] == "tags: B-PET (2), I-PET (1), O (3)"
    assert task.text.label_values == ("B-PET", "I-PET", "O")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "task.class_names is empty.\n  Name them in the order"),
        (["O", "O"], "task.class_names has 'O' more than once.\n  Name each once"),
    ],
)
def test_names_that_cannot_be_are_refused(names: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        get_task(config(tmp_path, class_names=names))
    nothing = config(tmp_path, train_data=TaggingDataConfig(seq_length=LENGTH))
    with pytest.raises(ConfigError, match="task.class_names is null, and there is no training data"):
        get_task(nothing)


def test_a_step_changes_the_head_and_the_encoder_and_heeds_no_token_without_a_tag(tmp_path: Path) -> None:
    task = get_task(config(tmp_path))
    batch: Any = task.build_inputs(task.task_config.train_data).batch(0)
    before, (after, output) = bound(task, batch).params, one_step(task, batch)
    assert set(before) == {"encoder", "tagging"}
    for part in before:
        assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(a != b)), before[part], after.params[part])))
    # Six words have a tag.
    assert float(output.loss.weight) == 6 and set(output.metrics) == {"accuracy"}
    logits = np.asarray(jax.jit(task.build_model().apply)({"params": before}, batch), np.float64)
    labels = batch["label_ids"]
    places = [*zip(*np.nonzero(labels >= 0), strict=True)]
    expected = np.mean([np.log(np.exp(logits[place]).sum()) - logits[place][labels[place]] for place in places])
    np.testing.assert_allclose(output.loss.compute(), expected, rtol=1e-6)


def test_a_sentence_in_several_rows_is_scored_as_one(tmp_path: Path) -> None:
    # Room for two words a row: the span lies in both.
    short = TaggingDataConfig(seq_length=4, global_batch_size=4, is_training=False, drop_remainder=False)
    paths = {"input_path": str(tmp_path / "train.conll"), "vocab_file": str(tmp_path / "vocab.txt")}
    lines = ["the O", "cat B-PET", "dog I-PET", "ran O"]
    task = get_task(config(tmp_path, lines, scores_per_type=True, validation_data=short.replace(**paths)))
    batch: Any = task.build_inputs(task.task_config.validation_data).batch(0)
    assert batch["sentence_ids"].tolist() == [0, 0]
    logs = validated(task, bound(task, batch), batch)
    assert {"loss", "accuracy", "predicted", "labels", "sentence_ids"} == set(logs)
    arrays = {name: np.asarray(logs[name]) for name in ("predicted", "labels", "sentence_ids")}
    perfect = arrays | {"predicted": np.maximum(arrays["labels"], 0)}
    scores = task.reduce_aggregated_logs(task.aggregate_logs(None, perfect))
    assert scores == dict.fromkeys(("precision", "recall", "f1", "PET/precision", "PET/recall", "PET/f1"), 1.0)
    state = task.aggregate_logs(None, {name: array[:1] for name, array in perfect.items()})
    state = task.aggregate_logs(state, {name: array[1:] for name, array in perfect.items()})
    assert task.reduce_aggregated_logs(state) == scores


def initialized(task: Task) -> Any:
    model = task.build_model()
    inputs = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), np.zeros((1, LENGTH), np.int32))
    shapes = unbox(jax.eval_shape(model.init, jax.random.key(0), inputs))
    return task.initialize(BoundModel(model, params=shapes["params"]))["params"]


@pytest.mark.parametrize("kind", ["bert", "mobilebert"])
def test_a_tagger_of_hugging_face_is_taken_asked_and_written_again(kind: str, tmp_path: Path) -> None:
    names = {"0": "O", "1": "B-PET"}
    directory = fine_tuned(tmp_path / "in", kind=kind, head="TokenClassification", id2label=names)
    params = {name: part for name, part in read_hugging_face(directory)[1].items() if name in ("encoder", "tagging")}
    assert set(params) == {"encoder", "tagging"}
    text = {"input_path": "", "vocab_file": "", "is_training": False}
    data = config(tmp_path).train_data.replace(**text)
    task = get_task(TaggingConfig(hub_module_url=directory, train_data=data, validation_data=data))
    assert task.task_config.class_names == ["O", "B-PET"]
    jax.tree.map(np.testing.assert_array_equal, initialized(task)["tagging"], params["tagging"])
    predictor = load_predictor(directory, params=read_hugging_face_experiment(directory))
    (answer,) = predictor([("the cats sat",)])
    assert answer.values["words"] == ["the", "cats", "sat"] and set(answer.values["tags"]) <= {"O", "B-PET"}
    full = task.task_config.model.encoder.as_dict()
    write_hugging_face(tmp_path / "out", config=full, params=params, label_names=["O", "B-PET"])
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["architectures"][0].endswith("ForTokenClassification") and "problem_type" not in written
    assert written["id2label"] == names
    again = read_hugging_face(tmp_path / "out")[1]
    jax.tree.map(np.testing.assert_array_equal, again, {**params, "encoder": again["encoder"]})


def test_other_tags_than_those_of_the_weights_have_a_new_head(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in", head="TokenClassification", id2label={"0": "O", "1": "B-PET"})
    data = config(tmp_path).train_data.replace(vocab_file="")
    task = get_task(TaggingConfig(hub_module_url=directory, train_data=data, validation_data=data))
    assert task.task_config.class_names == ["B-PET", "I-PET", "O"]
    assert "tagging" not in initialized(task)


def test_words_are_answered_with_tags_spans_and_scores(tmp_path: Path) -> None:
    task = get_task(config(tmp_path))
    answerer = task.answerer
    assert isinstance(answerer, TagAnswerer)

    def ask(inputs: Any, /) -> Any:
        # "the" begins a pet, "cat" goes on with it.
        by_id = {5: 0, 6: 1}
        for row in inputs["input_word_ids"]:
            yield np.array([[9.0 * (by_id.get(int(one), 2) == tag) for tag in range(3)] for one in row], np.float32)

    (answer,) = answerer([("the cat ran " * 6 + "off",)], ask=ask, tokenizer=task.tokenizer)
    assert answer.values["tags"] == ["B-PET", "I-PET", "O"] * 6 + ["O"]
    first = answer.values["spans"][0]
    assert (first["type"], first["text"], first["first_word"], first["last_word"]) == ("PET", "the cat", 0, 1)
    assert first["score"] == pytest.approx(np.exp(9) / (np.exp(9) + 2), abs=1e-6)
    assert answer.text.startswith("[the cat PET] ran [the cat PET]")
