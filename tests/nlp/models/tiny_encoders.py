"""Encoders of each kind, small enough to compile in no time, and a batch for them."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from trellis.nlp.models import EncoderConfig, build_encoder

KINDS = ("bert", "albert", "mobilebert", "roberta", "distilbert")
VOCAB_SIZE, LENGTH = 40, 8
_SIZES: dict[str, dict[str, Any]] = {
    "bert": {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_layers": 2, "num_attention_heads": 2},
    "albert": {
        "vocab_size": VOCAB_SIZE,
        "embedding_width": 8,
        "hidden_size": 16,
        "num_layers": 2,
        "num_attention_heads": 2,
    },
    "roberta": {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_layers": 2, "num_attention_heads": 2},
    "distilbert": {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_layers": 2, "num_attention_heads": 2},
    "mobilebert": {
        "word_vocab_size": VOCAB_SIZE,
        "word_embed_size": 8,
        "hidden_size": 16,
        "num_blocks": 2,
        "num_attention_heads": 2,
        "intra_bottleneck_size": 8,
        "key_query_shared_bottleneck": True,
        "num_feedforward_networks": 2,
        "normalization_type": "no_norm",
        "max_sequence_length": 16,
    },
}
STUDENT = {
    "intermediate_size": 512,
    "hidden_activation": "relu",
    "hidden_dropout_prob": 0.0,
    "intra_bottleneck_size": 128,
    "key_query_shared_bottleneck": True,
    "num_feedforward_networks": 4,
    "normalization_type": "no_norm",
    "classifier_activation": False,
}
"""What the published student changes in the defaults, which are the teacher's."""


def config(kind: str, **changes: Any) -> EncoderConfig:
    # Those of a RoBERTa begin at 2.
    positions = {} if kind == "mobilebert" else {"max_position_embeddings": 18 if kind == "roberta" else 16}
    sizes = {**_SIZES[kind], **positions, "intermediate_size": 24}
    return EncoderConfig(type=kind, **{kind: sizes | changes})


def encoder(kind: str, **changes: Any) -> Any:
    return build_encoder(config(kind, **changes))


def weights(model: Any, inputs: Any) -> Any:
    """Variables of a model, all of them random: norms and biases too, and without compiling anything."""
    random = np.random.default_rng(1)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        around = 1.0 if path[-1].key == "scale" else 0.0
        return (around + 0.3 * random.standard_normal(leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes(model, inputs))


def shapes(model: Any, inputs: Any) -> Any:
    """The shapes of a model's variables, out of the boxes that tell the names of their axes."""
    return nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), inputs))


def run(model: Any, variables: Any, inputs: Any, **options: Any) -> Any:
    """Applies a model in one compiled program."""
    return jax.jit(lambda variables, inputs: model.apply(variables, inputs, **options))(variables, inputs)


def batch(*, n: int = 2, length: int = LENGTH) -> dict[str, jax.Array]:
    """Rows of different lengths, in two parts each."""
    random = np.random.default_rng(0)
    lengths = np.arange(length, length - n, -1)[:, None]
    mask = np.arange(length)[None] < lengths
    ids = random.integers(1, VOCAB_SIZE, (n, length)) * mask
    types = (np.arange(length)[None] >= length // 2) & mask
    return {
        "input_word_ids": jnp.asarray(ids, jnp.int32),
        "input_mask": jnp.asarray(mask, jnp.int32),
        "input_type_ids": jnp.asarray(types, jnp.int32),
    }


def packed_and_apart(*, length: int = LENGTH) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Two sequences, of five and of three tokens, in one row with padding after them, and each in a row of its own."""
    ids, types = np.arange(1, 9, dtype=np.int32), np.array([0, 0, 1, 1, 1, 0, 1, 1], np.int32)
    first, second, room = slice(0, 5), slice(5, 8), length + 2
    apart: dict[str, Any] = {
        name: np.zeros((2, room), np.int32) for name in ("input_word_ids", "input_mask", "input_type_ids")
    }
    for row, part in enumerate((first, second)):
        n = part.stop - part.start
        apart["input_word_ids"][row, :n] = ids[part]
        apart["input_type_ids"][row, :n] = types[part]
        apart["input_mask"][row, :n] = 1
    packed = {
        "input_word_ids": [*ids, 0, 0],
        "input_mask": [1] * 8 + [0] * 2,
        "input_type_ids": [*types, 0, 0],
        "segment_ids": [1] * 5 + [2] * 3 + [0] * 2,
        "positions": [0, 1, 2, 3, 4, 0, 1, 2, 0, 0],
    }
    return {name: jnp.asarray(row, jnp.int32)[None] for name, row in packed.items()}, jax.tree.map(jnp.asarray, apart)
