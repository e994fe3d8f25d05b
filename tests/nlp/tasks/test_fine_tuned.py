"""Models of Hugging Face's that are fine-tuned already: their heads are taken, asked, evaluated and written again."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.core.meta import unbox
from safetensors.numpy import load_file, save

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.nlp.data.small_text import SPECIALS, WORDS, write_vocabulary
from tests.nlp.tasks.test_sentence_prediction import config, labelled
from trellis.bridges import read_hugging_face, read_hugging_face_settings
from trellis.errors import ArgumentError, CheckpointFileError, ConfigError
from trellis.experiments import get_exp_config, run_experiment
from trellis.nlp.answers import load_predictor
from trellis.nlp.data import BertPretrainTextDataConfig, SentencePredictionTextDataConfig
from trellis.nlp.models import ClsHeadConfig, PretrainerConfig
from trellis.nlp.tasks import MaskedLMConfig, SentencePredictionModelConfig, read_hugging_face_experiment
from trellis.tasks import BoundModel, Task, get_task

GOLDENS = Path(__file__).parents[2] / "golden/hugging_face"
N_WORDS = 48
HEADS = {
    "SequenceClassification": {"classifier": 2},
    "QuestionAnswering": {"qa_outputs": 2},
    "MaskedLM": {},
}


def fine_tuned(folder: Path, *, kind: str = "bert", head: str = "SequenceClassification", **settings: Any) -> str:
    """A directory of Hugging Face's with a head, a vocabulary and names for two classes."""
    shutil.copytree(GOLDENS / kind, folder, ignore=shutil.ignore_patterns("golden.safetensors"))
    class_name = {"bert": "Bert", "mobilebert": "MobileBert"}[kind]
    values = json.loads((folder / "config.json").read_text())
    values |= {"architectures": [f"{class_name}For{head}"], "id2label": {"0": "bad", "1": "good"}, **settings}
    (folder / "config.json").write_text(json.dumps(values))
    random = np.random.default_rng(0)
    arrays = load_file(folder / "model.safetensors")
    for name, n_outputs in HEADS.get(head, {"classifier": 2}).items():
        arrays[f"{name}.weight"] = random.normal(size=(n_outputs, 16)).astype(np.float32)
        arrays[f"{name}.bias"] = random.normal(size=n_outputs).astype(np.float32)
    (folder / "model.safetensors").write_bytes(save(arrays))
    n_unused = N_WORDS - len(SPECIALS) - len(WORDS)
    write_vocabulary(folder / "vocab.txt", [*WORDS, *(f"[unused{number}]" for number in range(n_unused))])
    return str(folder)


def initialized(task: Task) -> Any:
    """What is taken; for that the shapes of the model's own are enough."""
    model = task.build_model()
    shapes = unbox(jax.eval_shape(model.init, jax.random.key(0), labelled(4, n_classes=2)))
    return task.initialize(BoundModel(model, params=shapes["params"]))["params"]


def test_a_head_that_fits_is_taken_and_what_is_not_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = fine_tuned(tmp_path / "in", classifier_dropout=0.3)
    params = initialized(get_task(config(2, hub_module_url=directory)))
    _, weights = read_hugging_face(directory)
    jax.tree.map(np.testing.assert_array_equal, params["sentence_prediction"], weights["sentence_prediction"])
    printed = capsys.readouterr().out
    assert "new are none." in printed
    assert "Its config.json says more, which is not used: " in printed
    assert "classifier_dropout" in printed


@pytest.mark.parametrize(
    "settings", [{"head": "TokenClassification"}, {"problem_type": "multi_label_classification"}], ids=str
)
def test_a_head_that_classifies_otherwise_is_not_taken(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = fine_tuned(tmp_path / "in", **settings)
    assert "sentence_prediction" not in initialized(get_task(config(2, hub_module_url=directory)))
    assert "are taken: encoder; new are sentence_prediction." in capsys.readouterr().out


def test_a_head_for_another_number_of_classes_is_new(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in")
    assert "sentence_prediction" not in initialized(get_task(config(3, hub_module_url=directory)))


def test_classes_in_another_order_than_those_of_the_weights_are_refused(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in")
    data = SentencePredictionTextDataConfig(seq_length=12, label_values=["good", "bad"])
    with pytest.raises(ConfigError, match=r"label_values is \['good', 'bad'\], but the model in .*\['bad', 'good'\]"):
        get_task(config(2, hub_module_url=directory, train_data=data, validation_data=data))


def test_a_mobilebert_without_a_pooler_keeps_the_head_that_it_has(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in", kind="mobilebert", classifier_activation=False)
    file = Path(directory, "model.safetensors")
    file.write_bytes(save({name: array for name, array in load_file(file).items() if "pooler" not in name}))
    task = get_task(config(2, hub_module_url=directory))
    assert task.task_config.model.use_encoder_pooler
    assert set(initialized(task)["sentence_prediction"]) == {"logits"}


def test_a_pretraining_goes_on_with_the_heads_and_the_activation_of_the_file(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in", kind="mobilebert", head="PreTraining")
    data = BertPretrainTextDataConfig(seq_length=12, vocab_file_path=str(tmp_path / "in/vocab.txt"))
    heads = [ClsHeadConfig(name="next_sentence", inner_dim=768)]
    model = PretrainerConfig(cls_heads=heads)
    task = get_task(
        MaskedLMConfig(
            hub_module_url=directory, model=model, train_data=data, validation_data=data.replace(is_training=False)
        )
    )
    assert task.task_config.model.mlm_activation == "relu", "the file's, not the gelu that is the default"
    assert task.task_config.model.cls_heads[0].inner_dim == 16
    params = initialized(task)
    _, weights = read_hugging_face(directory)
    for part in ("masked_lm", "next_sentence"):
        jax.tree.map(np.testing.assert_array_equal, params[part], weights[part])


@pytest.mark.parametrize("head", HEADS)
def test_a_directory_of_hugging_face_is_asked_and_written_again_alike(head: str, tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in", head=head)
    text = {"QuestionAnswering": ("who sat ?", "the cat sat on a mat ."), "MaskedLM": ("the [MASK] sat .",)}
    asked = [text.get(head, ("the cat sat .",))]
    params = read_hugging_face_experiment(directory)
    answer = next(load_predictor(directory, params=params)(asked))
    if head == "SequenceClassification":
        assert answer.values["label"] in ("bad", "good")
    task = get_task(params.task)
    weights = read_hugging_face(directory)[1]
    of_head = {"SequenceClassification": "sentence_prediction", "QuestionAnswering": "span_labeling"}
    part = of_head.get(head, "masked_lm")
    task.write_hugging_face({"encoder": weights["encoder"], part: weights[part]}, output_dir=tmp_path / "out")
    again = next(load_predictor(str(tmp_path / "out"), params=read_hugging_face_experiment(tmp_path / "out"))(asked))
    assert again.values == answer.values
    assert sorted(file.name for file in (tmp_path / "in").iterdir()) == [
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]
    settings = read_hugging_face_settings(tmp_path / "out")
    assert settings.label_names == (("bad", "good") if head == "SequenceClassification" else ())
    tokenizer = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (tokenizer["tokenizer_class"], tokenizer["do_lower_case"]) == ("BertTokenizer", True)


def test_a_pair_is_not_asked_of_a_model_that_knows_one_kind_of_segment(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in", type_vocab_size=1)
    file = Path(directory, "model.safetensors")
    arrays = load_file(file)
    arrays["bert.embeddings.token_type_embeddings.weight"] = arrays["bert.embeddings.token_type_embeddings.weight"][:1]
    file.write_bytes(save(arrays))
    predictor = load_predictor(directory, params=read_hugging_face_experiment(directory))
    assert next(predictor([("the cat sat .",)])).values["label"] in ("bad", "good")
    with pytest.raises(ArgumentError, match=r"A text has 2 parts, but the model in .* knows 1 \(type_vocab_size\)"):
        list(predictor([("the cat sat .", "a dog ran .")]))


def test_an_encoder_alone_cannot_be_asked_and_says_what_can(tmp_path: Path) -> None:
    directory = fine_tuned(tmp_path / "in", architectures=["BertModel"])
    with pytest.raises(ArgumentError, match="holds a BertModel with no head that answers text. .*fine-tuned first"):
        read_hugging_face_experiment(directory)
    directory = fine_tuned(tmp_path / "lost")
    file = Path(directory, "model.safetensors")
    arrays = {name: array for name, array in load_file(file).items() if not name.startswith("classifier")}
    file.write_bytes(save(arrays))
    with pytest.raises(CheckpointFileError, match="has no weights for sentence_prediction/logits/bias"):
        load_predictor(directory, params=read_hugging_face_experiment(directory))


def test_weights_are_evaluated_without_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = fine_tuned(tmp_path / "in")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe cat sat .\tgood\na dog ran .\tbad\n")
    data = SentencePredictionTextDataConfig(
        input_path=str(tmp_path / "dev.tsv"),
        text_fields=["sentence"],
        label_field="label",
        label_values=["bad", "good"],
        seq_length=12,
        global_batch_size=2,
        is_training=False,
        drop_remainder=False,
    )
    model = SentencePredictionModelConfig()
    task = config(0, hub_module_url=directory, model=model, validation_data=data)
    params = get_exp_config("bert/sentence_prediction_text").replace(task=task)
    run_experiment(params, mode="eval", model_dir=tmp_path / "run")
    printed = capsys.readouterr().out
    assert f"There is no checkpoint file in `{tmp_path / 'run'}`: step 0 is `{directory}`." in printed
    assert "Step      0  eval/cls_accuracy" in printed
    asked = read_hugging_face_experiment(directory)
    answers = load_predictor(directory, params=asked).read(data.input_path, text_fields=["sentence"])
    labels = [answer.values["label"] for answer in answers]
    right = np.mean([label == name for label, name in zip(labels, ("good", "bad"), strict=True)])
    assert f"eval/cls_accuracy {right:g} " in printed
