"""Pretrained encoders: Hugging Face's directories, settings that differ, places that are not here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.nlp.tasks.small import bound, encoder
from tests.nlp.tasks.test_sentence_prediction import config, labelled
from trellis.bridges import read_hugging_face
from trellis.config import dump
from trellis.data import ExampleStream
from trellis.errors import ArgumentError, CheckpointMismatchError, ConfigError, DataError
from trellis.nlp.models import BertEncoderConfig, EncoderConfig
from trellis.nlp.tasks import SentencePredictionModelConfig, sentence_prediction
from trellis.nlp.tasks.pretrained import with_encoder_of
from trellis.tasks import get_task

BERT = str(Path(__file__).parents[2] / "golden/hugging_face/bert")


def model_of(**settings: Any) -> SentencePredictionModelConfig:
    return SentencePredictionModelConfig(num_classes=2, encoder=encoder(**settings))


def test_a_hub_directory_gives_the_encoders_settings_and_weights(capsys: pytest.CaptureFixture[str]) -> None:
    task, batch = get_task(config(2, hub_module_url=BERT)), labelled(4, n_classes=2)
    settings = task.encoder_config.bert
    assert (settings.vocab_size, settings.hidden_size, settings.hidden_activation) == (48, 16, "gelu_exact")
    params = task.initialize(bound(task, batch))["params"]
    _, weights = read_hugging_face(BERT)
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], weights["encoder"])
    assert "are taken: encoder; new are sentence_prediction." in capsys.readouterr().out


def test_the_pooler_of_next_sentences_is_taken_on_request() -> None:
    task, batch = get_task(config(2, hub_module_url=BERT, init_cls_pooler=True)), labelled(4, n_classes=2)
    pooler = task.initialize(bound(task, batch))["params"]["sentence_prediction"]["pooler_dense"]
    jax.tree.map(np.testing.assert_array_equal, pooler, read_hugging_face(BERT)[1]["next_sentence"]["pooler_dense"])


def test_the_parts_that_are_taken_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    batch = labelled(4, n_classes=2)
    task = get_task(config(2, hub_module_url=BERT, init_parts=["encoder/layer_0", "encoder/*embeddings"]))
    params = task.initialize(bound(task, batch))["params"]["encoder"]
    assert "layer_0" in params and "layer_1" not in params
    assert "are taken: encoder/" in capsys.readouterr().out
    task = get_task(config(2, hub_module_url=BERT, init_parts=["encoder", "sentence_prediction/logits"]))
    with pytest.raises(CheckpointMismatchError, match="has none of these, or of another shape:\n  sentence_pred"):
        task.initialize(bound(task, batch))


def test_weights_of_another_vocabulary_or_size_are_refused_with_both_numbers() -> None:
    other = model_of(vocab_size=40, hidden_size=16, intermediate_size=24, num_layers=2)
    task, batch = get_task(config(2, init_checkpoint=BERT, model=other)), labelled(4, n_classes=2)
    with pytest.raises(CheckpointMismatchError) as raised:
        task.initialize(bound(task, batch))
    assert "  bert.vocab_size: 48 there, 40 here\n" in str(raised.value)
    assert "hidden_size" not in str(raised.value)
    assert f"task.hub_module_url={BERT}" in str(raised.value)


def test_a_setting_that_weights_do_not_need_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    same = model_of(vocab_size=48, hidden_size=16, intermediate_size=24, num_layers=2)
    task, batch = get_task(config(2, init_checkpoint=BERT, model=same)), labelled(4, n_classes=2)
    task.initialize(bound(task, batch))
    assert "bert.hidden_activation: gelu_exact there, gelu here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://hub.example/bert/3", "`https://hub.example/bert/3` is an address, but nothing is downloaded. Give a"),
        ("nowhere", "task.hub_module_url: `nowhere` does not exist. Give a directory on this machine"),
        (".", "`.` has neither config.json, as Hugging Face's directories do, nor params.yaml, as a run does."),
    ],
)
def test_a_hub_that_is_not_here_explains_itself(url: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        get_task(config(2, hub_module_url=url))


def test_weights_from_two_places_are_refused() -> None:
    with pytest.raises(ConfigError, match="task.hub_module_url is .* while task.init_checkpoint is runs/x."):
        get_task(config(2, hub_module_url=BERT, init_checkpoint="runs/x"))


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("input_word_ids", 40, "has the token 40, but the encoder knows 40 tokens, from 0 on."),
        ("input_type_ids", 2, "has the type id 2, but the encoder knows 2 type ids, from 0 on. .* type_vocab_size"),
        ("input_type_ids", -1, "has the type id -1, but the encoder knows 2 type ids"),
    ],
)
def test_ids_that_the_encoder_does_not_know_are_refused_in_any_batch(
    name: str, number: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = labelled(8, n_classes=2)
    batch[name][5, 0] = number
    stream = ExampleStream(batch, batch_size=4, shuffle=False)
    monkeypatch.setattr(sentence_prediction, "build_sentence_stream", lambda *_, **__: stream)
    task = get_task(config(2))
    stream = task.build_inputs(task.task_config.train_data)
    for read in (lambda: stream.batch(1), lambda: stream.stacked_batches(0, 2)):
        with pytest.raises(DataError, match=message):
            read()
    batch[name][0, 0] = number
    with pytest.raises(DataError, match=message):
        task.build_inputs(task.task_config.train_data)


@dataclass
class OwnConfig(BertEncoderConfig):
    n_groups: int = 1


def test_the_settings_of_an_encoder_of_ones_own_are_those_of_its_run(tmp_path: Path) -> None:
    own = OwnConfig(**encoder().bert.as_dict(), n_groups=3)
    model = {"encoder": EncoderConfig(type="any", any=own).as_dict()}
    (tmp_path / "params.yaml").write_text(dump({"task": {"model": model}}))
    task = config(2)
    task.model.encoder = EncoderConfig(type="any", any=OwnConfig())
    assert with_encoder_of(str(tmp_path), config=task).model.encoder.any == own  # type: ignore[union-attr]
    task.model.encoder = EncoderConfig()
    with pytest.raises(
        ArgumentError, match="is of an encoder of its own .* whose class a file does not tell. Set task"
    ):
        with_encoder_of(str(tmp_path), config=task)
