"""What Hugging Face and we call the same things of one kind of encoder: its settings, its weights, its classes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Setting(NamedTuple):
    """A setting under its two names."""

    theirs: str
    ours: str
    default: Any
    """Hugging Face's value if `config.json` has none; None if it must have one."""


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


@dataclass(frozen=True, kw_only=True)
class Family:
    """An encoder as Hugging Face has it: its names for settings, for classes, and for the weights of each part."""

    model_type: str
    class_name: str
    """How the names of its classes begin."""
    settings: tuple[Setting, ...]
    encoder: Callable[[Mapping[str, Any]], Iterator[Weight]]
    """The weights of the encoder for the fields of `config.json`."""
    masked_lm: Callable[[Mapping[str, Any]], Iterator[Weight]]
    decoder: str
    """The matrix, and the bias, from the masked-LM head to words, which copy the embeddings and the head's bias."""
    base: str
    """What the names of the encoder's weights begin with in a model with heads."""
    inside: tuple[str, ...] = ("embeddings.", "encoder.", "pooler.")
    """How they go on."""
    pooler: str | None = "pooler.dense"
    """None for an encoder without one."""
    next_sentence: str | None = None
    classifier: str = "classifier"
    """What gives the logits of `sentence_prediction`."""
    classifier_dense: str | None = None
    """The dense layer before that; None if the encoder's pooler is there for it."""
    mlm_activation: str | None = None
    """That of the masked-LM head under our name; None if it is that of the encoder."""
    words: str = "embeddings.word_embeddings.weight"
    """The embeddings of words."""
    heads: Callable[[Mapping[str, Any], int], Mapping[str, Iterator[Weight]]] | None = None
    """The weights of heads that are not made as those of others, for the fields of `config.json` and the number of
    classes; by the names of ours."""
    told_apart: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """How names of weights begin that say different things in different models, and how ours tell them apart: by the
    end of the name of the model's class."""
    with_settings: Callable[[Mapping[str, Any], str], Mapping[str, Any]] | None = None
    """The fields of a `config.json`, at a place that errors name, with those that `settings` names if others say it."""
    written: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """What a `config.json` with these fields needs besides."""
