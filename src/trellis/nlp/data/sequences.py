"""Sequences: one or two spans of tokens between special ones, as a model reads them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Ragged
from trellis.nlp.data.tokenizer import CLS, PAD_ID, SEP, Tokenizer

Ints = NDArray[np.int64]
INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
"""What a model reads, by the names that batches have."""
RECORD_NAMES = {"input_word_ids": "input_ids", "input_type_ids": "segment_ids"}
"""What the published records call some of the features of a batch."""
Features = Mapping[str, NDArray[np.generic]]


class Pairs(NamedTuple):
    """Where the two spans of each sequence lie in an array of tokens; the second span may be empty."""

    a_starts: Ints
    a_lengths: Ints
    b_starts: Ints
    b_lengths: Ints

    @property
    def n_special(self) -> Ints:
        """How many special tokens each sequence gets."""
        return 2 + (self.b_lengths > 0)

    @property
    def lengths(self) -> Ints:
        """How long each sequence is, special tokens included."""
        return self.a_lengths + self.b_lengths + self.n_special

    def take(self, rows: Ints) -> "Pairs":
        """Some of the pairs."""
        return Pairs(*(part[rows] for part in self))

    def cut(self, seq_length: int) -> "Pairs":
        """The same pairs, shortened at their ends to fit sequences of a length."""
        a_lengths, b_lengths = fit(self.a_lengths, self.b_lengths, seq_length - self.n_special)
        return Pairs(self.a_starts, a_lengths, self.b_starts, b_lengths)


class Sequences(NamedTuple):
    """What a model reads: ids, where they are not padding, and the span that each belongs to."""

    ids: NDArray[np.int32]
    mask: NDArray[np.int32]
    types: NDArray[np.int32]
    lengths: Ints

    @property
    def inputs(self) -> dict[str, NDArray[np.int32]]:
        """The arrays by the names that batches have."""
        return dict(zip(INPUTS, (self.ids, self.mask, self.types), strict=True))


def with_record_names(features: Features) -> Features:
    """The features of a batch by the names that records have."""
    return {RECORD_NAMES.get(name, name): values for name, values in features.items()}


class Specials(NamedTuple):
    """The ids that begin and end spans."""

    cls: int
    sep: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Specials":
        """Those of a vocabulary, which must have them."""
        return cls(tokenizer.id_of(CLS), tokenizer.id_of(SEP))


def fit(a_lengths: Ints, b_lengths: Ints, budgets: Ints | int) -> tuple[Ints, Ints]:
    """The lengths of pairs after the longer span (of two equal ones the second) lost token after token until both fit.

    Example:
        >>> a_lengths, b_lengths = fit(np.array([5, 2]), np.array([3, 2]), 6)
        >>> a_lengths.tolist(), b_lengths.tolist()
        ([3, 2], [3, 2])
    """
    excess = np.maximum(a_lengths + b_lengths - budgets, 0)
    from_longer = np.minimum(excess, np.abs(a_lengths - b_lengths))
    cut_a = (excess - from_longer) // 2 + np.where(a_lengths > b_lengths, from_longer, 0)
    return a_lengths - cut_a, b_lengths - (excess - cut_a)


def assemble(tokens: NDArray[np.integer], *, pairs: Pairs, seq_length: int, specials: Specials) -> Sequences:
    """Makes `[CLS] a [SEP] b [SEP]`, or `[CLS] a [SEP]` where b is empty, padded to one length.

    Args:
        tokens: What the pairs point into.
        pairs: Short enough for `seq_length`.
    """
    place = np.arange(seq_length)
    a_end = pairs.a_lengths[:, None] + 1
    lengths = pairs.lengths
    is_a = (place > 0) & (place < a_end)
    is_b = (place > a_end) & (place < lengths[:, None] - 1)
    sources = np.where(is_a, pairs.a_starts[:, None] - 1, pairs.b_starts[:, None] - a_end - 1) + place
    is_token = is_a | is_b
    ids = np.full(is_token.shape, specials.sep, np.int32)
    ids[is_token] = tokens[sources[is_token]]
    ids[:, 0] = specials.cls
    is_there = place < lengths[:, None]
    ids[~is_there] = PAD_ID
    types = is_there & (place > a_end)
    return Sequences(ids, is_there.astype(np.int32), types.astype(np.int32), lengths)


def assemble_texts(a: Ragged, b: Ragged, *, rows: Ints, seq_length: int, specials: Specials) -> Sequences:
    """Makes sequences of the first and second texts of some rows, cut to `seq_length`."""
    # No more of a text than a sequence holds: nothing behind that can be used.
    a, b = (texts.gather(rows, longest=seq_length) for texts in (a, b))
    pairs = Pairs(a.offsets[:-1], a.lengths, b.offsets[:-1] + len(a.values), b.lengths).cut(seq_length)
    tokens = np.concatenate([a.values, b.values])
    return assemble(tokens, pairs=pairs, seq_length=seq_length, specials=specials)
