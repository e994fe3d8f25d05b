"""Settings and weights of encoders under their two names: as Hugging Face has them, and as Trellis has them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

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


class Setting(NamedTuple):
    """A setting under its two names."""

    theirs: str
    ours: str
    default: Any
    """Hugging Face's value if `config.json` has none; None if it must have one."""


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
SETTINGS: Mapping[str, tuple[Setting, ...]] = {
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
}
"""By `model_type`, which is also the type of encoder."""

_THEIR_CONSTANTS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "bert": {},
    "albert": {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    # A row's last word sees the padding behind it, and ours is padded with 0.
    "mobilebert": {"trigram_input": (True,), "use_bottleneck": (True,), "pad_token_id": (0, None)},
}
"""Settings that have one value in all of our models, or one of a few, by `model_type`."""
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
)
_OUR_CONSTANTS: Mapping[str, Any] = {"norm_first": False, "embedding_size": None}
_TORCH_EPSILON = 1e-5
"""That of two norms of Hugging Face's MobileBERT, whatever `layer_norm_eps` is."""
_OUTSIDE_ENCODER = ("model_type", "architectures", "id2label", "label2id", "num_labels", "problem_type")


def read_config(config: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    """Returns the fields of an `EncoderConfig`, such as `{"type": "bert", "bert": {…}}`, from those of `config.json`.

    Args:
        place: What errors call the file.
    """
    kind = config.get("model_type", "")
    if not isinstance(kind, str) or kind not in SETTINGS:
        raise ArgumentError(f"{place}: model_type is {kind!r:.40}, but only {', '.join(SETTINGS)} can be read.")
    for name, values in _constants(kind).items():
        if config.get(name, values[0]) not in values:
            raise ArgumentError(f"{place}: {name} is {config[name]!r}, but only models with {values[0]!r} can be read.")
    for setting in SETTINGS[kind]:
        name, value = setting.theirs, config.get(setting.theirs)
        least = 0 if name == "num_hidden_layers" else 1
        is_size = isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31
        if name in _SIZES and value is not None and not is_size:
            raise ArgumentError(f"{place}: {name} is {value!r:.40}, but it is a whole number from {least} on.")
    fields = {setting.ours: config.get(setting.theirs, setting.default) for setting in SETTINGS[kind]}
    missing = [setting.theirs for setting in SETTINGS[kind] if fields[setting.ours] is None]
    if missing:
        raise ArgumentError(f"{place} does not say {', '.join(missing)}, which its weights cannot be read without.")
    fields["hidden_activation"] = _translated(_THEIR_ACTIVATIONS, fields["hidden_activation"], f"{place}: hidden_act")
    width = fields.get("intra_bottleneck_size", fields["hidden_size"])
    n_heads = fields["num_attention_heads"]
    if width % n_heads:
        raise ArgumentError(f"{place}: num_attention_heads is {n_heads}, which does not divide the width, {width}.")
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
    kind = config["model_type"]
    used = {setting.theirs for setting in SETTINGS[kind]} | set(_constants(kind)) | set(_OUTSIDE_ENCODER)
    used |= {"tie_word_embeddings", "true_hidden_size"}
    return sorted(config.keys() - used)


def write_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `config.json` from those of an `EncoderConfig`, all of which have to be there."""
    kind = fields["type"]
    if kind not in SETTINGS:
        raise ArgumentError(f"encoder.type is {kind}, but Hugging Face's models are {', '.join(SETTINGS)}.")
    ours = fields[kind]
    for name, value in _OUR_CONSTANTS.items():
        if ours.get(name, value) not in (value, ours["hidden_size"]):
            raise ArgumentError(f"encoder.{kind}.{name} is {ours[name]!r}, which Hugging Face's {kind} does not have.")
    config = {setting.theirs: ours[setting.ours] for setting in SETTINGS[kind]}
    name = f"encoder.{kind}.hidden_activation"
    config["hidden_act"] = _translated(_OUR_ACTIVATIONS, config["hidden_act"], name)
    if kind == "mobilebert":
        config["key_query_shared_bottleneck"] &= not config["use_bottleneck_attention"]
        _check_mobilebert_norms(ours)
    return {"model_type": kind, **config}


def _constants(kind: str) -> dict[str, Sequence[Any]]:
    return {**_THEIR_COMMON_CONSTANTS, **_THEIR_CONSTANTS[kind]}


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


@dataclass(frozen=True)
class Weight:
    """An array under its two names and in its two shapes."""

    theirs: str
    ours: str
    """A path such as `encoder/layer_0/attention/query/kernel`."""
    shape: tuple[int, ...]
    """The shape of ours."""
    their_shape: tuple[int, ...]
    is_transposed: bool = False
    """Whether theirs is a matrix, and ours has its axes in the other order."""

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """The array in our shape."""
        return np.ascontiguousarray((array.T if self.is_transposed else array).reshape(self.shape))

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """The array in their shape."""
        matrix = array.reshape(self.their_shape[::-1]).T if self.is_transposed else array.reshape(self.their_shape)
        return np.ascontiguousarray(matrix)


def weights_of(kind: str, config: Mapping[str, Any], *, n_classes: int = 2) -> dict[str, list[Weight]]:
    """Returns all weights that a model of these settings may have, by its parts.

    The parts are `encoder`, `pooler`, and the heads.

    Args:
        config: The fields of `config.json`.
        n_classes: The number of classes of `sentence_prediction`, `multi_label` or `tagging`.
    """
    encoders = {"bert": _bert, "albert": _albert, "mobilebert": _mobilebert}
    hidden_size = config["hidden_size"]
    pooler = "pooler" if kind == "albert" else "pooler.dense"
    next_sentence = "sop_classifier.classifier" if kind == "albert" else "cls.seq_relationship"
    return {
        "encoder": list(encoders[kind](config)),
        "pooler": list(_dense(pooler, "encoder/pooler", hidden_size, hidden_size)),
        "masked_lm": list(_masked_lm(kind, config)),
        "next_sentence": list(_dense(next_sentence, "next_sentence/logits", hidden_size, 2)),
        "sentence_prediction": list(_dense("classifier", "sentence_prediction/logits", hidden_size, n_classes)),
        "multi_label": list(_dense("classifier", "multi_label/logits", hidden_size, n_classes)),
        "tagging": list(_dense("classifier", "tagging/logits", hidden_size, n_classes)),
        "span_labeling": list(_dense("qa_outputs", "span_labeling/logits", hidden_size, 2)),
    }


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
        ("token_type_embeddings", "type_embeddings", (config["type_vocab_size"], width)),
    ):
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


def _masked_lm(kind: str, config: Mapping[str, Any]) -> Iterator[Weight]:
    hidden_size, vocab_size = config["hidden_size"], config["vocab_size"]
    width = config["embedding_size"] if kind == "albert" else hidden_size
    head = "predictions" if kind == "albert" else "cls.predictions"
    transform = head if kind == "albert" else f"{head}.transform"
    yield from _dense(f"{transform}.dense", "masked_lm/dense", hidden_size, width)
    yield from _norm(f"{transform}.LayerNorm", "masked_lm/layer_norm", width)
    yield Weight(f"{head}.bias", "masked_lm/output_bias", (vocab_size,), (vocab_size,))
    if kind == "mobilebert" and hidden_size > config["embedding_size"]:
        extra = (vocab_size, hidden_size - config["embedding_size"])
        name = "masked_lm/extra_output_weights"
        yield Weight(f"{head}.dense.weight", name, extra, extra[::-1], is_transposed=True)
