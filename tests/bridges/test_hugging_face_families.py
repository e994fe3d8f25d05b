"""RoBERTa, XLM-R and DistilBERT of Hugging Face's: they compute what was recorded, and come back as they were.

`benchmarks/hugging_face_goldens.py` recorded `tests/golden/hugging_face`.
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
from safetensors.numpy import load_file, save

from tests.bridges.test_hugging_face import BATCH_SIZE, GOLDENS, N_STEPS, assert_trees_equal, change_config, golden
from trellis.bridges import read_hugging_face, read_hugging_face_settings, write_hugging_face
from trellis.errors import ArgumentError, CheckpointFileError
from trellis.nlp.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    EncoderConfig,
    PretrainerConfig,
    build_encoder,
)
from trellis.optimizers import OptimizationConfig, build_optimizer

KINDS = ("roberta", "distilbert")


def masked_lm(directory: Path) -> tuple[BertPretrainer, Any]:
    fields, params = read_hugging_face(directory)
    encoder = EncoderConfig(fields)
    activation = read_hugging_face_settings(directory).mlm_activation
    return BertPretrainer(PretrainerConfig(encoder=encoder, mlm_activation=activation), build_encoder(encoder)), params


def as_a_run_holds(params: Any) -> Any:
    """With a pooler, which an encoder of ours has whether its head uses it or not."""
    pooler = {"kernel": np.ones((16, 16), np.float32), "bias": np.ones(16, np.float32)}
    return {**params, "encoder": {"pooler": pooler, **params["encoder"]}}


def with_head(kind: str, head: str, to: Path) -> Path:
    """The recorded model with one of its other heads, as `transformers` saves it."""
    folder = shutil.copytree(GOLDENS / kind, to, ignore=shutil.ignore_patterns("golden*"))
    name = json.loads((folder / "config.json").read_text())["architectures"][0].removesuffix("ForMaskedLM")
    change_config(folder, architectures=[f"{name}For{head}"])
    is_span = head == "QuestionAnswering"
    arrays = {name: array for name, array in load_file(folder / "model.safetensors").items() if name.startswith(kind)}
    arrays |= {name: array for name, array in golden(kind, "heads").items() if name.startswith("qa_") == is_span}
    (folder / "model.safetensors").write_bytes(save(arrays))
    return folder


def loss_and_outputs(model: BertPretrainer, params: Any, batch: Any) -> tuple[jax.Array, Any]:
    outputs = model.apply({"params": params}, batch)
    logits = outputs["mlm_logits"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["masked_lm_ids"])), outputs


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_gradients_and_fifty_steps_equal_those_of_hugging_face(kind: str, tmp_path: Path) -> None:
    model, params = masked_lm(GOLDENS / kind)
    params = as_a_run_holds(params)
    batches = {name: jnp.asarray(array) for name, array in golden(kind, "batches").items()}
    # Kinds of segments are those of the data; this one has none, or does not look at them.
    batches["input_type_ids"] *= kind == "distilbert"
    batch = {name: array[:BATCH_SIZE] for name, array in batches.items()}
    adamw = {
        # Ours, as published, is added before the bias correction; torch's after it. At the first step these are equal.
        "epsilon": 1e-7 * math.sqrt(1 - 0.999),
        "weight_decay_rate": 0.01,
        "exclude_from_weight_decay": ["LayerNorm", "layer_norm", "bias"],
    }
    rate = {"type": "constant", "constant": {"learning_rate": 2e-3}}
    config = OptimizationConfig({"optimizer": {"type": "adamw", "adamw": adamw}, "learning_rate": rate})
    optimizer = build_optimizer(config, n_steps=N_STEPS)

    @jax.jit
    def run(params: Any) -> Any:
        everywhere = model.apply(
            {"params": params}, {**batch, "masked_lm_positions": jnp.arange(12)[None].repeat(4, 0)}
        )
        function = jax.value_and_grad(lambda params, batch: loss_and_outputs(model, params, batch), has_aux=True)

        def step(state: Any, index: jax.Array) -> Any:
            params, optimizer_state = state
            start = index % 5 * BATCH_SIZE
            part = {name: jax.lax.dynamic_slice_in_dim(array, start, BATCH_SIZE) for name, array in batches.items()}
            (loss, _), gradients = function(params, part)
            updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
            return (optax.apply_updates(params, updates), optimizer_state), (loss, gradients)

        _, (losses, gradients) = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(N_STEPS))
        return everywhere, losses, jax.tree.map(lambda leaf: leaf[0], gradients)

    everywhere, losses, gradients = run(jax.tree.map(jnp.asarray, params))
    expected = golden(kind, "outputs")
    # Padding has no meaning, and ours may differ there.
    real = np.asarray(batch["input_mask"])[..., None]
    for name in ("sequence_output", "mlm_logits"):
        np.testing.assert_allclose(everywhere[name] * real, expected[name] * real, rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(losses[0], expected["loss"], rtol=1e-5)
    recorded = golden(kind, "losses")["losses"]
    assert recorded[-1] < 0.9 * recorded[0], "the recorded run learned nothing"
    np.testing.assert_allclose(losses, recorded, rtol=0, atol=1e-3)

    # Gradients have the names and shapes of weights, so they are read as weights.
    directory = shutil.copytree(GOLDENS / kind, tmp_path / kind)
    (directory / "model.safetensors").write_bytes(save(golden(kind, "gradients")))
    _, their_gradients = read_hugging_face(directory)
    gradients["encoder"].pop("pooler", None)  # unused
    assert_trees_equal(gradients, their_gradients, tolerance=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", ["SequenceClassification", "QuestionAnswering"])
def test_other_heads_answer_as_those_of_hugging_face_and_come_back(kind: str, head: str, tmp_path: Path) -> None:
    directory = with_head(kind, head, tmp_path / "in")
    fields, params = read_hugging_face(directory)
    config = EncoderConfig(fields)
    encoder = build_encoder(config)
    batch = {name: array[:BATCH_SIZE] for name, array in golden(kind, "batches").items()}
    batch["input_type_ids"] = np.zeros_like(batch["input_type_ids"])
    expected = golden(kind, "outputs")
    real = batch["input_mask"]
    variables = {"params": as_a_run_holds(params) if kind == "roberta" else params}
    if head == "SequenceClassification":
        logits = BertClassifier(encoder, num_classes=2).apply(variables, batch)
        np.testing.assert_allclose(logits, expected["sentence_prediction"], rtol=1e-4, atol=1e-5)
    else:
        outputs: Any = BertSpanLabeler(encoder).apply(variables, batch)
        for name in ("start_logits", "end_logits"):
            np.testing.assert_allclose(outputs[name] * real, expected[name] * real, rtol=1e-4, atol=1e-5)
    # The pooler, which theirs does not have, is left out.
    write_hugging_face(tmp_path / "out", config=config.as_dict(), params=variables["params"])
    assert_trees_equal(*(load_file(folder / "model.safetensors") for folder in (tmp_path / "out", directory)))


@pytest.mark.parametrize("kind", [*KINDS, "xlm-roberta"])
def test_what_is_written_is_what_hugging_face_had_written(kind: str, tmp_path: Path) -> None:
    directory = shutil.copytree(GOLDENS / kind.removeprefix("xlm-"), tmp_path / "in")
    if kind == "xlm-roberta":
        change_config(directory, model_type=kind, architectures=["XLMRobertaForMaskedLM"])
    fields, params = read_hugging_face(directory)
    assert fields["type"] == kind.replace("-", "_")
    config = EncoderConfig(fields)
    activation = read_hugging_face_settings(directory).mlm_activation
    write_hugging_face(tmp_path / "out", config=config.as_dict(), params=params, mlm_activation=activation)
    assert_trees_equal(*(load_file(folder / "model.safetensors") for folder in (tmp_path / "out", directory)))
    settings, theirs = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "out", directory))
    assert settings == {name: theirs[name] for name in settings}


def test_a_head_on_the_encoders_pooler_is_written_as_the_classifier_that_roberta_has(tmp_path: Path) -> None:
    directory = with_head("roberta", "SequenceClassification", tmp_path / "in")
    fields, params = read_hugging_face(directory)
    head = params["sentence_prediction"]
    params["encoder"]["pooler"] = head.pop("pooler_dense")
    write_hugging_face(tmp_path / "out", config=EncoderConfig(fields).as_dict(), params=params)
    assert_trees_equal(*(load_file(folder / "model.safetensors") for folder in (tmp_path / "out", directory)))
    del params["encoder"]["pooler"]
    with pytest.raises(
        ArgumentError, match="sentence_prediction takes the first token without a pooler, but .*roberta"
    ):
        write_hugging_face(tmp_path / "other", config=EncoderConfig(fields).as_dict(), params=params)


def test_positions_of_a_roberta_begin_after_that_of_padding() -> None:
    config = EncoderConfig(type="roberta")
    assert (config.roberta.max_position_embeddings, config.n_positions) == (514, 512)
    assert EncoderConfig(type="roberta", roberta={"pad_token_id": 0}).n_positions == 513
    few = EncoderConfig(type="roberta", roberta={"max_position_embeddings": 2})
    assert [problem.message for problem in few.problems()] == [
        "encoder.roberta.max_position_embeddings leaves no position for a token: the first of a sequence has number 2."
    ]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("roberta", {"pad_token_id": -1}, "pad_token_id is -1, but it is a whole number from 0 on"),
        ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("distilbert", {"n_heads": 3}, "n_heads is 3, which does not divide the width, 16"),
        ("distilbert", {"dim": "wide"}, "dim is 'wide', but it is a whole number"),
        ("distilbert", {"activation": "mish"}, "activation is 'mish', but there are only"),
        ("distilbert", {"n_layers": 10**9}, "n_layers in config.json is 10{9}, but there are"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_their_names(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory = shutil.copytree(GOLDENS / kind, tmp_path / kind)
    change_config(directory, **changes)
    with pytest.raises(Exception, match=message):
        read_hugging_face(directory)


def test_what_these_models_do_not_have_is_not_written(tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDENS / "distilbert")
    config = EncoderConfig(fields)
    heads = {**params, "next_sentence": params["masked_lm"]}
    with pytest.raises(ArgumentError, match="no distilbert with the heads masked_lm, next_sentence"):
        write_hugging_face(tmp_path / "out", config=config.as_dict(), params=heads)
    other = config.replace(distilbert={"norm_epsilon": 1e-5}).as_dict()
    with pytest.raises(ArgumentError, match="distilbert.norm_epsilon is 1e-05, but .* has 1e-12"):
        write_hugging_face(tmp_path / "out", config=other, params=params)
    fields, params = read_hugging_face(GOLDENS / "roberta")
    config = EncoderConfig(fields)
    with pytest.raises(ArgumentError, match="mlm_activation is 'tanh', but .* roberta has 'gelu_exact'"):
        write_hugging_face(tmp_path / "out", config=config.as_dict(), params=params, mlm_activation="tanh")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickled_weights_are_refused_with_the_way_to_convert_them(name: str, tmp_path: Path) -> None:
    directory = shutil.copytree(GOLDENS / "roberta", tmp_path / "in")
    (directory / "model.safetensors").rename(directory / name)
    with pytest.raises(CheckpointFileError, match=f"It has {name}, but pickled weights are not read.*save_pretrained"):
        read_hugging_face(directory)
