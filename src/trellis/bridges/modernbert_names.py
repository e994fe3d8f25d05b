"""ModernBERT's settings and weights under their two names."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trellis.bridges.family import Family, Setting, Weight
from trellis.errors import ArgumentError

_PERIOD, _LAYERS, _ROTATIONS = "global_attn_every_n_layers", "layer_types", "rope_parameters"
_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Where newer files have the rotations of each kind of layer, and where older ones, and ours, have them."""
_USUAL_PERIOD = 3

CONSTANTS: Mapping[str, Sequence[Any]] = {
    "norm_bias": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "classifier_bias": (False,),
    "decoder_bias": (True,),
    "classifier_pooling": ("cls", "mean"),
    "rope_scaling": (None,),
}
"""Settings that have one value in all of our models, or one of a few."""


def _with_settings(config: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    activation = config.get("hidden_activation", "gelu")
    if config.get("classifier_activation", activation) != activation:
        raise ArgumentError(
            f"{place}: classifier_activation is {config['classifier_activation']!r:.40}, but only models in which it "
            f"is hidden_activation, here {activation!r:.40}, can be read."
        )
    return {**config, _PERIOD: _period(config, place), **_thetas(config, place)}


def _period(config: Mapping[str, Any], place: str) -> Any:
    """Of so many layers the first one sees whole rows."""
    period, kinds = config.get(_PERIOD, _USUAL_PERIOD), config.get(_LAYERS)
    if kinds is None:
        return period
    names = list(_THETAS)
    is_list = isinstance(kinds, list) and len(kinds) == config.get("num_hidden_layers") and set(kinds) <= set(names)
    if is_list:
        whole = [index for index, kind in enumerate(kinds) if kind == names[0]]
        found = whole[1] if len(whole) > 1 else max(len(kinds), 1)
        for candidate in (period, _USUAL_PERIOD, found):
            is_number = isinstance(candidate, int) and candidate > 0
            if is_number and whole == list(range(0, len(kinds), candidate)):
                return candidate
    raise ArgumentError(
        f"{place}: {_LAYERS} is {kinds!r:.80}, but only models can be read in which the first of every so many of the "
        f"num_hidden_layers has full_attention, and the others have sliding_attention."
    )


def _thetas(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    rotations = config.get(_ROTATIONS) or {}
    thetas = {}
    for kind, name in _THETAS.items():
        rotation = (rotations.get(kind) or {}) if isinstance(rotations, dict) else None
        is_usual = isinstance(rotation, dict) and rotation.get("rope_type", "default") == "default"
        theta = rotation.get("rope_theta", config.get(name)) if isinstance(rotation, dict) else None
        is_number = isinstance(theta, int | float) and 1 < theta < float("inf")
        if not is_usual or not (theta is None or is_number):
            shown = theta if is_usual else rotations
            raise ArgumentError(
                f"{place}: {name} ({_ROTATIONS}.{kind}) is {shown!r:.80}, but only models with rope_type 'default' and "
                f"a rope_theta above 1 can be read."
            )
        if theta is not None:
            thetas[name] = float(theta)
    return thetas


def _written(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # No ids of special tokens: the usual ones may be beyond the vocabulary.
    ids = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    return {"classifier_activation": config["hidden_activation"], **dict.fromkeys(ids)}


def _kernel(theirs: str, ours: str, shape: tuple[int, ...], *, n_inputs: int) -> Weight:
    """A dense layer without a bias."""
    their_shape = (math.prod(shape) // n_inputs, n_inputs)
    return Weight(f"{theirs}.weight", f"{ours}/kernel", shape, their_shape, is_transposed=True)


def _scale(theirs: str, ours: str, width: int) -> Weight:
    """A norm without a bias."""
    return Weight(f"{theirs}.weight", f"{ours}/scale", (width,), (width,))


def _encoder(config: Mapping[str, Any]) -> Iterator[Weight]:
    width, inner, n_heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    table = (config["vocab_size"], width)
    yield Weight("embeddings.tok_embeddings.weight", "encoder/embeddings/word_embeddings/embedding", table, table)
    yield _scale("embeddings.norm", "encoder/embeddings/layer_norm", width)
    heads = (n_heads, width // n_heads)
    for index in range(config["num_hidden_layers"]):
        theirs, ours = f"layers.{index}", f"encoder/layer_{index}"
        if index > 0:
            yield _scale(f"{theirs}.attn_norm", f"{ours}/attention_layer_norm", width)
        yield _kernel(f"{theirs}.attn.Wqkv", f"{ours}/attention/qkv", (width, 3, *heads), n_inputs=width)
        yield _kernel(f"{theirs}.attn.Wo", f"{ours}/attention/output", (*heads, width), n_inputs=width)
        yield _scale(f"{theirs}.mlp_norm", f"{ours}/feedforward_layer_norm", width)
        yield _kernel(f"{theirs}.mlp.Wi", f"{ours}/feedforward/intermediate", (width, 2, inner), n_inputs=width)
        yield _kernel(f"{theirs}.mlp.Wo", f"{ours}/feedforward/output", (inner, width), n_inputs=inner)
    yield _scale("final_norm", "encoder/final_layer_norm", width)


def _inner_layer(theirs: str, ours: str, *, norm: str, width: int) -> Iterator[Weight]:
    """What each head has before its logits."""
    yield _kernel(f"{theirs}.dense", ours, (width, width), n_inputs=width)
    yield _scale(f"{theirs}.norm", norm, width)


def _logits(theirs: str, ours: str, *, width: int, n_classes: int) -> Iterator[Weight]:
    yield _kernel(theirs, ours, (width, n_classes), n_inputs=width)
    yield Weight(f"{theirs}.bias", f"{ours}/bias", (n_classes,), (n_classes,))


def _masked_lm(config: Mapping[str, Any]) -> Iterator[Weight]:
    vocabulary = (config["vocab_size"],)
    yield from _inner_layer("head", "masked_lm/dense", norm="masked_lm/layer_norm", width=config["hidden_size"])
    yield Weight("decoder.bias", "masked_lm/output_bias", vocabulary, vocabulary)


def _sentence_classifier(ours: str, config: Mapping[str, Any], n_classes: int) -> Iterator[Weight]:
    width = config["hidden_size"]
    yield from _inner_layer("pooled_head", f"{ours}/pooler_dense", norm=f"{ours}/pooler_layer_norm", width=width)
    yield from _logits("classifier", f"{ours}/logits", width=width, n_classes=n_classes)


def _tagging(config: Mapping[str, Any], n_classes: int) -> Iterator[Weight]:
    ours, width = "tagging", config["hidden_size"]
    yield from _inner_layer("tagging_head", f"{ours}/dense", norm=f"{ours}/layer_norm", width=width)
    yield from _logits("classifier", f"{ours}/logits", width=width, n_classes=n_classes)


def _span_labeling(config: Mapping[str, Any]) -> Iterator[Weight]:
    ours, width = "span_labeling", config["hidden_size"]
    yield from _inner_layer("qa_head", f"{ours}/dense", norm=f"{ours}/layer_norm", width=width)
    yield from _logits("qa_outputs", f"{ours}/logits", width=width, n_classes=2)


def _heads(config: Mapping[str, Any], n_classes: int) -> Mapping[str, Iterator[Weight]]:
    return {
        "sentence_prediction": _sentence_classifier("sentence_prediction", config, n_classes),
        "multi_label": _sentence_classifier("multi_label", config, n_classes),
        "tagging": _tagging(config, n_classes),
        "span_labeling": _span_labeling(config),
    }


MODERNBERT = Family(
    model_type="modernbert",
    class_name="ModernBert",
    settings=(
        Setting("vocab_size", "vocab_size", None),
        Setting("hidden_size", "hidden_size", None),
        Setting("num_hidden_layers", "num_layers", None),
        Setting("num_attention_heads", "num_attention_heads", None),
        Setting("intermediate_size", "intermediate_size", None),
        Setting("max_position_embeddings", "max_position_embeddings", 8192),
        Setting("hidden_activation", "hidden_activation", "gelu"),
        Setting("initializer_range", "initializer_range", 0.02),
        Setting("norm_eps", "norm_epsilon", 1e-5),
        Setting("embedding_dropout", "embedding_dropout_rate", 0.0),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
        Setting("mlp_dropout", "feedforward_dropout_rate", 0.0),
        Setting("local_attention", "local_attention", 128),
        Setting(_PERIOD, "global_attention_interval", _USUAL_PERIOD),
        Setting("global_rope_theta", "global_rope_theta", 160_000.0),
        Setting("local_rope_theta", "local_rope_theta", 10_000.0),
        Setting("classifier_pooling", "classifier_pooling", "cls"),
    ),
    encoder=_encoder,
    masked_lm=_masked_lm,
    decoder="decoder",
    base="model",
    inside=("embeddings.", "layers.", "final_norm."),
    pooler=None,
    classifier_dense="pooled_head.dense",
    words="embeddings.tok_embeddings.weight",
    heads=_heads,
    told_apart={
        "ForSequenceClassification": {"head.": "pooled_head."},
        "ForQuestionAnswering": {"head.": "qa_head.", "classifier.": "qa_outputs."},
        "ForTokenClassification": {"head.": "tagging_head."},
        "ForMultipleChoice": {"head.": "choice_head."},
    },
    with_settings=_with_settings,
    written=_written,
)
