"""ModernBERT of Hugging Face's: what was recorded of it is what ours computes, and files come back as they were.

`benchmarks/hugging_face_goldens.py` recorded `tests/golden/hugging_face/modernbert`.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from trellis.bridges import read_hugging_face, read_hugging_face_config, read_hugging_face_settings, write_hugging_face
from trellis.errors import ArgumentError, CheckpointMismatchError
from trellis.nlp.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    EncoderConfig,
    PretrainerConfig,
    build_encoder,
)
from trellis.optimizers import OptimizationConfig, build_optimizer

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face" / "modernbert"
N_STEPS, BATCH_SIZE = 50, 4
CLASSIFIER, QUESTIONS = "SequenceClassification", "QuestionAnswering"


def golden(part: str) -> dict[str, np.ndarray]:
    arrays = load_file(GOLDEN / "golden.safetensors")
    return {name.removeprefix(f"{part}/"): array for name, array in arrays.items() if name.startswith(part)}


def first_batch() -> dict[str, jax.Array]:
    return {name: jnp.asarray(array[:BATCH_SIZE]) for name, array in golden("batches").items()}


def pretrainer(fields: dict[str, Any]) -> BertPretrainer:
    encoder = EncoderConfig(fields)
    config = PretrainerConfig(encoder=encoder, mlm_activation=encoder.get().hidden_activation)
    return BertPretrainer(config, build_encoder(encoder))


def loss(model: BertPretrainer, params: Any, batch: Any) -> jax.Array:
    logits = model.apply({"params": params}, batch)["mlm_logits"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["masked_lm_ids"]))


def with_config(to: Path, **changes: Any) -> Path:
    shutil.copytree(GOLDEN, to)
    file = to / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in values.items() if value != "left out"}))
    return to


def with_head(to: Path, head: str) -> Path:
    """The recorded encoder with another head."""
    with_config(to, architectures=[f"ModernBertFor{head}"])
    arrays = {name: array for name, array in load_file(GOLDEN / "model.safetensors").items() if "model." in name}
    save_file(arrays | golden(f"heads/{head}"), to / "model.safetensors")
    return to


def assert_trees_equal(first: Any, second: Any, *, tolerance: float = 0.0) -> None:
    def check(path: Any, a: Any, b: Any) -> None:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)

    jax.tree_util.tree_map_with_path(check, first, second)


def test_outputs_and_gradients_equal_those_of_hugging_face(tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDEN)
    assert set(params) == {"encoder", "masked_lm"}
    model, batch = pretrainer(fields), first_batch()

    @jax.jit
    def run(params: Any) -> Any:
        everywhere = {name: array for name, array in batch.items() if name != "masked_lm_positions"}
        outputs = model.apply({"params": params}, everywhere)
        return outputs, jax.value_and_grad(lambda params: loss(model, params, batch))(params)

    outputs, (value, gradients) = run(params)
    expected = golden("outputs")
    # Padding has no meaning, and ours may differ there.
    real = np.asarray(batch["input_mask"])[..., None]
    for name in ("sequence_output", "mlm_logits"):
        np.testing.assert_allclose(outputs[name] * real, expected[name] * real, rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(value, expected["loss"], rtol=1e-5)
    # Gradients have the names and shapes of weights, so they are read as weights.
    directory = with_config(tmp_path / "gradients")
    save_file(golden("gradients"), directory / "model.safetensors")
    assert_trees_equal(gradients, read_hugging_face(directory)[1], tolerance=1e-5)


def test_fifty_steps_of_adamw_follow_the_losses_of_torch() -> None:
    fields, params = read_hugging_face(GOLDEN)
    model = pretrainer(fields)
    adamw = {
        # Ours, as published, is added before the bias correction; torch's after it. At the first step these are equal.
        "epsilon": 1e-7 * math.sqrt(1 - 0.999),
        "weight_decay_rate": 0.01,
        "exclude_from_weight_decay": ["LayerNorm", "layer_norm", "bias"],
    }
    rate = {"type": "constant", "constant": {"learning_rate": 2e-3}}
    config = OptimizationConfig({"optimizer": {"type": "adamw", "adamw": adamw}, "learning_rate": rate})
    optimizer = build_optimizer(config, n_steps=N_STEPS)
    data = {
        name: jnp.asarray(array).reshape(-1, BATCH_SIZE, *array.shape[1:]) for name, array in golden("batches").items()
    }

    def step(state: Any, index: jax.Array) -> Any:
        params, optimizer_state = state
        batch = jax.tree.map(lambda array: array[index % len(data["input_mask"])], data)
        value, gradients = jax.value_and_grad(lambda params: loss(model, params, batch))(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), value

    start = jax.tree.map(jnp.asarray, params)
    _, losses = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(N_STEPS)))((start, optimizer.init(start)))
    expected = golden("losses")["losses"]
    assert expected[-1] < 0.9 * expected[0], "the recorded run learned nothing"
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-3)


def test_a_classifier_and_answers_to_questions_equal_those_of_hugging_face(tmp_path: Path) -> None:
    batch = first_batch()
    expected = golden("outputs")
    fields, params = read_hugging_face(with_head(tmp_path / "classifier", CLASSIFIER))
    assert set(params) == {"encoder", "sentence_prediction"}
    classifier = BertClassifier(build_encoder(EncoderConfig(fields)), num_classes=2)
    logits = jax.jit(classifier.apply)({"params": params}, batch)
    np.testing.assert_allclose(logits, expected["sentence_prediction"], rtol=1e-4, atol=1e-4)

    fields, params = read_hugging_face(with_head(tmp_path / "questions", QUESTIONS))
    assert set(params) == {"encoder", "span_labeling"}
    labeler = BertSpanLabeler(build_encoder(EncoderConfig(fields)))
    outputs = jax.jit(labeler.apply)({"params": params}, batch)
    for name, array in outputs.items():
        mask = batch["input_mask"]
        np.testing.assert_allclose(array * mask, expected[name] * mask, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("head", ["MaskedLM", CLASSIFIER, QUESTIONS])
def test_what_is_written_is_what_hugging_face_had_written(head: str, tmp_path: Path) -> None:
    source = GOLDEN if head == "MaskedLM" else with_head(tmp_path / "in", head)
    fields, params = read_hugging_face(source)
    write_hugging_face(tmp_path / "out", config=EncoderConfig(fields).as_dict(), params=params)
    written, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", source))
    assert_trees_equal(written, theirs)
    # In words that older releases of `transformers` read too.
    again = read_hugging_face_config(tmp_path / "out")
    assert again == fields == read_hugging_face_config(source)
    settings = read_hugging_face_settings(tmp_path / "out")
    assert settings.architecture == f"ModernBertFor{head}" and settings.not_used == (
        "bos_token_id",
        "cls_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
    )


def test_heads_of_other_kinds_are_left_out(tmp_path: Path) -> None:
    directory = with_config(tmp_path / "tokens", architectures=["ModernBertForMultipleChoice"])
    arrays = {name: array for name, array in load_file(GOLDEN / "model.safetensors").items() if "model." in name}
    save_file(arrays | golden(f"heads/{CLASSIFIER}"), directory / "model.safetensors")
    assert set(read_hugging_face(directory)[1]) == {"encoder"}


def test_settings_are_read_from_older_and_newer_files(tmp_path: Path) -> None:
    fields = read_hugging_face_config(GOLDEN)
    assert fields["modernbert"]["global_attention_interval"] == 2
    assert (fields["modernbert"]["local_attention"], fields["modernbert"]["local_rope_theta"]) == (6, 10_000.0)
    left_out = dict.fromkeys(("layer_types", "rope_parameters"), "left out")
    older = with_config(
        tmp_path / "older", **left_out, global_attn_every_n_layers=2, global_rope_theta=160000, local_rope_theta=1e4
    )
    assert read_hugging_face_config(older) == fields
    # Three layers of which the first alone sees whole rows have the usual interval.
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    usual = with_config(tmp_path / "usual", layer_types=kinds)
    assert read_hugging_face_config(usual)["modernbert"]["global_attention_interval"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_bias": True}, "norm_bias is True, but only models with False can be read"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"decoder_bias": False}, "decoder_bias is False"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
        ({"classifier_activation": "relu"}, "classifier_activation is 'relu', but only models in which it is hidden_"),
        ({"hidden_activation": "mish", "classifier_activation": "mish"}, "hidden_activation is 'mish'"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types is .*but only models .* the first of every so many"),
        ({"layer_types": ["full_attention"]}, "layer_types is .*num_hidden_layers has full_attention"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters.full_attention.* 'yarn'"),
        ({"rope_parameters": [1]}, r"rope_parameters.full_attention\) is \[1\]"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": "x"}}}, r"local_rope_theta .* is 'x'"),
        ({"local_attention": "wide"}, "local_attention is 'wide', but it is a whole number from 1 on"),
        ({"num_attention_heads": 3}, "num_attention_heads is 3, which does not divide the width, 16"),
    ],
)
def test_what_ours_cannot_be_is_refused_by_the_name_of_a_setting(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_hugging_face(with_config(tmp_path / "odd", **changes))


def test_weights_of_another_number_of_layers_are_told_by_their_names(tmp_path: Path) -> None:
    deeper = with_config(tmp_path / "deeper", num_hidden_layers=4, layer_types="left out", global_attn_every_n_layers=2)
    with pytest.raises(CheckpointMismatchError, match=r"missing +layers\.3\.attn\.Wqkv\.weight \(48, 16\)"):
        read_hugging_face(deeper)
    shallower = with_config(
        tmp_path / "shallower", num_hidden_layers=2, layer_types="left out", global_attn_every_n_layers=2
    )
    with pytest.raises(CheckpointMismatchError, match=r"unexpected layers\.2\.attn\.Wo\.weight"):
        read_hugging_face(shallower)


def test_a_head_that_hugging_face_lacks_is_refused(tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDEN)
    config = EncoderConfig(fields).as_dict()
    head = {"logits": {"kernel": np.zeros((16, 2)), "bias": np.zeros(2)}}
    with pytest.raises(ArgumentError, match="no modernbert with the heads masked_lm, next_sentence"):
        write_hugging_face(tmp_path / "out", config=config, params={**params, "next_sentence": head})
    with pytest.raises(ArgumentError, match="sentence_prediction takes the first token without a pooler"):
        only = {"encoder": params["encoder"], "sentence_prediction": head}
        write_hugging_face(tmp_path / "out", config=config, params=only)
