"""The experiments that take their encoder from a folder, and what is told of a folder that does not fit."""

from pathlib import Path
from typing import Any

import pytest

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.nlp.data.small_text import WORDS, write_tokenizer_json, write_vocabulary
from tests.nlp.small_roberta import N_POSITIONS, write_byte_tokenizer, write_roberta
from trellis.errors import ArgumentError, ConfigError
from trellis.experiments import StepCost, fit, get_exp_config, search_fit
from trellis.experiments.experiment import experiment_summaries
from trellis.nlp.answers import load_predictor
from trellis.nlp.data import TextSettings, build_tokenizer
from trellis.nlp.tasks import read_hugging_face_experiment
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.tokenizer_config import tokenizer_config
from trellis.tasks import get_task

KINDS = [name.partition("/")[2] for name in experiment_summaries() if name.startswith("encoder/")]
SIDES = ("train_data", "validation_data")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_roberta(tmp_path_factory.mktemp("roberta"))


def task_of(kind: str, **settings: Any) -> EncoderTask:
    config = get_exp_config(f"encoder/{kind}")
    config.override({"task": settings})
    task = get_task(config.task)
    assert isinstance(task, EncoderTask)
    return task


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_folder_the_error_says_what_to_give(kind: str) -> None:
    with pytest.raises(ConfigError) as raised:
        get_task(get_exp_config(f"encoder/{kind}").task)
    assert "task.model.encoder.type is null, but a model needs an encoder." in str(raised.value)
    told = " ".join(str(raised.value).split())
    assert "name a directory that says it, with its weights: task.hub_module_url=DIR" in told
    assert "albert, bert, distilbert, mobilebert, modernbert, roberta, xlm_roberta" in told


def test_a_folder_says_the_encoder_its_sizes_and_its_text(weights: str) -> None:
    sides = {side: {"seq_length": N_POSITIONS} for side in SIDES}
    task = task_of("masked_lm", hub_module_url=weights, **sides)
    assert (task.encoder_config.type, task.n_positions, task.n_types) == ("roberta", N_POSITIONS, 1)
    assert task.encoder_config.roberta.hidden_size == 8
    assert task.task_config.model.mlm_activation == "gelu_exact"
    assert task.tokenizer is not None and task.tokenizer.family == "BPE"
    too_long = {side: {"seq_length": N_POSITIONS + 2} for side in sides}
    with pytest.raises(ConfigError, match=f"is {N_POSITIONS + 2}, but the encoder has positions for {N_POSITIONS}"):
        task_of("masked_lm", hub_module_url=weights, **too_long)


def test_a_plan_has_the_layers_of_the_encoder_in_a_folder_computed_again(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(params: Any, **options: Any) -> StepCost:
        return StepCost(held={"parameters": 9}, gradients=9, temporaries=9, n_examples=1, flops=1.0, sent={})

    monkeypatch.setattr(fit, "cost_of", too_large)
    params = get_exp_config("encoder/masked_lm")
    params.override({"task": {"hub_module_url": weights} | {side: {"seq_length": N_POSITIONS} for side in SIDES}})
    tried = search_fit(params, n_devices=1, memory=1, model_dir=tmp_path)
    encoder = "task.model.encoder"
    assert {f"{encoder}.type": "roberta", f"{encoder}.roberta.use_gradient_checkpointing": True} in [
        candidate.settings for candidate in tried
    ]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"task.hub_module_url: `.*nothing` does not exist. Give a directory"):
        task_of("squad", hub_module_url=str(tmp_path / "nothing"))


def test_a_folder_is_asked_by_what_its_vocabulary_calls_a_blank(weights: str) -> None:
    predictor = load_predictor(weights, params=read_hugging_face_experiment(weights))
    theirs, usual = predictor([("The <mask> sat on a mat .",), ("The [MASK] sat on a mat .",)])
    assert theirs.values["blanks"] == usual.values["blanks"]
    assert theirs.values["text"] == "The <mask> sat on a mat ."
    word = theirs.values["blanks"][0][0]["word"]
    assert theirs.values["filled"] == f"The {word} sat on a mat ."
    with pytest.raises(ArgumentError, match="has no blank to fill. Write <mask> where a word is missing."):
        predictor([("The cat sat .",)])


@pytest.mark.parametrize(
    ("encoder_type", "kind", "expected"),
    [
        ("roberta", "bytes", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "pad_token": "<pad>"}),
        ("distilbert", "words", {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True}),
        ("bert", "json", {"tokenizer_class": "BertTokenizer", "strip_accents": True}),
        ("bert", "bytes", {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "<mask>", "sep_token": "</s>"}),
    ],
)
def test_a_tokenizer_goes_out_under_the_class_that_transformers_has_for_it(
    encoder_type: str, kind: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    if kind == "bytes":
        file = write_byte_tokenizer(tmp_path)
    elif kind == "json":
        file = write_tokenizer_json(tmp_path / "tokenizer.json")
    else:
        file = write_vocabulary(tmp_path / "vocab.txt", WORDS)
    settings = TextSettings.of(build_tokenizer(file))
    values = tokenizer_config(settings, encoder_type=encoder_type, n_positions=512)
    assert values["model_max_length"] == 512
    assert {name: values[name] for name in expected} == expected
    assert ("model_input_names" in values) is (kind == "bytes")
