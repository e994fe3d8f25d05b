"""The heads, and the models that are an encoder and heads."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nlp.models.tiny_encoders import KINDS, VOCAB_SIZE, batch, config, encoder, run, shapes, weights
from trellis.errors import ConfigError
from trellis.nlp.models import BertClassifier, BertPretrainer, BertSpanLabeler, PretrainerConfig, build_encoder

NEXT_SENTENCE = {"name": "next_sentence", "inner_dim": 16, "dropout_rate": 0.1}
POSITIONS = jnp.array([[1, 3, 0], [2, 4, 5]])


def pretrainer(kind: str = "bert", **changes: Any) -> BertPretrainer:
    settings = PretrainerConfig({"encoder": config(kind).as_dict(), "cls_heads": [NEXT_SENTENCE]} | changes)
    return BertPretrainer(settings, build_encoder(settings.encoder))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pretrainer_predicts_at_the_masked_positions_what_it_would_predict_there_anyway(kind: str) -> None:
    model, inputs = pretrainer(kind), batch()
    variables = weights(model, inputs)
    everywhere = run(model, variables, inputs)
    masked = run(model, variables, {**inputs, "masked_lm_positions": POSITIONS})
    assert everywhere["mlm_logits"].shape == (2, 8, VOCAB_SIZE)
    assert masked["mlm_logits"].shape == (2, 3, VOCAB_SIZE)
    expected = np.take_along_axis(np.asarray(everywhere["mlm_logits"]), np.asarray(POSITIONS)[..., None], axis=1)
    np.testing.assert_allclose(masked["mlm_logits"], expected, rtol=1e-4, atol=1e-5)
    assert masked["next_sentence"].shape == (2, 2)


def test_the_vocabulary_is_projected_to_at_the_masked_positions_only() -> None:
    model, inputs = pretrainer(), {**batch(), "masked_lm_positions": POSITIONS}
    variables = shapes(model, inputs)
    program = str(jax.make_jaxpr(model.apply)(variables, inputs))
    assert f"f32[2,3,{VOCAB_SIZE}]" in program
    assert f"f32[2,8,{VOCAB_SIZE}]" not in program


@pytest.mark.parametrize(
    ("kind", "changes", "widths"),
    [
        ("bert", {}, {"dense": (16, 16)}),
        ("albert", {}, {"dense": (16, 8)}),
        ("mobilebert", {}, {"dense": (16, 16), "extra_output_weights": (VOCAB_SIZE, 8)}),
        ("mobilebert", {"mlm_output_weights_use_proj": True}, {"dense": (16, 16), "output_weights_proj": (16, 8)}),
    ],
)
def test_a_masked_lm_head_shares_the_embeddings_and_fits_their_width(
    kind: str, changes: dict[str, Any], widths: dict[str, tuple[int, int]]
) -> None:
    params = shapes(pretrainer(kind, **changes), batch())["params"]["masked_lm"]
    assert params.pop("output_bias").shape == (VOCAB_SIZE,)
    del params["layer_norm"]
    shapes_by_name = {name: part["kernel"].shape if name == "dense" else part.shape for name, part in params.items()}
    assert shapes_by_name == widths


def test_the_parts_of_a_pretrainer_have_the_published_names() -> None:
    model = pretrainer()
    params = shapes(model, batch())["params"]
    assert set(params) == {"encoder", "masked_lm", "next_sentence"}
    assert set(params["next_sentence"]) == {"pooler_dense", "logits"}
    assert set(model.checkpoint_items) == {"encoder", "masked_lm", "next_sentence.pooler_dense"}


@pytest.mark.parametrize(
    "names", [["a", "a"], [None], ["encoder"], ["sequence_output"]], ids=["twice", "none", "a_part", "an_output"]
)
def test_heads_without_a_name_of_their_own_are_refused(names: list[str | None]) -> None:
    model = pretrainer(cls_heads=[{"name": name} for name in names])
    with pytest.raises(ConfigError, match="model.cls_heads.*cannot be used"):
        jax.eval_shape(model.init, jax.random.key(0), batch())


def test_a_classifier_has_a_pooler_of_its_own_or_uses_that_of_the_encoder() -> None:
    inputs = batch()
    own, encoders = (BertClassifier(encoder("bert"), num_classes=3, use_encoder_pooler=used) for used in (False, True))
    variables = weights(own, inputs)
    assert set(variables["params"]["sentence_prediction"]) == {"pooler_dense", "logits"}
    logits = run(own, variables, inputs)
    assert logits.shape == (2, 3)
    params = variables["params"]
    shared = {
        "encoder": {**params["encoder"], "pooler": params["sentence_prediction"]["pooler_dense"]},
        "sentence_prediction": {"logits": params["sentence_prediction"]["logits"]},
    }
    np.testing.assert_allclose(run(encoders, {"params": shared}, inputs), logits, rtol=1e-5, atol=1e-6)


def test_a_warm_start_of_a_classifier_takes_the_pooler_of_next_sentence_if_told_to() -> None:
    plain = BertClassifier(encoder("bert"), num_classes=2)
    assert plain.checkpoint_items == {"encoder": "encoder"}
    with_pooler = BertClassifier(encoder("bert"), num_classes=2, init_cls_pooler=True)
    assert with_pooler.checkpoint_items["next_sentence.pooler_dense"] == "sentence_prediction.pooler_dense"


def test_a_span_labeler_has_two_logits_for_each_token() -> None:
    model, inputs = BertSpanLabeler(encoder("albert")), batch()
    variables = weights(model, inputs)
    outputs = run(model, variables, inputs)
    assert outputs["start_logits"].shape == outputs["end_logits"].shape == (2, 8)
    assert variables["params"]["span_labeling"]["logits"]["kernel"].shape == (16, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_computes_in_the_precision_of_its_parameters(kind: str) -> None:
    model, inputs = pretrainer(kind), {**batch(), "masked_lm_positions": POSITIONS}
    half = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), shapes(model, inputs))
    train = functools.partial(model.apply, training=True, rngs={"dropout": jax.random.key(0)})
    outputs = jax.eval_shape(train, half, inputs)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("bfloat16")}


def test_half_precision_is_close_to_single() -> None:
    model, inputs = pretrainer(), batch()
    variables = weights(model, inputs)
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), variables)
    difference = run(model, half, inputs)["sequence_output"] - run(model, variables, inputs)["sequence_output"]
    assert float(jnp.sqrt(jnp.mean(difference**2))) < 0.05
