"""The three encoders: their sizes, what they return, what they see, and what their blocks can be."""

import functools
import re
from dataclasses import dataclass
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.nlp.models.tiny_encoders import (
    KINDS,
    STUDENT,
    VOCAB_SIZE,
    batch,
    config,
    encoder,
    packed_and_apart,
    run,
    shapes,
    weights,
)
from trellis.config import Config, bind
from trellis.config.fields import fields_of
from trellis.errors import ArgumentError, ConfigError, ModelError
from trellis.nlp.models import (
    BertPretrainer,
    EncoderConfig,
    GatedFeedForward,
    LayeredEncoder,
    PretrainerConfig,
    TalkingHeadsAttention,
    TransformerConfig,
    build_encoder,
    transformer,
)
from trellis.nlp.models.layers import Embeddings, EncoderInputs
from trellis.nlp.models.transformer import TransformerBlock
from trellis.runtime import Placement


def n_parameters(model: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(shapes(model, batch())["params"]))


@pytest.mark.parametrize(
    ("settings", "n"),
    [
        ({"type": "bert"}, 109_482_240),
        ({"type": "albert"}, 11_683_584),
        ({"type": "mobilebert", "mobilebert": STUDENT}, 24_581_888),
        ({"type": "mobilebert"}, 294_467_840),
    ],
    ids=["bert", "albert", "mobilebert_student", "mobilebert_teacher"],
)
def test_the_number_of_parameters_is_the_published_one(settings: dict[str, Any], n: int) -> None:
    assert n_parameters(build_encoder(EncoderConfig(settings))) == n


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_returns_a_state_for_each_token_and_one_for_all_and_more_on_request(kind: str) -> None:
    model, inputs = encoder(kind, return_all_encoder_outputs=True), batch()
    outputs = run(model, weights(model, inputs), inputs)
    assert (outputs["sequence_output"].shape, outputs["pooled_output"].shape) == ((2, 8, 16), (2, 16))
    assert len(outputs["encoder_outputs"]) == (3 if kind == "mobilebert" else 2)
    np.testing.assert_array_equal(outputs["encoder_outputs"][-1], outputs["sequence_output"])
    plain = jax.eval_shape(encoder(kind).apply, weights(model, inputs), inputs)
    assert set(plain) == {"sequence_output", "pooled_output"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_without_layers_returns_its_embeddings(kind: str) -> None:
    depth = {"num_blocks" if kind == "mobilebert" else "num_layers": 0}
    model, inputs = encoder(kind, **depth, return_all_encoder_outputs=True), batch()
    outputs = run(model, weights(model, inputs), inputs)
    assert outputs["sequence_output"].shape == (2, 8, 16)
    assert len(outputs["encoder_outputs"]) == (1 if kind == "mobilebert" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str) -> None:
    model, inputs = encoder(kind), batch(length=8)
    variables = weights(model, inputs)
    wider = {name: jnp.pad(array, ((0, 0), (0, 4))) for name, array in inputs.items()}
    # The second row ends in padding, as its trigrams see.
    outputs = run(model, variables, inputs)["sequence_output"][1, :7]
    np.testing.assert_allclose(run(model, variables, wider)["sequence_output"][1, :7], outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_equal_the_same_ones_apart(kind: str) -> None:
    model = encoder(kind)
    packed, apart = packed_and_apart()
    variables = weights(model, apart)
    together = run(model, variables, packed)["sequence_output"][0]
    alone = run(model, variables, apart)["sequence_output"]
    np.testing.assert_allclose(together[:5], alone[0, :5], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together[5:8], alone[1, :3], rtol=1e-4, atol=1e-5)


def test_a_packed_sequence_that_fills_its_row_equals_the_same_one_unpacked() -> None:
    model, inputs = encoder("mobilebert"), batch(n=1)
    variables = weights(model, inputs)
    marked = {**inputs, "segment_ids": jnp.ones((1, 8), jnp.int32), "positions": jnp.arange(8)[None]}
    np.testing.assert_allclose(
        run(model, variables, marked)["sequence_output"],
        run(model, variables, inputs)["sequence_output"],
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize(("kind", "depth"), [("bert", {"num_layers": 1}), ("mobilebert", {"num_blocks": 1})])
def test_recomputing_layers_changes_neither_names_nor_gradients(kind: str, depth: dict[str, int]) -> None:
    inputs = batch()
    plain, again = encoder(kind, **depth), encoder(kind, **depth, use_gradient_checkpointing=True)
    variables = weights(plain, inputs)

    def gradients(model: Any) -> Any:
        rngs = {"dropout": jax.random.key(1)}
        return jax.jit(
            jax.grad(lambda v: jnp.sum(model.apply(v, inputs, training=True, rngs=rngs)["sequence_output"] ** 2))
        )(variables)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradients(again), gradients(plain)
    )


def test_dropout_is_for_training_only_and_follows_its_key() -> None:
    model, inputs = encoder("bert"), batch()
    variables = weights(model, inputs)
    apply = jax.jit(model.apply, static_argnames="training")
    quiet = apply(variables, inputs)["sequence_output"]
    first, same, other = (
        apply(variables, inputs, training=True, rngs={"dropout": jax.random.key(seed)})["sequence_output"]
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert np.any(first != quiet) and np.any(first != other)
    with pytest.raises(flax.errors.InvalidRngError, match='"dropout"'):
        jax.eval_shape(functools.partial(model.apply, training=True), variables, inputs)


def test_the_last_layer_can_be_computed_for_the_first_tokens_only() -> None:
    inputs = batch()
    whole, part = encoder("bert"), encoder("bert", output_range=1)
    variables = weights(whole, inputs)
    expected = run(whole, variables, inputs)
    outputs = run(part, variables, inputs)
    assert outputs["sequence_output"].shape == (2, 1, 16)
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], rtol=1e-4, atol=1e-5)


def test_attention_scores_and_word_embeddings_come_on_request_and_change_nothing() -> None:
    inputs = batch()
    plain = encoder("bert")
    asked = encoder("bert", return_attention_scores=True, return_word_embeddings=True)
    variables = weights(plain, inputs)
    outputs = run(asked, variables, inputs)
    expected = run(plain, variables, inputs)["sequence_output"]
    np.testing.assert_allclose(outputs["sequence_output"], expected, rtol=1e-4, atol=1e-5)
    scores = outputs["attention_scores"]
    assert len(scores) == 2 and scores[0].shape == (2, 2, 8, 8)
    np.testing.assert_allclose(jnp.sum(scores[1], axis=-1), 1, rtol=1e-5)
    assert np.all(scores[0][1, :, :, 7] == 0), "a score for padding"
    table = variables["params"]["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(outputs["word_embeddings"], table[inputs["input_word_ids"]])


def test_norms_can_come_first() -> None:
    inputs = batch()
    model = encoder("bert", norm_first=True, return_all_encoder_outputs=True)
    layers = run(model, weights(model, inputs), inputs)["encoder_outputs"]
    # What comes out of a layer is not normalised then.
    assert np.abs(np.var(layers[-1], axis=-1) - 1).max() > 0.1


def test_narrow_embeddings_are_projected() -> None:
    inputs = batch()
    params = weights(encoder("bert", embedding_size=4), inputs)["params"]["embeddings"]
    assert params["word_embeddings"]["embedding"].shape == (40, 4)
    assert params["projection"]["kernel"].shape == (4, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_and_feedforward_blocks_can_be_replaced(kind: str) -> None:
    model = build_encoder(config(kind), attention_cls=TalkingHeadsAttention, feedforward_cls=GatedFeedForward)
    inputs = batch()
    variables = weights(model, inputs)
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(variables)}
    assert any(name.endswith("attention/before_softmax") for name in names)
    assert any(name.endswith("gate/kernel") for name in names)
    outputs = run(model, variables, inputs, training=True, rngs={"dropout": jax.random.key(1)})["sequence_output"]
    assert outputs.shape == (2, 8, 16) and np.all(np.isfinite(outputs))


def test_the_kernel_of_cudnn_is_not_for_loops_that_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_cudnn_takes", lambda query, key: True)
    monkeypatch.setattr(transformer, "_by_cudnn", lambda query, key, value, mask, is_causal: query)
    model = encoder("bert")
    variables = weights(model, batch())
    for exact, cudnn_is_chosen in ((True, False), (False, True)):
        with Placement(exact=exact).tracing():
            traced = jax.make_jaxpr(model.apply)(variables, batch())
        assert ("platform_index" in str(traced)) is cudnn_is_chosen


@pytest.mark.parametrize("kind", KINDS)
def test_on_gpus_packed_rows_have_gradients_without_a_scatter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "platform", "gpu")
    model, (packed, _) = encoder(kind), packed_and_apart()

    def loss(variables: Any) -> jax.Array:
        total: jax.Array = model.apply(variables, packed)["sequence_output"].sum()
        return total

    with Placement(jax.devices()[:1]).tracing():
        step = jax.jit(jax.grad(loss)).trace(shapes(model, packed))
    assert "stablehlo.scatter" not in step.lower(lowering_platforms=("cuda",)).as_text()


def test_heads_that_do_not_talk_are_plain_attention() -> None:
    inputs = batch()
    plain, talking = encoder("bert"), build_encoder(config("bert"), attention_cls=TalkingHeadsAttention)
    variables = weights(plain, inputs)
    params = jax.tree.map(lambda leaf: leaf, variables["params"])
    for layer in ("layer_0", "layer_1"):
        params[layer]["attention"] |= {"before_softmax": jnp.eye(2), "after_softmax": jnp.eye(2)}
    np.testing.assert_allclose(
        run(talking, {"params": params}, inputs)["sequence_output"],
        run(plain, variables, inputs)["sequence_output"],
        rtol=1e-4,
        atol=1e-5,
    )


def test_parameters_tell_the_names_of_their_axes() -> None:
    named = jax.eval_shape(encoder("bert").init, jax.random.key(0), batch())["params"]
    names = nn.get_partition_spec(named)
    assert names["embeddings"]["word_embeddings"]["embedding"] == P("vocab", "embed")
    attention, feedforward = names["layer_0"]["attention"], names["layer_0"]["feedforward"]
    assert attention["query"] == {"kernel": P("embed", "heads", "kv"), "bias": P("heads", "kv")}
    assert attention["output"]["kernel"] == P("heads", "kv", "embed")
    assert feedforward["intermediate"] == {"kernel": P("embed", "mlp"), "bias": P("mlp")}
    assert feedforward["output"]["kernel"] == P("mlp", "embed")


def test_a_sequence_longer_than_the_position_table_is_refused() -> None:
    with pytest.raises(ModelError, match="17 tokens.*16 positions"):
        jax.eval_shape(encoder("bert").init, jax.random.key(0), batch(length=17))


def test_a_batch_without_a_mask_is_refused_with_what_it_has() -> None:
    inputs = {name: array for name, array in batch().items() if name != "input_mask"}
    with pytest.raises(ModelError, match="input_mask is not in the batch, which has: input_type_ids, input_word_ids"):
        jax.eval_shape(encoder("albert").init, jax.random.key(0), inputs)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ArgumentError, match="width of 16.*3 attention heads"):
        jax.eval_shape(encoder("bert", num_attention_heads=3).init, jax.random.key(0), batch())


def test_no_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="encoder.type is null"):
        build_encoder(EncoderConfig(type=None))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bert": {"num_layers": 10**9}}, r"encoder.bert.num_layers is 1000000000, but it is from 0 to 1000"),
        ({"bert": {"hidden_size": 0}}, r"encoder.bert.hidden_size is 0, but it is from 1 to 1048576"),
        ({"type": "albert", "albert": {"vocab_size": -1}}, r"encoder.albert.vocab_size is -1"),
        ({"type": "mobilebert", "mobilebert": {"num_feedforward_networks": 10**9}}, "num_feedforward_networks is 1000"),
    ],
)
def test_sizes_beyond_all_reason_are_refused_before_anything_is_built(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_encoder(EncoderConfig(fields))


@dataclass
class GroupedConfig(TransformerConfig):
    n_groups: int = 2


@bind(GroupedConfig)
class GroupedEncoder(LayeredEncoder):
    """Layers that are each called several times: an encoder that only a test knows."""

    config: GroupedConfig

    def setup(self) -> None:
        self.embeddings = Embeddings(self.config, self.config.hidden_size, is_projected=False)
        self.layer = [self.build_layer(TransformerBlock) for _ in range(self.config.num_layers)]
        self.pooler = self.build_pooler()

    def __call__(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        tokens = EncoderInputs.read(inputs, max_length=self.config.max_position_embeddings)
        return self.outputs(self.run_layers(tokens, self.layer * self.config.n_groups, training))


def grouped(**changes: Any) -> EncoderConfig:
    sizes = config("bert").bert.as_dict()
    shared = {name: sizes[name] for name in fields_of(TransformerConfig)}
    return EncoderConfig(type="any", any=GroupedConfig(**{**shared, **changes}))


def test_an_encoder_of_ones_own_is_built_by_what_is_bound_to_its_config() -> None:
    settings = grouped(n_groups=3)
    model, inputs = build_encoder(settings), batch()
    assert isinstance(model, GroupedEncoder) and model.config.n_groups == 3
    assert run(model, weights(model, inputs), inputs)["sequence_output"].shape == (2, 8, 16)
    assert (settings.vocab_size, settings.n_positions) == (VOCAB_SIZE, 16)
    # A file changes the fields of the class that is there.
    settings.override({"any": {"n_groups": 4}})
    assert isinstance(settings.any, GroupedConfig) and settings.any.n_groups == 4
    with pytest.raises(
        ConfigError, match="any.groups is not a field of GroupedConfig(.|\n)*Did you mean any.n_groups?"
    ):
        settings.override({"any": {"groups": 4}})


def test_an_encoder_of_ones_own_carries_heads() -> None:
    settings = PretrainerConfig(encoder=grouped())
    model, inputs = BertPretrainer(settings, encoder=build_encoder(settings.encoder)), batch()
    assert run(model, weights(model, inputs), inputs)["mlm_logits"].shape == (2, 8, VOCAB_SIZE)


@dataclass
class BareConfig(Config):
    hidden_size: int = 8


@dataclass
class UnboundConfig(TransformerConfig):
    pass


@dataclass
class OddConfig(TransformerConfig):
    pass


bind(BareConfig)(lambda config: None)
bind(OddConfig)(lambda config: config.hidden_size)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (None, r"encoder.any is null, but the type is any.\s+Set it to a config of your own"),
        (
            UnboundConfig(),
            r"is a UnboundConfig, which no encoder is bound to.\s+Write @trellis.config.bind\(UnboundConfig",
        ),
        (
            BareConfig(),
            "lacks fields that tasks and heads read: vocab_size, max_position_embeddings, type_vocab_size, ",
        ),
    ],
)
def test_an_encoder_of_ones_own_that_cannot_be_built_is_told(own: Config | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_encoder(EncoderConfig(type="any", any=own))


def test_what_an_encoder_of_ones_own_cannot_be_is_told() -> None:
    with pytest.raises(ModelError, match="The builder of OddConfig has returned 768, not a Flax module"):
        build_encoder(EncoderConfig(type="any", any=OddConfig()))
    with pytest.raises(
        ArgumentError, match="encoder.type is any, .* but attention_cls or feedforward_cls is given too"
    ):
        build_encoder(grouped(), attention_cls=TalkingHeadsAttention)
    with pytest.raises(ConfigError, match="encoder.any.num_layers is -1, but it is from 0 to 1000"):
        build_encoder(grouped(num_layers=-1))


@pytest.mark.parametrize(("dtype", "short"), [("bfloat16", "bf16"), ("float16", "f16")])
def test_attention_in_half_precision_multiplies_in_it_and_has_the_gradients_of_float32(dtype: str, short: str):
    attention = transformer.MultiHeadAttention(width=16, n_heads=2, dropout_rate=0.1)
    hidden = jax.random.normal(jax.random.key(0), (2, 6, 16))
    mask = jnp.ones((2, 1, 1, 6), bool)
    variables = attention.init(jax.random.key(1), hidden, hidden, hidden, mask, training=False)

    def loss(variables: Any, hidden: jax.Array) -> jax.Array:
        rngs = {"dropout": jax.random.key(2)}
        attended = attention.apply(variables, hidden, hidden, hidden, mask, training=True, rngs=rngs)
        return (attended.hidden.astype("float32") ** 2).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    halves = jax.tree.map(lambda x: x.astype(dtype), (variables, hidden))
    products = re.findall(r"dot_general.*: \(tensor<([^>]*)>, tensor<([^>]*)>\)", gradients.lower(*halves).as_text())
    assert len(products) == 18
    assert all(operand.endswith(f"x{short}") for operands in products for operand in operands)
    found, exact = (jax.tree.leaves(gradients(*inputs)) for inputs in (halves, (variables, hidden)))
    for mine, true in zip(found, exact, strict=True):
        np.testing.assert_allclose(np.asarray(mine, "float32"), true, atol=0.03 * float(np.abs(true).max()) + 1e-5)
