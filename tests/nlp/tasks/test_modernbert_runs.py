"""A ModernBERT is pretrained on packed text, killed, spread over devices, moved, fine-tuned and asked."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.nlp.data.small_text import write_corpus_file, write_tokenizer_json
from trellis.errors import ConfigError
from trellis.experiments import ExperimentConfig, export_experiment, get_exp_config, read_params, run_experiment
from trellis.nlp.answers import load_predictor
from trellis.nlp.answers.predictor import read_model
from trellis.nlp.tasks import read_hugging_face_experiment
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.tasks import get_task

ENCODER = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "global_attention_interval": 2,
    "local_attention": 8,
}
N_STEPS = 4
TEXTS = [("the cat [MASK] on the mat .",), ("a dog [MASK] .",)]
PAIRS = [("the cat sat .", "a cat sat ."), ("the dog ran .", "a mat")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, a tokenizer, and pairs of sentences."""
    folder = tmp_path_factory.mktemp("text")
    write_corpus_file(folder / "text.txt")
    write_tokenizer_json(folder / "tokenizer.json")
    rows = [("the cat sat .", "a cat sat .", "yes"), ("the dog ran .", "the mat .", "no")] * 4
    (folder / "pairs.tsv").write_text("".join("\t".join(row) + "\n" for row in [("a", "b", "same"), *rows]))
    return folder


def pretraining(folder: Path, *, n_steps: int = N_STEPS, **changes: Any) -> ExperimentConfig:
    params = get_exp_config("bert/text_wiki_pretraining")
    data = {
        "input_path": str(folder / "text.txt"),
        "vocab_file_path": str(folder / "tokenizer.json"),
        "tfds_name": "",
        "seq_length": 24,
        "max_predictions_per_seq": 8,
        "masking_rate": 0.3,
        "global_batch_size": 8,
        "use_next_sentence_label": False,
        "pack_sequences": True,
    }
    model = {
        "encoder": {"type": "modernbert", "modernbert": ENCODER},
        "cls_heads": [],
        "mlm_activation": "gelu_exact",
    }
    rate = {"type": "constant", "constant": {"learning_rate": 1e-2}}
    params.override(
        {
            "task": {"model": model, "train_data": data, "validation_data": {**data, "drop_remainder": False}},
            "trainer": {
                "train_steps": n_steps,
                "steps_per_loop": 2,
                "checkpoint_interval": 2,
                "optimizer_config": {"learning_rate": rate, "warmup": {"type": None}},
            },
            "runtime": {"distribution_strategy": "off"},
        }
    )
    params.override(changes)
    return params


def trained(directory: Path) -> Any:
    params = read_params(directory)
    task = get_task(params.task)
    assert isinstance(task, EncoderTask)
    return read_model(task, directory / f"regular_{N_STEPS}", runtime=params.runtime).params


@pytest.fixture(scope="module")
def pretrained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted, on one device."""
    directory = tmp_path_factory.mktemp("pretrained") / "run"
    run_experiment(pretraining(folder), mode="train", model_dir=directory)
    return directory


def test_a_resumed_run_equals_an_undisturbed_one_to_the_bit(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    for n_steps in (2, N_STEPS):
        run_experiment(pretraining(folder, n_steps=n_steps), mode="train", model_dir=tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, trained(tmp_path / "run"), trained(pretrained))


def test_a_run_over_a_mesh_that_computes_layers_again_equals_one_on_one_device(
    folder: Path, pretrained: Path, tmp_path: Path
) -> None:
    mesh = {"distribution_strategy": "mirrored", "mesh": {"data": 2, "fsdp": 2, "model": 2}}
    encoder = {"modernbert": {"use_gradient_checkpointing": True}}
    params = pretraining(folder, runtime=mesh, task={"model": {"encoder": encoder}})
    run_experiment(params, mode="train", model_dir=tmp_path / "run")
    # Adam makes as much of a gradient of rounding as of any other one.
    close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3)  # noqa: E731
    jax.tree.map(close, trained(tmp_path / "run"), trained(pretrained))


def test_blanks_are_filled_alike_by_a_run_by_its_export_and_by_its_weights(
    folder: Path, pretrained: Path, tmp_path: Path
) -> None:
    expected = [answer.values for answer in load_predictor(str(pretrained))(TEXTS)]
    params = read_params(pretrained)
    export_experiment(params, model_dir=pretrained, output_dir=tmp_path / "served", platforms=["cpu"])
    export_experiment(params, model_dir=pretrained, output_dir=tmp_path / "weights", format="hugging_face")
    of_weights = read_hugging_face_experiment(tmp_path / "weights")
    served, weights = (
        [answer.values for answer in predictor(TEXTS)]
        for predictor in (
            load_predictor(str(tmp_path / "served")),
            load_predictor(str(tmp_path / "weights"), params=of_weights),
        )
    )
    for answers in (served, weights):
        for ours, theirs in zip(answers, expected, strict=True):
            first, reference = ours["blanks"][0][0], theirs["blanks"][0][0]
            assert first["word"] == reference["word"]
            assert first["probability"] == pytest.approx(reference["probability"], abs=1e-5)


def test_a_folder_of_weights_says_the_encoder_that_is_fine_tuned(
    folder: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights"
    export_experiment(read_params(pretrained), model_dir=pretrained, output_dir=weights, format="hugging_face")
    params = get_exp_config("bert/sentence_prediction_text")
    data = {
        "input_path": str(folder / "pairs.tsv"),
        "text_fields": ["a", "b"],
        "label_field": "same",
        "label_values": ["no", "yes"],
        "seq_length": 20,
        "global_batch_size": 8,
    }
    task = {"hub_module_url": str(weights), "train_data": data, "validation_data": data, "init_cls_pooler": True}
    # How a sequence is pooled is free, as rates of dropout are.
    task["model"] = {"encoder": {"modernbert": {"classifier_pooling": "mean"}}}
    params.override({"task": task, "trainer": {"train_steps": 2}, "runtime": {"distribution_strategy": "off"}})
    run_experiment(params, mode="train", model_dir=tmp_path / "run")
    assert "sentence_prediction/pooler_dense, sentence_prediction/pooler_layer_norm; new" in capsys.readouterr().out
    kept = read_params(tmp_path / "run").task.model.encoder
    assert (kept.type, kept.modernbert.local_attention, kept.modernbert.classifier_pooling) == ("modernbert", 8, "mean")
    asked = read_params(tmp_path / "run")
    export_experiment(asked, model_dir=tmp_path / "run", output_dir=tmp_path / "out", format="hugging_face")
    expected = [answer.values["probabilities"] for answer in load_predictor(str(tmp_path / "run"))(PAIRS)]
    predictor = load_predictor(str(tmp_path / "out"), params=read_hugging_face_experiment(tmp_path / "out"))
    np.testing.assert_allclose([answer.values["probabilities"] for answer in predictor(PAIRS)], expected, atol=1e-5)


def test_rows_that_are_longer_than_the_encoder_reads_are_refused_before_the_first_step(
    folder: Path, tmp_path: Path
) -> None:
    params = pretraining(folder, task={"train_data": {"seq_length": 32}})
    with pytest.raises(ConfigError, match=r"train_data.seq_length is 32, but the encoder has positions for 24 tokens"):
        run_experiment(params, mode="train", model_dir=tmp_path / "run")
