"""ModernBERT: what its tokens see in whole rows and in windows, however rows are made up, and what cannot be built."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.nlp.models.tiny_encoders import packed_and_apart, run, shapes, weights
from trellis.errors import ArgumentError, ConfigError, ModelError
from trellis.nlp.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    EncoderConfig,
    PretrainerConfig,
    TalkingHeadsAttention,
    build_encoder,
    local_attention,
)
from trellis.nlp.models.layers import EncoderInputs
from trellis.nlp.models.local_attention import attend_in_blocks, attend_in_whole_rows, attend_locally
from trellis.runtime import Placement

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "local_attention": 4,
    "global_attention_interval": 2,
}
REACH, LENGTH = 4, 23


def config(**changes: Any) -> EncoderConfig:
    return EncoderConfig(type="modernbert", modernbert=SIZES | changes)


def encoder(**changes: Any) -> Any:
    return build_encoder(config(**changes))


def rows(*lengths: int, room: int) -> dict[str, jax.Array]:
    """Rows of padded random tokens."""
    mask = np.arange(room)[None] < np.array(lengths)[:, None]
    ids = np.random.default_rng(0).integers(1, SIZES["vocab_size"], mask.shape) * mask
    return {"input_word_ids": jnp.asarray(ids, jnp.int32), "input_mask": jnp.asarray(mask, jnp.int32)}


def heads_and_tokens() -> tuple[tuple[jax.Array, jax.Array, jax.Array], EncoderInputs]:
    """Queries, keys and values of two rows, each of two packed sequences and padding."""
    random = np.random.default_rng(0)
    query, key, value = (jnp.asarray(random.normal(size=(2, LENGTH, 2, 4)), jnp.float32) for _ in range(3))
    segments = np.array([[1] * 9 + [2] * 11 + [0] * 3, [1] * 2 + [2] * 21], np.int32)
    ids = jnp.asarray(segments)
    return (query, key, value), EncoderInputs(ids, ids, ids > 0, None, ids)


def test_the_number_of_parameters_is_the_published_one() -> None:
    model = build_encoder(EncoderConfig(type="modernbert"))
    inputs = {name: jax.ShapeDtypeStruct((1, 8), jnp.int32) for name in ("input_word_ids", "input_mask")}
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes(model, inputs)["params"])) == 149_014_272


def test_padding_changes_nothing() -> None:
    model, inputs = encoder(), rows(12, 9, room=12)
    variables = weights(model, inputs)
    wider = {name: jnp.pad(array, ((0, 0), (0, 5))) for name, array in inputs.items()}
    outputs = run(model, variables, inputs)["sequence_output"][1, :9]
    np.testing.assert_allclose(run(model, variables, wider)["sequence_output"][1, :9], outputs, rtol=1e-4, atol=1e-5)


def test_packed_sequences_equal_the_same_ones_apart() -> None:
    model = encoder()
    packed, apart = packed_and_apart()
    variables = weights(model, apart)
    together = run(model, variables, packed)["sequence_output"][0]
    alone = run(model, variables, apart)["sequence_output"]
    np.testing.assert_allclose(together[:5], alone[0, :5], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together[5:8], alone[1, :3], rtol=1e-4, atol=1e-5)


def test_a_layer_with_a_window_sees_no_token_beyond_it_and_one_with_whole_rows_sees_all() -> None:
    inputs = rows(12, room=12)
    changed = {**inputs, "input_word_ids": inputs["input_word_ids"].at[0, 0].add(1)}
    differing = {}
    for interval in (1, 2):
        model = encoder(num_layers=2, global_attention_interval=interval, return_all_encoder_outputs=True)
        variables = weights(model, inputs)
        params = dict(variables["params"])
        # The first layer sees whole rows whatever the interval is, so it is switched off.
        params["layer_0"] = jax.tree.map(np.zeros_like, params["layer_0"])
        before, after = (run(model, {"params": params}, one)["sequence_output"][0] for one in (inputs, changed))
        differing[interval] = np.flatnonzero(np.any(before != after, axis=-1)).tolist()
    assert differing == {1: list(range(12)), 2: [0, 1, 2]}


def test_types_are_not_looked_at_and_need_not_be_there() -> None:
    model, inputs = encoder(), rows(8, room=8)
    variables = weights(model, inputs)
    typed = {**inputs, "input_type_ids": jnp.ones((1, 8), jnp.int32)}
    np.testing.assert_array_equal(
        run(model, variables, typed)["sequence_output"], run(model, variables, inputs)["sequence_output"]
    )


def test_the_pooled_output_is_the_first_token_or_the_mean_over_tokens_that_are_not_padding() -> None:
    inputs = rows(8, 5, room=8)
    variables = weights(encoder(), inputs)
    first, mean = (run(encoder(classifier_pooling=kind), variables, inputs) for kind in ("cls", "mean"))
    hidden = first["sequence_output"]
    np.testing.assert_array_equal(first["pooled_output"], hidden[:, 0])
    np.testing.assert_allclose(mean["pooled_output"][1], np.mean(hidden[1, :5], axis=0), rtol=1e-5, atol=1e-6)


def test_all_states_come_on_request_and_the_last_is_the_output() -> None:
    inputs = rows(8, room=8)
    model = encoder(return_all_encoder_outputs=True)
    outputs = run(model, weights(model, inputs), inputs)
    assert len(outputs["encoder_outputs"]) == 3
    np.testing.assert_array_equal(outputs["encoder_outputs"][-1], outputs["sequence_output"])
    assert outputs["sequence_output"].shape == (1, 8, 16)
    empty = encoder(num_layers=0, return_all_encoder_outputs=True)
    assert run(empty, weights(empty, inputs), inputs)["encoder_outputs"] == []


def test_recomputing_layers_changes_neither_names_nor_gradients() -> None:
    inputs = rows(8, 6, room=8)
    rates = ("attention_dropout_rate", "feedforward_dropout_rate", "embedding_dropout_rate")
    settings: dict[str, Any] = {"num_layers": 2, **dict.fromkeys(rates, 0.2)}
    plain, again = encoder(**settings), encoder(**settings, use_gradient_checkpointing=True)
    variables = weights(plain, inputs)

    def gradients(model: Any) -> Any:
        rngs = {"dropout": jax.random.key(1)}
        return jax.jit(
            jax.grad(lambda v: jnp.sum(model.apply(v, inputs, training=True, rngs=rngs)["sequence_output"] ** 2))
        )(variables)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), gradients(again), gradients(plain)
    )


@pytest.mark.parametrize("size", [4, 5, 8, 64])
def test_blocks_equal_whole_rows_in_values_and_gradients(size: int) -> None:
    heads, tokens = heads_and_tokens()
    seen = (tokens.mask[..., None, None]).astype(jnp.float32)

    def run_with(attention: Any, **options: Any) -> Any:
        def loss(heads: Any) -> Any:
            taken = attention(*heads, tokens, reach=REACH, **options)
            # Padding sees nothing, so that what it takes has no meaning.
            return jnp.sum(jnp.sin(taken) * seen), taken * seen

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(heads)

    (_, blocks), block_gradients = run_with(attend_in_blocks, size=size)
    (_, whole), gradients = run_with(attend_in_whole_rows)
    np.testing.assert_allclose(blocks, whole, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(block_gradients, gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_long_rows_are_cut_into_blocks_and_no_mask_is_as_wide_as_a_row() -> None:
    length = 1000
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    heads = [jax.ShapeDtypeStruct((1, length, 2, 4), jnp.float32)] * 3
    tokens = EncoderInputs(ids, ids, jax.ShapeDtypeStruct((1, length), jnp.bool_), None, ids)
    cut = str(jax.make_jaxpr(lambda *a: attend_locally(*a, reach=64))(*heads, tokens))
    whole = str(jax.make_jaxpr(lambda *a: attend_in_whole_rows(*a, reach=64))(*heads, tokens))
    assert "1000,1000]" in whole and "1000,1000]" not in cut


def test_an_encoder_with_blocks_equals_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = encoder(), rows(20, 13, room=20)
    variables = weights(model, inputs)
    whole = run(model, variables, inputs)["sequence_output"]
    monkeypatch.setattr(local_attention, "_LEAST_BLOCK", 4)
    cut = run(model, variables, inputs)["sequence_output"]
    mask = inputs["input_mask"][..., None]
    np.testing.assert_allclose(cut * mask, whole * mask, rtol=1e-4, atol=1e-5)


def test_half_precision_is_close_to_full() -> None:
    model, inputs = encoder(), rows(12, 9, room=12)
    variables = weights(model, inputs)
    full = run(model, variables, inputs)["sequence_output"]
    half = run(model, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), variables), inputs)["sequence_output"]
    assert half.dtype == jnp.bfloat16
    difference = (half.astype(jnp.float32) - full) * inputs["input_mask"][..., None]
    assert float(jnp.sqrt(jnp.mean(difference**2))) < 0.05


def test_on_gpus_packed_rows_have_gradients_without_a_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "platform", "gpu")
    monkeypatch.setattr(local_attention, "_LEAST_BLOCK", 2)
    model, (packed, _) = encoder(), packed_and_apart()

    def loss(variables: Any) -> jax.Array:
        total: jax.Array = model.apply(variables, packed)["sequence_output"].sum()
        return total

    with Placement(jax.devices()[:1]).tracing():
        step = jax.jit(jax.grad(loss)).trace(shapes(model, packed))
    assert "stablehlo.scatter" not in step.lower(lowering_platforms=("cuda",)).as_text()


def test_parameters_tell_the_names_of_their_axes_and_have_no_biases() -> None:
    named = jax.eval_shape(encoder().init, jax.random.key(0), rows(8, room=8))["params"]
    names = nn.get_partition_spec(named)
    assert names["embeddings"]["word_embeddings"]["embedding"] == P("vocab", "embed")
    assert names["layer_0"]["attention"]["qkv"] == {"kernel": P("embed", None, "heads", "kv")}
    assert names["layer_0"]["attention"]["output"] == {"kernel": P("heads", "kv", "embed")}
    assert names["layer_0"]["feedforward"]["intermediate"] == {"kernel": P("embed", None, "mlp")}
    assert names["layer_0"]["feedforward"]["output"] == {"kernel": P("mlp", "embed")}
    assert "attention_layer_norm" in names["layer_1"] and "attention_layer_norm" not in names["layer_0"]


def test_heads_have_an_inner_layer_and_a_norm_without_biases() -> None:
    inputs = rows(8, room=8)
    pretrainer = BertPretrainer(PretrainerConfig(encoder=config()), encoder())
    masked_lm = shapes(pretrainer, inputs)["params"]["masked_lm"]
    assert {name: sorted(leaves) for name, leaves in masked_lm.items() if name != "output_bias"} == {
        "dense": ["kernel"],
        "layer_norm": ["scale"],
    }
    classifier = BertClassifier(encoder(), num_classes=3, init_cls_pooler=True)
    head = shapes(classifier, inputs)["params"]["sentence_prediction"]
    assert {name: sorted(leaves) for name, leaves in head.items()} == {
        "pooler_dense": ["kernel"],
        "pooler_layer_norm": ["scale"],
        "logits": ["bias", "kernel"],
    }
    assert set(classifier.checkpoint_items) == {"encoder", "masked_lm.dense", "masked_lm.layer_norm"}
    spans = shapes(BertSpanLabeler(encoder()), inputs)["params"]["span_labeling"]
    assert set(spans) == {"dense", "layer_norm", "logits"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 16}, "modernbert.num_attention_heads is 16, .* heads of an odd size"),
        ({"num_attention_heads": 3}, "modernbert.num_attention_heads is 3, .* heads of unequal sizes"),
        ({"num_attention_heads": 0}, "modernbert.num_attention_heads is 0, but it is from 1"),
        ({"local_attention": 0}, "modernbert.local_attention is 0, so that a token would see nothing but itself"),
        ({"global_attention_interval": 0}, "modernbert.global_attention_interval is 0, but it is from 1 to 1000"),
        ({"global_rope_theta": 0.0}, "modernbert.global_rope_theta is 0.0, but rotary positions need"),
        ({"local_rope_theta": float("nan")}, "modernbert.local_rope_theta is nan, but rotary positions need"),
    ],
)
def test_what_cannot_be_built_is_refused_by_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoder(**changes)


def test_blocks_of_other_classes_are_refused() -> None:
    model = build_encoder(config(), attention_cls=TalkingHeadsAttention)
    with pytest.raises(ArgumentError, match="modernbert, which is built of blocks of its own"):
        jax.eval_shape(model.init, jax.random.key(0), rows(8, room=8))


def test_a_row_that_is_too_long_and_a_batch_without_a_mask_are_refused() -> None:
    with pytest.raises(ModelError, match="65 tokens.*64 positions"):
        jax.eval_shape(encoder().init, jax.random.key(0), rows(65, room=65))
    inputs = rows(8, room=8)
    del inputs["input_mask"]
    with pytest.raises(ModelError, match="input_mask is not in the batch"):
        jax.eval_shape(encoder().init, jax.random.key(0), inputs)
