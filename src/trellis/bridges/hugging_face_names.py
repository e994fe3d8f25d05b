"""Settings and weights of encoders under their two names: as Hugging Face has them, and as Trellis has them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from trellis.bridges.family import Family, Setting, Weight
from trellis.bridges.modernbert_names import CONSTANTS as MODERNBERT_CONSTANTS, MODERNBERT
from trellis.errors import ArgumentError

_THEIR_ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_accurate": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "linear",
}
# Of several names for one activation the first is the usual one; in the reverse order it is put in last, and stays.
_OUR_ACTIVATIONS = {"swish": "silu"} | {ours: theirs for theirs, ours in reversed(_THEIR_ACTIVATIONS.items())}


_ALL_KINDS = (
    Setting("hidden_size", "hidden_size", None),
    Setting("num_attention_heads", "num_attention_heads", None),
    Setting("intermediate_size", "intermediate_size", None),
    Setting("type_vocab_size", "type_vocab_size", 2),
    Setting("initializer_range", "initializer_range", 0.02),
    Setting("layer_norm_eps", "norm_epsilon", 1e-12),
)
_WORDS_AND_LAYERS = (
    Setting("vocab_size", "vocab_size", None),
    Setting("num_hidden_layers", "num_layers", None),
    Setting("max_position_embeddings", "max_position_embeddings", 512),
)
_ROBERTA = (
    *_ALL_KINDS,
    *_WORDS_AND_LAYERS,
    Setting("hidden_act", "hidden_activation", "gelu"),
    Setting("hidden_dropout_prob", "dropout_rate", 0.1),
    Setting("attention_probs_dropout_prob", "attention_dropout_rate", 0.1),
    Setting("pad_token_id", "pad_token_id", 1),
)
_SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "bert": (
        *_ALL_KINDS,
        *_WORDS_AND_LAYERS,
        Setting("hidden_act", "hidden_activation", "gelu"),
        Setting("hidden_dropout_prob", "dropout_rate", 0.1),
        Setting("attention_probs_dropout_prob", "attention_dropout_rate", 0.1),
    ),
    "albert": (
        *_ALL_KINDS,
        *_WORDS_AND_LAYERS,
        Setting("embedding_size", "embedding_width", 128),
        Setting("hidden_act", "hidden_activation", "gelu_new"),
        Setting("hidden_dropout_prob", "dropout_rate", 0.0),
        Setting("attention_probs_dropout_prob", "attention_dropout_rate", 0.0),
    ),
    "mobilebert": (
        *_ALL_KINDS,
        Setting("vocab_size", "word_vocab_size", None),
        Setting("embedding_size", "word_embed_size", 128),
        Setting("num_hidden_layers", "num_blocks", None),
        Setting("max_position_embeddings", "max_sequence_length", 512),
        Setting("hidden_act", "hidden_activation", "relu"),
        Setting("hidden_dropout_prob", "hidden_dropout_prob", 0.0),
        Setting("attention_probs_dropout_prob", "attention_probs_dropout_prob", 0.1),
        Setting("intra_bottleneck_size", "intra_bottleneck_size", 128),
        Setting("use_bottleneck_attention", "use_bottleneck_attention", False),
        Setting("key_query_shared_bottleneck", "key_query_shared_bottleneck", True),
        Setting("num_feedforward_networks", "num_feedforward_networks", 4),
        Setting("normalization_type", "normalization_type", "no_norm"),
        Setting("classifier_activation", "classifier_activation", True),
    ),
    "distilbert": (
        Setting("vocab_size", "vocab_size", None),
        Setting("max_position_embeddings", "max_position_embeddings", 512),
        Setting("n_layers", "num_layers", 6),
        Setting("n_heads", "num_attention_heads", 12),
        Setting("dim", "hidden_size", 768),
        Setting("hidden_dim", "intermediate_size", 3072),
        Setting("dropout", "dropout_rate", 0.1),
        Setting("attention_dropout", "attention_dropout_rate", 0.1),
        Setting("activation", "hidden_activation", "gelu"),
        Setting("initializer_range", "initializer_range", 0.02),
    ),
}
"""By type of encoder."""

_THEIR_CONSTANTS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "albert": {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    # A row's last word sees the padding behind it, and ours is padded with 0.
    "modernbert": MODERNBERT_CONSTANTS,
    "mobilebert": {"trigram_input": (True,), "use_bottleneck": (True,), "pad_token_id": (0, None)},
}
"""Settings that have one value in all of our models, or one of a few, by type of encoder."""
_THEIR_COMMON_CONSTANTS: Mapping[str, Sequence[Any]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}
_SIZES = (
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "type_vocab_size",
    "vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "embedding_size",
    "intra_bottleneck_size",
    "num_feedforward_networks",
    "n_layers",
    "n_heads",
    "dim",
    "hidden_dim",
    "pad_token_id",
    "local_attention",
    "global_attn_every_n_layers",
)
_FROM_ZERO = ("num_hidden_layers", "n_layers", "pad_token_id")
_DISTILBERT_EPSILON = 1e-12
"""That of all norms of Hugging Face's DistilBERT, which has no setting for it."""
_OUR_CONSTANTS: Mapping[str, Any] = {"norm_first": False, "embedding_size": None}
_TORCH_EPSILON = 1e-5
"""That of two norms of Hugging Face's MobileBERT, whatever `layer_norm_eps` is."""
_OUTSIDE_ENCODER = ("model_type", "architectures", "id2label", "label2id", "num_labels", "problem_type")


def read_config(config: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    """Returns the fields of an `EncoderConfig`, such as `{"type": "bert", "bert": {…}}`, from those of `config.json`.

    Args:
        place: What errors call the file.
    """
    kind = encoder_type(config, place=place)
    for name, values in _constants(kind).items():
        if config.get(name, values[0]) not in values:
            raise ArgumentError(f"{place}: {name} is {config[name]!r}, but only models with {values[0]!r} can be read.")
    family = FAMILIES[kind]
    settings = family.settings
    if family.with_settings is not None:
        config = family.with_settings(config, place)
    for setting in settings:
        name, value = setting.theirs, config.get(setting.theirs)
        least = 0 if name in _FROM_ZERO else 1
        is_size = isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31
        if name in _SIZES and value is not None and not is_size:
            raise ArgumentError(f"{place}: {name} is {value!r:.40}, but it is a whole number from {least} on.")
    fields = {setting.ours: config.get(setting.theirs, setting.default) for setting in settings}
    missing = [setting.theirs for setting in settings if fields[setting.ours] is None]
    if missing:
        raise ArgumentError(f"{place} does not say {', '.join(missing)}, which its weights cannot be read without.")
    their_name = _their_activation(kind)
    fields["hidden_activation"] = _translated(_THEIR_ACTIVATIONS, fields["hidden_activation"], f"{place}: {their_name}")
    width = fields.get("intra_bottleneck_size", fields["hidden_size"])
    n_heads = fields["num_attention_heads"]
    if width % n_heads:
        name = next(setting.theirs for setting in settings if setting.ours == "num_attention_heads")
        raise ArgumentError(f"{place}: {name} is {n_heads}, which does not divide the width, {width}.")
    if kind == "distilbert":
        fields["norm_epsilon"] = _DISTILBERT_EPSILON
    if kind == "mobilebert":
        inside = fields["intra_bottleneck_size"]
        if config.get("true_hidden_size", inside) != inside:
            raise ArgumentError(
                f"{place}: true_hidden_size is {config['true_hidden_size']!r}, but only models in which it is "
                f"intra_bottleneck_size, here {inside}, can be read."
            )
        # Then queries and keys come from the block's narrowed input, and a bottleneck of their own is not used.
        fields["key_query_shared_bottleneck"] &= not fields["use_bottleneck_attention"]
        if fields["normalization_type"] == "layer_norm" and fields["norm_epsilon"] != _TORCH_EPSILON:
            fields["outer_norm_epsilon"] = _TORCH_EPSILON
    return {"type": kind, kind: fields}


def fields_not_used(config: Mapping[str, Any]) -> list[str]:
    """Returns the names of the fields of `config.json` that nothing is read from."""
    kind = encoder_type(config, place="config.json")
    used = {setting.theirs for setting in FAMILIES[kind].settings} | set(_constants(kind)) | set(_OUTSIDE_ENCODER)
    used |= {"tie_word_embeddings", "true_hidden_size", "classifier_activation", "layer_types", "rope_parameters"}
    return sorted(config.keys() - used)


def write_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `config.json` from those of an `EncoderConfig`, all of which have to be there."""
    kind = fields["type"]
    if kind not in FAMILIES:
        raise ArgumentError(f"encoder.type is {kind}, but Hugging Face's models are {', '.join(FAMILIES)}.")
    ours = fields[kind]
    for name, value in _OUR_CONSTANTS.items():
        if ours.get(name, value) not in (value, ours["hidden_size"]):
            raise ArgumentError(f"encoder.{kind}.{name} is {ours[name]!r}, which Hugging Face's {kind} does not have.")
    config = {setting.theirs: ours[setting.ours] for setting in FAMILIES[kind].settings}
    their_name = _their_activation(kind)
    place = f"encoder.{kind}.hidden_activation"
    config[their_name] = _translated(_OUR_ACTIVATIONS, config[their_name], place)
    if kind == "distilbert" and ours["norm_epsilon"] != _DISTILBERT_EPSILON:
        raise ArgumentError(
            f"encoder.distilbert.norm_epsilon is {ours['norm_epsilon']}, but Hugging Face's distilbert has "
            f"{_DISTILBERT_EPSILON}, so it would answer otherwise. Train with norm_epsilon={_DISTILBERT_EPSILON}."
        )
    if kind == "mobilebert":
        config["key_query_shared_bottleneck"] &= not config["use_bottleneck_attention"]
        _check_mobilebert_norms(ours)
    family = FAMILIES[kind]
    more = {} if family.written is None else family.written(config)
    return {"model_type": family.model_type, **config, **more}


def encoder_type(config: Mapping[str, Any], *, place: str) -> str:
    """Returns the type of the encoder that `config.json` describes, as an `EncoderConfig` has it.

    Args:
        place: What errors call the file.
    """
    theirs = config.get("model_type", "")
    kind = next((ours for ours, family in FAMILIES.items() if family.model_type == theirs), None)
    if kind is None:
        known = ", ".join(family.model_type for family in FAMILIES.values())
        raise ArgumentError(f"{place}: model_type is {theirs!r:.40}, but only {known} can be read.")
    return kind


def _constants(kind: str) -> dict[str, Sequence[Any]]:
    return {**_THEIR_COMMON_CONSTANTS, **_THEIR_CONSTANTS.get(kind, {})}


def _their_activation(kind: str) -> str:
    return next(setting.theirs for setting in FAMILIES[kind].settings if setting.ours == "hidden_activation")


def _check_mobilebert_norms(ours: Mapping[str, Any]) -> None:
    outer = ours.get("outer_norm_epsilon") or ours["norm_epsilon"]
    if ours["normalization_type"] == "layer_norm" and outer != _TORCH_EPSILON:
        raise ArgumentError(
            f"encoder.mobilebert.norm_epsilon is {outer}, but Hugging Face's mobilebert with layer norms has "
            f"{_TORCH_EPSILON} in the norm of its embeddings and in the last one of each block, so it would answer "
            f"otherwise. Train with outer_norm_epsilon={_TORCH_EPSILON}, or with normalization_type=no_norm."
        )


def _translated(names: Mapping[str, str], name: str, place: str) -> str:
    if not isinstance(name, str) or name not in names:
        raise ArgumentError(f"{place} is {name!r:.40}, but there are only: {', '.join(names)}.")
    return names[name]


def weights_of(kind: str, config: Mapping[str, Any], *, n_classes: int = 2) -> dict[str, list[Weight]]:
    """Returns all weights that a model of these settings may have, by its parts.

    The parts are `encoder`, `pooler`, and the heads.

    Args:
        config: The fields of `config.json`.
        n_classes: The number of classes of `sentence_prediction`, `multi_label` or `tagging`.
    """
    family = FAMILIES[kind]
    hidden_size = config["dim" if kind == "distilbert" else "hidden_size"]
    parts = {
        "encoder": family.encoder(config),
        "masked_lm": family.masked_lm(config),
        "tagging": _dense("classifier", "tagging/logits", hidden_size, n_classes),
        "span_labeling": _dense("qa_outputs", "span_labeling/logits", hidden_size, 2),
    }
    for head in ("sentence_prediction", "multi_label"):
        parts[head] = _dense(family.classifier, f"{head}/logits", hidden_size, n_classes)
        if family.classifier_dense is not None:
            pooler = _dense(family.classifier_dense, f"{head}/pooler_dense", hidden_size, hidden_size)
            parts[head] = chain(pooler, parts[head])
    if family.pooler is not None:
        parts["pooler"] = _dense(family.pooler, "encoder/pooler", hidden_size, hidden_size)
    if family.next_sentence is not None:
        parts["next_sentence"] = _dense(family.next_sentence, "next_sentence/logits", hidden_size, 2)
    if family.heads is not None:
        parts |= family.heads(config, n_classes)
    return {name: list(weights) for name, weights in parts.items()}


def _dense(
    theirs: str, ours: str, n_inputs: int, n_outputs: int, *, shape: Sequence[int] = (), bias: Sequence[int] = ()
) -> Iterator[Weight]:
    """A dense layer.

    Args:
        shape: That of our kernel, if it is not a matrix.
        bias: The shape of our bias, if it is not a vector.
    """
    kernel_shape = tuple(shape or (n_inputs, n_outputs))
    yield Weight(f"{theirs}.weight", f"{ours}/kernel", kernel_shape, (n_outputs, n_inputs), is_transposed=True)
    yield Weight(f"{theirs}.bias", f"{ours}/bias", tuple(bias or (n_outputs,)), (n_outputs,))


def _to_heads(theirs: str, ours: str, n_inputs: int, n_outputs: int, *, n_heads: int) -> Iterator[Weight]:
    heads = (n_heads, n_outputs // n_heads)
    return _dense(theirs, ours, n_inputs, n_outputs, shape=(n_inputs, *heads), bias=heads)


def _from_heads(theirs: str, ours: str, width: int, *, n_heads: int) -> Iterator[Weight]:
    return _dense(theirs, ours, width, width, shape=(n_heads, width // n_heads, width))


def _norm(theirs: str, ours: str, width: int) -> Iterator[Weight]:
    yield Weight(f"{theirs}.weight", f"{ours}/scale", (width,), (width,))
    yield Weight(f"{theirs}.bias", f"{ours}/bias", (width,), (width,))


def _tables(config: Mapping[str, Any], *, word_width: int, width: int) -> Iterator[Weight]:
    for theirs, ours, shape in (
        ("word_embeddings", "word_embeddings", (config["vocab_size"], word_width)),
        ("position_embeddings", "position_embeddings", (config["max_position_embeddings"], width)),
        ("token_type_embeddings", "type_embeddings", (config.get("type_vocab_size", 0), width)),
    ):
        if not shape[0]:
            continue  # an encoder without types
        yield Weight(f"embeddings.{theirs}.weight", f"encoder/embeddings/{ours}/embedding", shape, shape)
    yield from _norm("embeddings.LayerNorm", "encoder/embeddings/layer_norm", width)


def _bert(config: Mapping[str, Any]) -> Iterator[Weight]:
    width, inner, n_heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    yield from _tables(config, word_width=width, width=width)
    for index in range(config["num_hidden_layers"]):
        theirs, ours = f"encoder.layer.{index}", f"encoder/layer_{index}"
        for name in ("query", "key", "value"):
            their_name = f"{theirs}.attention.self.{name}"
            yield from _to_heads(their_name, f"{ours}/attention/{name}", width, width, n_heads=n_heads)
        yield from _from_heads(f"{theirs}.attention.output.dense", f"{ours}/attention/output", width, n_heads=n_heads)
        yield from _norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/attention_layer_norm", width)
        yield from _dense(f"{theirs}.intermediate.dense", f"{ours}/feedforward/intermediate", width, inner)
        yield from _dense(f"{theirs}.output.dense", f"{ours}/feedforward/output", inner, width)
        yield from _norm(f"{theirs}.output.LayerNorm", f"{ours}/output_layer_norm", width)


def _distilbert(config: Mapping[str, Any]) -> Iterator[Weight]:
    width, inner, n_heads = config["dim"], config["hidden_dim"], config["n_heads"]
    yield from _tables(config, word_width=width, width=width)
    for index in range(config["n_layers"]):
        theirs, ours = f"transformer.layer.{index}", f"encoder/layer_{index}"
        for their_name, our_name in (("q_lin", "query"), ("k_lin", "key"), ("v_lin", "value")):
            place, our_place = f"{theirs}.attention.{their_name}", f"{ours}/attention/{our_name}"
            yield from _to_heads(place, our_place, width, width, n_heads=n_heads)
        yield from _from_heads(f"{theirs}.attention.out_lin", f"{ours}/attention/output", width, n_heads=n_heads)
        yield from _norm(f"{theirs}.sa_layer_norm", f"{ours}/attention_layer_norm", width)
        yield from _dense(f"{theirs}.ffn.lin1", f"{ours}/feedforward/intermediate", width, inner)
        yield from _dense(f"{theirs}.ffn.lin2", f"{ours}/feedforward/output", inner, width)
        yield from _norm(f"{theirs}.output_layer_norm", f"{ours}/output_layer_norm", width)


def _albert(config: Mapping[str, Any]) -> Iterator[Weight]:
    width, inner, n_heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    narrow = config["embedding_size"]
    yield from _tables(config, word_width=narrow, width=narrow)
    yield from _dense("encoder.embedding_hidden_mapping_in", "encoder/embeddings/projection", narrow, width)
    theirs, ours = "encoder.albert_layer_groups.0.albert_layers.0", "encoder/layer"
    for name in ("query", "key", "value"):
        their_name = f"{theirs}.attention.{name}"
        yield from _to_heads(their_name, f"{ours}/attention/{name}", width, width, n_heads=n_heads)
    yield from _from_heads(f"{theirs}.attention.dense", f"{ours}/attention/output", width, n_heads=n_heads)
    yield from _norm(f"{theirs}.attention.LayerNorm", f"{ours}/attention_layer_norm", width)
    yield from _dense(f"{theirs}.ffn", f"{ours}/feedforward/intermediate", width, inner)
    yield from _dense(f"{theirs}.ffn_output", f"{ours}/feedforward/output", inner, width)
    yield from _norm(f"{theirs}.full_layer_layer_norm", f"{ours}/output_layer_norm", width)


def _mobilebert(config: Mapping[str, Any]) -> Iterator[Weight]:
    width, narrow = config["hidden_size"], config["embedding_size"]
    yield from _tables(config, word_width=narrow, width=width)
    yield from _dense("embeddings.embedding_transformation", "encoder/embeddings/projection", 3 * narrow, width)
    for index in range(config["num_hidden_layers"]):
        yield from _mobilebert_block(f"encoder.layer.{index}", f"encoder/block_{index}", config)


def _mobilebert_block(theirs: str, ours: str, config: Mapping[str, Any]) -> Iterator[Weight]:
    width, inside, inner = config["hidden_size"], config["intra_bottleneck_size"], config["intermediate_size"]
    bottlenecks = {"input": "input_bottleneck"}
    if config["key_query_shared_bottleneck"]:
        bottlenecks["attention"] = "shared_bottleneck"
    for their_name, our_name in bottlenecks.items():
        yield from _dense(f"{theirs}.bottleneck.{their_name}.dense", f"{ours}/{our_name}/dense", width, inside)
        yield from _norm(f"{theirs}.bottleneck.{their_name}.LayerNorm", f"{ours}/{our_name}/layer_norm", inside)
    is_narrow = config["use_bottleneck_attention"]
    value_width = inside if is_narrow else width
    query_width = inside if config["key_query_shared_bottleneck"] else value_width
    n_heads = config["num_attention_heads"]
    for name, n_inputs in {"query": query_width, "key": query_width, "value": value_width}.items():
        their_name = f"{theirs}.attention.self.{name}"
        yield from _to_heads(their_name, f"{ours}/attention/{name}", n_inputs, inside, n_heads=n_heads)
    yield from _from_heads(f"{theirs}.attention.output.dense", f"{ours}/attention/output", inside, n_heads=n_heads)
    yield from _norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/attention_layer_norm", inside)
    last = config["num_feedforward_networks"] - 1
    for index, place in enumerate([*(f"{theirs}.ffn.{index}" for index in range(last)), theirs]):
        yield from _dense(f"{place}.intermediate.dense", f"{ours}/feedforward_{index}/intermediate", inside, inner)
        yield from _dense(f"{place}.output.dense", f"{ours}/feedforward_{index}/output", inner, inside)
        yield from _norm(f"{place}.output.LayerNorm", f"{ours}/feedforward_layer_norm_{index}", inside)
    yield from _dense(f"{theirs}.output.bottleneck.dense", f"{ours}/output", inside, width)
    yield from _norm(f"{theirs}.output.bottleneck.LayerNorm", f"{ours}/output_layer_norm", width)


def _masked_lm(
    config: Mapping[str, Any], *, dense: str, norm: str, bias: str, size: str = "hidden_size", width: str | None = None
) -> Iterator[Weight]:
    """A masked-LM head that shares the embeddings.

    Args:
        size: What the config calls the width of the encoder.
        width: What it calls that of the embeddings; None is the same.
    """
    n_inputs, n_outputs = config[size], config[width or size]
    yield from _dense(dense, "masked_lm/dense", n_inputs, n_outputs)
    yield from _norm(norm, "masked_lm/layer_norm", n_outputs)
    yield Weight(bias, "masked_lm/output_bias", (config["vocab_size"],), (config["vocab_size"],))


def _bert_masked_lm(config: Mapping[str, Any]) -> Iterator[Weight]:
    transform = "cls.predictions.transform"
    return _masked_lm(config, dense=f"{transform}.dense", norm=f"{transform}.LayerNorm", bias="cls.predictions.bias")


def _albert_masked_lm(config: Mapping[str, Any]) -> Iterator[Weight]:
    names = {"dense": "predictions.dense", "norm": "predictions.LayerNorm", "bias": "predictions.bias"}
    return _masked_lm(config, **names, width="embedding_size")


def _mobilebert_masked_lm(config: Mapping[str, Any]) -> Iterator[Weight]:
    yield from _bert_masked_lm(config)
    if config["hidden_size"] > config["embedding_size"]:
        extra = (config["vocab_size"], config["hidden_size"] - config["embedding_size"])
        name = "masked_lm/extra_output_weights"
        yield Weight("cls.predictions.dense.weight", name, extra, extra[::-1], is_transposed=True)


def _roberta_masked_lm(config: Mapping[str, Any]) -> Iterator[Weight]:
    return _masked_lm(config, dense="lm_head.dense", norm="lm_head.layer_norm", bias="lm_head.bias")


def _distilbert_masked_lm(config: Mapping[str, Any]) -> Iterator[Weight]:
    names = {"dense": "vocab_transform", "norm": "vocab_layer_norm", "bias": "vocab_projector.bias"}
    return _masked_lm(config, **names, size="dim")


_BERT_NAMES: Mapping[str, Any] = {"decoder": "cls.predictions.decoder", "next_sentence": "cls.seq_relationship"}
_ROBERTA_NAMES: Mapping[str, Any] = {
    "settings": _ROBERTA,
    "encoder": _bert,
    "masked_lm": _roberta_masked_lm,
    "decoder": "lm_head.decoder",
    "base": "roberta",
    "classifier": "classifier.out_proj",
    "classifier_dense": "classifier.dense",
    "mlm_activation": "gelu_exact",
}
FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        model_type="bert",
        class_name="Bert",
        settings=_SETTINGS["bert"],
        encoder=_bert,
        masked_lm=_bert_masked_lm,
        base="bert",
        **_BERT_NAMES,
    ),
    "albert": Family(
        model_type="albert",
        class_name="Albert",
        settings=_SETTINGS["albert"],
        encoder=_albert,
        masked_lm=_albert_masked_lm,
        decoder="predictions.decoder",
        base="albert",
        pooler="pooler",
        next_sentence="sop_classifier.classifier",
    ),
    "mobilebert": Family(
        model_type="mobilebert",
        class_name="MobileBert",
        settings=_SETTINGS["mobilebert"],
        encoder=_mobilebert,
        masked_lm=_mobilebert_masked_lm,
        base="mobilebert",
        **_BERT_NAMES,
    ),
    "roberta": Family(model_type="roberta", class_name="Roberta", **_ROBERTA_NAMES),
    "xlm_roberta": Family(model_type="xlm-roberta", class_name="XLMRoberta", **_ROBERTA_NAMES),
    "distilbert": Family(
        model_type="distilbert",
        class_name="DistilBert",
        settings=_SETTINGS["distilbert"],
        encoder=_distilbert,
        masked_lm=_distilbert_masked_lm,
        decoder="vocab_projector",
        base="distilbert",
        inside=("embeddings.", "transformer."),
        pooler=None,
        classifier_dense="pre_classifier",
    ),
    "modernbert": MODERNBERT,
}
"""By type of encoder, as `EncoderConfig.type` has it."""
