"""The settings of encoders, as Hugging Face writes them in `config.json` and as Trellis names them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from trellis.errors import ArgumentError

_THEIR_ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "linear",
}
_OUR_ACTIVATIONS = {
    "gelu": "gelu_new",
    "gelu_exact": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "linear",
}


class Setting(NamedTuple):
    """A setting under its two names."""

    theirs: str
    ours: str
    default: Any
    """What Hugging Face takes if `config.json` does not say."""


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

_THEIR_CONSTANTS: Mapping[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "tie_word_embeddings": True,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "trigram_input": True,
    "use_bottleneck": True,
}
"""What other models may have otherwise, and ours cannot."""
_OUR_CONSTANTS: Mapping[str, Any] = {"norm_first": False, "embedding_size": None}


def read_config(config: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    """Returns the fields of an `EncoderConfig`, such as `{"type": "bert", "bert": {…}}`, from those of `config.json`.

    Args:
        place: What errors call the file.
    """
    kind = config.get("model_type", "")
    if kind not in SETTINGS:
        raise ArgumentError(f"{place}: model_type is {kind!r}, but only {', '.join(SETTINGS)} can be read.")
    for name, value in _THEIR_CONSTANTS.items():
        if config.get(name, value) != value:
            raise ArgumentError(f"{place}: {name} is {config[name]!r}, but only models with {value!r} can be read.")
    fields = {setting.ours: config.get(setting.theirs, setting.default) for setting in SETTINGS[kind]}
    missing = [setting.theirs for setting in SETTINGS[kind] if fields[setting.ours] is None]
    if missing:
        raise ArgumentError(f"{place} does not say {', '.join(missing)}, which its weights cannot be read without.")
    fields["hidden_activation"] = _translated(_THEIR_ACTIVATIONS, fields["hidden_activation"], f"{place}: hidden_act")
    return {"type": kind, kind: fields}


def write_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `config.json` from those of an `EncoderConfig`, all of which have to be given."""
    kind = fields["type"]
    ours = fields[kind]
    for name, value in _OUR_CONSTANTS.items():
        if ours.get(name, value) not in (value, ours["hidden_size"]):
            raise ArgumentError(f"encoder.{kind}.{name} is {ours[name]!r}, which Hugging Face's {kind} does not have.")
    config = {setting.theirs: ours[setting.ours] for setting in SETTINGS[kind]}
    name = f"encoder.{kind}.hidden_activation"
    config["hidden_act"] = _translated(_OUR_ACTIVATIONS, config["hidden_act"], name)
    return {"model_type": kind, **config}


def _translated(names: Mapping[str, str], name: str, place: str) -> str:
    if name not in names:
        raise ArgumentError(f"{place} is {name!r}, but there are only: {', '.join(names)}.")
    return names[name]
