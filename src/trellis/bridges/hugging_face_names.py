"""The names and shapes of weights, as Hugging Face has them and as Trellis has them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Weight:
    """An array under its two names and in its two shapes."""

    theirs: str
    ours: str
    """A path such as `encoder/layer_0/attention/query/kernel`."""
    shape: tuple[int, ...]
    """Ours."""
    matrix: tuple[int, int] | None = None
    """What ours is as a matrix, if theirs is that matrix transposed."""
    flat: bool = False
    """Whether theirs has one axis only."""

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Theirs."""
        if self.matrix is not None:
            return self.matrix[::-1]
        return (math.prod(self.shape),) if self.flat else self.shape

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """The array in our shape."""
        return np.ascontiguousarray((array if self.matrix is None else array.T).reshape(self.shape))

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """The array in their shape."""
        turned = array if self.matrix is None else array.reshape(self.matrix).T
        return np.ascontiguousarray(turned.reshape(self.their_shape))


def weights_of(kind: str, config: Mapping[str, Any], *, n_classes: int = 2) -> dict[str, list[Weight]]:
    """Returns all weights that a model of these settings may have, by the part that they are of.

    The parts are `encoder`, `pooler`, and the heads.

    Args:
        config: The fields of `config.json`.
        n_classes: Of a head that classifies.
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
        "span_labeling": list(_dense("qa_outputs", "span_labeling/logits", hidden_size, 2)),
    }


def _dense(theirs: str, ours: str, n_inputs: int, n_outputs: int) -> Iterator[Weight]:
    yield Weight(f"{theirs}.weight", f"{ours}/kernel", (n_inputs, n_outputs), (n_inputs, n_outputs))
    yield Weight(f"{theirs}.bias", f"{ours}/bias", (n_outputs,))


def _norm(theirs: str, ours: str, width: int) -> Iterator[Weight]:
    yield Weight(f"{theirs}.weight", f"{ours}/scale", (width,))
    yield Weight(f"{theirs}.bias", f"{ours}/bias", (width,))


def _tables(config: Mapping[str, Any], *, word_width: int, width: int) -> Iterator[Weight]:
    for theirs, ours, shape in (
        ("word_embeddings", "word_embeddings", (config["vocab_size"], word_width)),
        ("position_embeddings", "position_embeddings", (config["max_position_embeddings"], width)),
        ("token_type_embeddings", "type_embeddings", (config["type_vocab_size"], width)),
    ):
        yield Weight(f"embeddings.{theirs}.weight", f"encoder/embeddings/{ours}/embedding", shape)
    yield from _norm("embeddings.LayerNorm", "encoder/embeddings/layer_norm", width)


def _attention(
    theirs: str, output: str, ours: str, *, widths: tuple[int, int, int], n_outputs: int, n_heads: int
) -> Iterator[Weight]:
    """The projections to heads and back.

    Args:
        theirs: What the names of query, key and value start with.
        output: The name of the last projection.
        widths: Of what queries, keys and values are made of.
    """
    heads = (n_heads, n_outputs // n_heads)
    for name, width in zip(("query", "key", "value"), widths, strict=True):
        yield Weight(f"{theirs}.{name}.weight", f"{ours}/{name}/kernel", (width, *heads), (width, n_outputs))
        yield Weight(f"{theirs}.{name}.bias", f"{ours}/{name}/bias", heads, flat=True)
    yield Weight(f"{output}.weight", f"{ours}/output/kernel", (*heads, n_outputs), (n_outputs, n_outputs))
    yield Weight(f"{output}.bias", f"{ours}/output/bias", (n_outputs,))


def _bert(config: Mapping[str, Any]) -> Iterator[Weight]:
    width, inner, n_heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    yield from _tables(config, word_width=width, width=width)
    for index in range(config["num_hidden_layers"]):
        theirs, ours = f"encoder.layer.{index}", f"encoder/layer_{index}"
        yield from _attention(
            f"{theirs}.attention.self",
            f"{theirs}.attention.output.dense",
            f"{ours}/attention",
            widths=(width,) * 3,
            n_outputs=width,
            n_heads=n_heads,
        )
        yield from _norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/attention_layer_norm", width)
        yield from _dense(f"{theirs}.intermediate.dense", f"{ours}/feedforward/intermediate", width, inner)
        yield from _dense(f"{theirs}.output.dense", f"{ours}/feedforward/output", inner, width)
        yield from _norm(f"{theirs}.output.LayerNorm", f"{ours}/output_layer_norm", width)


def _albert(config: Mapping[str, Any]) -> Iterator[Weight]:
    width, inner, narrow = config["hidden_size"], config["intermediate_size"], config["embedding_size"]
    yield from _tables(config, word_width=narrow, width=narrow)
    yield from _dense("encoder.embedding_hidden_mapping_in", "encoder/embeddings/projection", narrow, width)
    theirs, ours = "encoder.albert_layer_groups.0.albert_layers.0", "encoder/layer"
    yield from _attention(
        f"{theirs}.attention",
        f"{theirs}.attention.dense",
        f"{ours}/attention",
        widths=(width,) * 3,
        n_outputs=width,
        n_heads=config["num_attention_heads"],
    )
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
    for name, ours_too in bottlenecks.items():
        yield from _dense(f"{theirs}.bottleneck.{name}.dense", f"{ours}/{ours_too}/dense", width, inside)
        yield from _norm(f"{theirs}.bottleneck.{name}.LayerNorm", f"{ours}/{ours_too}/layer_norm", inside)
    narrow = config["use_bottleneck_attention"]
    seen = inside if narrow or config["key_query_shared_bottleneck"] else width
    yield from _attention(
        f"{theirs}.attention.self",
        f"{theirs}.attention.output.dense",
        f"{ours}/attention",
        widths=(seen, seen, inside if narrow else width),
        n_outputs=inside,
        n_heads=config["num_attention_heads"],
    )
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
    yield Weight(f"{head}.bias", "masked_lm/output_bias", (vocab_size,))
    if kind == "mobilebert" and hidden_size > config["embedding_size"]:
        extra = (vocab_size, hidden_size - config["embedding_size"])
        yield Weight(f"{head}.dense.weight", "masked_lm/extra_output_weights", extra, extra)
