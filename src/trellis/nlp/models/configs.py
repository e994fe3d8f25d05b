"""Settings of encoders, and of the heads on them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from trellis.config import Config, OneOfConfig, Problem, origin_of

Activation = Literal["gelu", "gelu_exact", "relu", "silu", "swish", "tanh", "linear"]
"""Functions between layers by name; `gelu` is the tanh approximation, `gelu_exact` is made of the error function."""

_COUNTS = ("num_layers", "num_blocks", "num_feedforward_networks")
_FROM_ZERO = (*_COUNTS, "pad_token_id")
_MOST: Mapping[str, int] = {
    **dict.fromkeys(_COUNTS, 1000),
    **dict.fromkeys(("num_attention_heads", "type_vocab_size"), 1 << 16),
    **dict.fromkeys(("hidden_size", "intermediate_size", "intra_bottleneck_size"), 1 << 20),
    **dict.fromkeys(("embedding_size", "embedding_width", "word_embed_size"), 1 << 20),
    **dict.fromkeys(("max_position_embeddings", "max_sequence_length"), 1 << 24),
    **dict.fromkeys(("vocab_size", "word_vocab_size", "pad_token_id"), 1 << 28),
    "global_attention_interval": 1000,
}
"""The greatest sizes, far above those of any model: with greater ones, tracing would never end, or overflow."""
_VOCABULARY = ("vocab_size", "word_vocab_size")
_POSITIONS = ("max_position_embeddings", "max_sequence_length")
_READ_BY_TASKS = (_VOCABULARY, _POSITIONS, ("type_vocab_size",))
_READ_BY_HEADS = (("hidden_size",), ("initializer_range",), ("norm_epsilon",))
"""What the config of every encoder has, under one of these names."""


@dataclass
class TransformerConfig(Config):
    """What BERT and ALBERT have in common; the defaults are those of BERT-base."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    hidden_activation: Activation = "gelu"
    intermediate_size: int = 3072
    dropout_rate: float = 0.1
    """The rate of dropout after the embeddings and at the end of each block's two halves."""
    attention_dropout_rate: float = 0.1
    """The share of attention weights that are dropped."""
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    return_all_encoder_outputs: bool = False
    norm_epsilon: float = 1e-12
    use_gradient_checkpointing: bool = False
    """Whether the backward pass computes each layer again, which takes more time and less memory."""

    head_activation: ClassVar[Activation] = "tanh"
    """That of the dense layer of a head that classifies sequences."""


@dataclass
class BertEncoderConfig(TransformerConfig):
    """A BERT encoder; the defaults are those of BERT-base."""

    embedding_size: int | None = None
    """The width of the embeddings, which are then projected to `hidden_size`; null is the same width."""
    output_range: int | None = None
    """How many positions, from the first, the last layer is computed for; null is all."""
    return_attention_scores: bool = False
    return_word_embeddings: bool = False
    norm_first: bool = False
    """Whether blocks normalise their inputs instead of their outputs."""


@dataclass
class AlbertEncoderConfig(TransformerConfig):
    """An ALBERT encoder: BERT with one layer used again and again; the defaults are those of ALBERT-base."""

    vocab_size: int = 30000
    embedding_width: int = 128
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0


@dataclass
class RobertaEncoderConfig(TransformerConfig):
    """A RoBERTa encoder: BERT without kinds of segments; the defaults are those of RoBERTa-base."""

    vocab_size: int = 50265
    hidden_activation: Activation = "gelu_exact"
    max_position_embeddings: int = 514
    """The rows of the table of positions; the first token of a sequence has the row after that of padding."""
    type_vocab_size: int = 1
    norm_epsilon: float = 1e-5
    pad_token_id: int = 1
    """The id of padding, and the row of the table of positions that stands for it."""

    @property
    def first_position(self) -> int:
        """The row of the table of positions that the first token of a sequence has."""
        return self.pad_token_id + 1


@dataclass
class XlmRobertaEncoderConfig(RobertaEncoderConfig):
    """A RoBERTa encoder for a hundred languages; the defaults are those of XLM-R-base."""

    vocab_size: int = 250002


@dataclass
class DistilBertEncoderConfig(Config):
    """A DistilBERT encoder: BERT of half the depth, which looks at no types and has no pooler."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 6
    num_attention_heads: int = 12
    hidden_activation: Activation = "gelu_exact"
    intermediate_size: int = 3072
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    max_position_embeddings: int = 512
    initializer_range: float = 0.02
    return_all_encoder_outputs: bool = False
    norm_epsilon: float = 1e-12
    use_gradient_checkpointing: bool = False
    """Whether the backward pass computes each layer again, which takes more time and less memory."""

    head_activation: ClassVar[Activation] = "relu"


@dataclass
class MobileBertEncoderConfig(Config):
    """A MobileBERT encoder: deep and thin, with bottlenecks; the defaults are those of its teacher, IB-BERT."""

    word_vocab_size: int = 30522
    word_embed_size: int = 128
    type_vocab_size: int = 2
    max_sequence_length: int = 512
    num_blocks: int = 24
    hidden_size: int = 512
    num_attention_heads: int = 4
    intermediate_size: int = 4096
    hidden_activation: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    intra_bottleneck_size: int = 1024
    """The width inside of a block."""
    initializer_range: float = 0.02
    use_bottleneck_attention: bool = False
    """Whether queries, keys and values all come from the block's narrowed input."""
    key_query_shared_bottleneck: bool = False
    """Whether queries and keys come from a narrowed input of their own."""
    num_feedforward_networks: int = 1
    normalization_type: Literal["layer_norm", "no_norm"] = "layer_norm"
    """`no_norm` is a scale and a bias for each channel."""
    classifier_activation: bool = True
    """Whether the pooled output is a dense layer and a tanh; else it is the first token's output as it is."""
    input_mask_dtype: str = "int32"
    return_all_encoder_outputs: bool = False
    norm_epsilon: float = 1e-12
    outer_norm_epsilon: float | None = None
    """That of two layer norms, of the embeddings and of the end of each block's last feedforward block; null is the
    same. `transformers` has 1e-5 there."""
    use_gradient_checkpointing: bool = False
    """Whether the backward pass computes each block again, which takes more time and less memory."""

    no_effect: ClassVar[Mapping[str, str]] = {"input_mask_dtype": "a mask of any number type is taken"}


@dataclass
class ModernBertEncoderConfig(Config):
    """A ModernBERT encoder, for long rows; the defaults are those of ModernBERT-base."""

    vocab_size: int = 50368
    hidden_size: int = 768
    num_layers: int = 22
    num_attention_heads: int = 12
    hidden_activation: Activation = "gelu_exact"
    """That of the feedforward blocks, and of the heads that are Hugging Face's."""
    intermediate_size: int = 1152
    """The width of each of the two halves of a gated feedforward block."""
    embedding_dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    """The share of attention weights, and of what comes out of attention, that is dropped."""
    feedforward_dropout_rate: float = 0.0
    max_position_embeddings: int = 8192
    """The length of the longest row. Positions are rotations, so this takes no weights."""
    global_attention_interval: int = 3
    """Of so many layers the first sees whole rows; in the others tokens see those near them."""
    local_attention: int = 128
    """The width of the window in which tokens see each other: half of it on each side."""
    global_rope_theta: float = 160_000.0
    """How slowly rotary positions turn where tokens see whole rows."""
    local_rope_theta: float = 10_000.0
    """The same in windows."""
    classifier_pooling: Literal["cls", "mean"] = "cls"
    """Which vector stands for a sequence: that of its first token, or the mean over all."""
    initializer_range: float = 0.02
    return_all_encoder_outputs: bool = False
    norm_epsilon: float = 1e-5
    use_gradient_checkpointing: bool = False
    """Whether the backward pass computes each layer again, which takes more time and less memory."""

    @property
    def head_activation(self) -> Activation:
        """That of the dense layer of a head that classifies sequences."""
        return self.hidden_activation

    def problems(self, *, place: str) -> Iterator[Problem]:
        """Yields why such an encoder cannot be built.

        Args:
            place: The path of this config, for messages.
        """
        width, n_heads = self.hidden_size, self.num_attention_heads
        found = {}
        if n_heads > 0 and width % (2 * n_heads):
            share = "heads of an odd size" if width % n_heads == 0 else "heads of unequal sizes"
            message = f"is {n_heads}, which shares a hidden_size of {width} out to {share}."
            advice = "Choose it so that heads have an even size: their two halves are turned by positions."
            found["num_attention_heads"] = message, advice
        if self.local_attention < 2:
            message = f"is {self.local_attention}, so that a token would see nothing but itself."
            found["local_attention"] = message, "Set it to the width of the window, such as 128."
        for name in ("global_rope_theta", "local_rope_theta"):
            theta = getattr(self, name)
            if not 1 < theta < float("inf"):
                message = f"is {theta}, but rotary positions need a number above 1."
                found[name] = message, "Published are 160000 for whole rows, and 10000 for windows."
        for name, (message, advice) in found.items():
            yield Problem(f"{place}.{name} {message}", origin_of(self, name), f"{place}.{name}", advice)


@dataclass
class DecoderConfig(Config):
    """A decoder, which reads from left to right and tells what comes next; the defaults are those of GPT-2 small."""

    vocab_size: int | None = None
    """How many tokens it knows; null is those of the text, rounded up to a multiple of 64."""
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    hidden_activation: Activation = "gelu"
    intermediate_size: int | None = None
    """The width inside of a block; null is four times `hidden_size`."""
    dropout_rate: float = 0.0
    """The rate of dropout after the embeddings and at the end of each block's two halves."""
    attention_dropout_rate: float = 0.0
    """The share of attention weights that are dropped."""
    max_position_embeddings: int = 1024
    """The length of the longest sequence that it reads: its context."""
    use_bias: bool = True
    """Whether dense layers and norms add a bias."""
    initializer_range: float = 0.02
    norm_epsilon: float = 1e-5
    use_gradient_checkpointing: bool = False
    """Whether the backward pass computes each layer again, which takes more time and less memory."""

    def problems(self, *, place: str = "model") -> Iterator[Problem]:
        """Yields why no decoder can be built.

        Args:
            place: The path of this config, for messages.
        """
        yield from _size_problems(self, place=place)
        n_heads = self.num_attention_heads
        if n_heads > 0 and self.hidden_size % n_heads:
            message = f"{place}.num_attention_heads is {n_heads}, which does not divide hidden_size={self.hidden_size}."
            path = f"{place}.num_attention_heads"
            yield Problem(message, origin_of(self, "num_attention_heads"), path, "Choose one that does.")


@dataclass
class EncoderConfig(OneOfConfig):
    """The encoder that a model is built on; `any` is for one of your own.

    Its config is what the encoder's class, or a function that returns the encoder, is bound to.

    Example:
        @dataclass
        class MyEncoderConfig(TransformerConfig):
            n_groups: int = 4

        @bind(MyEncoderConfig)
        class MyEncoder(nn.Module):
            config: MyEncoderConfig
            …

        EncoderConfig(type="any", any=MyEncoderConfig(num_layers=2))
    """

    type: str | None = "bert"
    albert: AlbertEncoderConfig = AlbertEncoderConfig()
    bert: BertEncoderConfig = BertEncoderConfig()
    distilbert: DistilBertEncoderConfig = DistilBertEncoderConfig()
    mobilebert: MobileBertEncoderConfig = MobileBertEncoderConfig()
    modernbert: ModernBertEncoderConfig = ModernBertEncoderConfig()
    roberta: RobertaEncoderConfig = RobertaEncoderConfig()
    xlm_roberta: XlmRobertaEncoderConfig = XlmRobertaEncoderConfig()
    any: Config | None = None

    @property
    def vocab_size(self) -> int:
        """How many tokens the encoder knows."""
        return int(self._first_of(_VOCABULARY))

    @property
    def n_positions(self) -> int:
        """The length of the longest sequence that the encoder reads."""
        return int(self._first_of(_POSITIONS)) - int(getattr(self.get(), "first_position", 0))

    @property
    def n_types(self) -> int:
        """How many kinds of segments the encoder takes: at least 2 if it reads pairs of two kinds, or looks at none."""
        return int(getattr(self.get(), "type_vocab_size", 2))

    def _first_of(self, names: Sequence[str]) -> Any:
        values = vars(self.get())
        return next(values[name] for name in names if name in values)

    def problems(self, *, place: str = "encoder") -> Iterator[Problem]:
        """Yields why no encoder can be built: there is none, or it has a size of nothing or beyond all reason.

        Args:
            place: The path of this config, for messages.
        """
        if self.type is None:
            message = f"{place}.type is null, but a model needs an encoder."
            own = f"Set it to {', '.join(ENCODER_TYPES)}"
            advice = f"{own}; or name a directory that says it, with its weights: task.hub_module_url=DIR."
            yield Problem(message, origin_of(self, "type"), f"{place}.type", advice)
            return
        if self.type == "any" and (lacking := _lacking(self.any)):
            message, advice = lacking
            yield Problem(f"{place}.any {message}", origin_of(self, "any"), f"{place}.any", advice)
            return
        yield from _size_problems(self.get(), place=f"{place}.{self.type}")
        if self.type == "modernbert":
            yield from self.modernbert.problems(place=f"{place}.modernbert")
        if self.n_positions < 1:
            path = f"{self.type}.{next(name for name in _POSITIONS if name in vars(self.get()))}"
            first = getattr(self.get(), "first_position", 0)
            message = f"{place}.{path} leaves no position for a token: the first of a sequence has number {first}."
            yield Problem(message, origin_of(self, path), f"{place}.{path}", f"Set it to more than {first}.")


ENCODER_TYPES = tuple(one.name for one in fields(EncoderConfig) if one.name not in ("type", "any"))
"""The encoders that are there, as `EncoderConfig.type` has them."""


def _size_problems(config: Config, *, place: str) -> Iterator[Problem]:
    for name, value in config.as_dict().items():
        least = 0 if name in _FROM_ZERO else 1
        if name not in _MOST or not isinstance(value, int) or least <= value <= _MOST[name]:
            continue
        message = f"{place}.{name} is {value}, but it is from {least} to {_MOST[name]}."
        yield Problem(message, origin_of(config, name), f"{place}.{name}", "Look for a digit too many.")


def _lacking(config: Config | None) -> tuple[str, str] | None:
    """Returns what keeps an encoder of one's own from being built, and the way out; None if nothing does."""
    if config is None:
        advice = (
            "Set it to a config of your own in the experiment's factory: EncoderConfig(type='any', any=MyConfig())."
        )
        return "is null, but the type is any.", advice
    name = type(config).__name__
    if config.BUILDER is None:
        advice = f"Write @trellis.config.bind({name}) above the encoder's class, or above a function that returns it."
        return f"is a {name}, which no encoder is bound to.", advice
    missing = [
        names[0] for names in (*_READ_BY_TASKS, *_READ_BY_HEADS) if not any(one in vars(config) for one in names)
    ]
    if missing:
        advice = "Declare them, or inherit trellis.nlp.models.TransformerConfig, which has them."
        return f"is a {name}, which lacks fields that tasks and heads read: {', '.join(missing)}.", advice
    return None


@dataclass
class ClsHeadConfig(Config):
    """A head that classifies a whole sequence by one of its tokens."""

    inner_dim: int = 0
    """The width of a dense layer before the logits; 0 is none."""
    num_classes: int = 2
    activation: Activation | None = "tanh"
    dropout_rate: float = 0.0
    cls_token_idx: int = 0
    """Which token stands for the sequence."""
    name: str | None = None
    """The head's name among the outputs and in checkpoint files."""


@dataclass
class PretrainerConfig(Config):
    """An encoder with a masked-LM head, and heads that classify."""

    encoder: EncoderConfig = EncoderConfig()
    cls_heads: list[ClsHeadConfig] = field(default_factory=list)
    mlm_activation: Activation = "gelu"
    mlm_initializer_range: float = 0.02
    mlm_output_weights_use_proj: bool = False
    """Whether a MobileBERT's masked-LM head is projected to the width of the embedding table; else that is widened."""
