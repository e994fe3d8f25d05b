"""Sequences: one or two spans of tokens between special ones, as a model reads them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Ragged
from trellis.nlp.data.tokenizer import Tokenizer

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

    def n_special(self, n_between: int = 1) -> Ints:
        """How many special tokens each sequence gets, of which `n_between` stand between two spans."""
        return 2 + n_between * (self.b_lengths > 0)

    @property
    def lengths(self) -> Ints:
        """How long each sequence is, special tokens included, with one between two spans."""
        return self.lengths_with(1)

    def lengths_with(self, n_between: int) -> Ints:
        """How long each sequence is, special tokens included."""
        return self.a_lengths + self.b_lengths + self.n_special(n_between)

    def take(self, rows: Ints) -> "Pairs":
        """Some of the pairs."""
        return Pairs(*(part[rows] for part in self))

    def cut(self, seq_length: int, *, n_between: int = 1) -> "Pairs":
        """The same pairs, shortened at their ends to fit sequences of a length."""
        budgets = seq_length - self.n_special(n_between)
        a_lengths, b_lengths = fit(self.a_lengths, self.b_lengths, budgets)
        if n_between > 1:
            # For RoBERTa's there is no published tool, but the package `tokenizers`, which gives a token that is left
            # over to the span that was longer.
            is_moved = (a_lengths == b_lengths + 1) & (b_lengths < self.b_lengths) & (self.a_lengths <= self.b_lengths)
            a_lengths, b_lengths = a_lengths - is_moved, b_lengths + is_moved
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
    """The ids that begin and end spans and fill up rows, and how two spans stand in a sequence."""

    cls: int
    sep: int
    pad: int = 0
    n_between: int = 1
    """How many ends stand between two spans."""
    has_types: bool = True
    """Whether the second span is of another kind than the first."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Specials":
        """Those of a vocabulary, which must have them."""
        ends = tokenizer.id_of(tokenizer.cls), tokenizer.id_of(tokenizer.sep)
        return cls(*ends, tokenizer.pad_id, tokenizer.n_between, tokenizer.has_types)


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

    RoBERTa's are `<s> a </s></s> b </s>` and `<s> a </s>`.

    Args:
        tokens: What the pairs point into.
        pairs: Short enough for `seq_length`.
    """
    place = np.arange(seq_length)
    a_end = pairs.a_lengths[:, None] + 1
    b_start = a_end + specials.n_between
    lengths = pairs.lengths_with(specials.n_between)
    is_a = (place > 0) & (place < a_end)
    is_b = (place >= b_start) & (place < lengths[:, None] - 1)
    sources = np.where(is_a, pairs.a_starts[:, None] - 1, pairs.b_starts[:, None] - b_start) + place
    is_token = is_a | is_b
    ids = np.full(is_token.shape, specials.sep, np.int32)
    ids[is_token] = tokens[sources[is_token]]
    ids[:, 0] = specials.cls
    is_there = place < lengths[:, None]
    ids[~is_there] = specials.pad
    types = is_there & (place > a_end) & specials.has_types
    return Sequences(ids, is_there.astype(np.int32), types.astype(np.int32), lengths)


def assemble_texts(a: Ragged, b: Ragged, *, rows: Ints, seq_length: int, specials: Specials) -> Sequences:
    """Makes sequences of the first and second texts of some rows, cut to `seq_length`."""
    # No more of a text than a sequence holds: nothing behind that can be used.
    a_lengths, b_lengths = (texts.lengths[rows] for texts in (a, b))
    a, b = (texts.gather(rows, longest=seq_length) for texts in (a, b))
    pairs = Pairs(a.offsets[:-1], a_lengths, b.offsets[:-1] + len(a.values), b_lengths)
    pairs = pairs.cut(seq_length, n_between=specials.n_between)
    tokens = np.concatenate([a.values, b.values])
    return assemble(tokens, pairs=pairs, seq_length=seq_length, specials=specials)
