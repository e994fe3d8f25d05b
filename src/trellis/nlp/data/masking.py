"""Masking: which tokens of a sequence a model is to predict, chosen anew in each epoch."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.errors import ArgumentError
from trellis.nlp.data.sequences import Pairs, Sequences, Specials, assemble
from trellis.nlp.data.tokenizer import Tokenizer

Ids = NDArray[np.int32]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_CHOICE, _ACTION, _WORD, _GRAM, _START = range(1, 6)
# Of the tokens that are chosen 80 % become the mask, 10 % stay, and 10 % become random ones.
_MASKED, _UNCHANGED = 0.8, 0.9


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen: one by one, by whole words, or by several words in a row."""

    rate: float
    """The share of a sequence's tokens, special ones included; at least one token is chosen."""
    max_predictions: int
    vocab_size: int
    mask_id: int
    specials: Specials
    """Those that begin and end spans are never chosen."""
    starts_word: NDArray[np.bool_] | None = None
    """Of each id, whether it begins a word; None chooses tokens one by one."""
    max_ngram_size: int = 1
    """Up to how many words in a row are chosen together; n of them with a weight of 1/n."""

    def __post_init__(self) -> None:
        """Refuses settings by which nothing can be chosen."""
        if not 0 < self.rate <= 1:
            raise ArgumentError(f"The share of tokens to mask is {self.rate}; it lies above 0 and is at most 1.")
        if self.max_predictions < 1:
            raise ArgumentError(f"max_predictions_per_seq is {self.max_predictions}; it is at least 1.")
        if self.max_ngram_size < 1:
            raise ArgumentError(f"max_ngram_size is {self.max_ngram_size}; it is at least 1.")
        if self.max_ngram_size > 1 and self.starts_word is None:
            raise ArgumentError(
                f"max_ngram_size is {self.max_ngram_size}, which needs whole words: set whole-word masking too."
            )

    def n_chosen(self, lengths: NDArray[np.integer]) -> NDArray[np.int64]:
        """How many tokens of sequences of these lengths are chosen, at most."""
        counts: NDArray[np.int64] = np.clip(np.rint(lengths * self.rate), 1, self.max_predictions).astype(np.int64)
        return counts


class Masked(NamedTuple):
    """Sequences with masks, and the tokens behind these: positions in ascending order, padded with weight 0."""

    ids: Ids
    positions: Ids
    originals: Ids
    weights: NDArray[np.float32]

    @property
    def predictions(self) -> dict[str, NDArray[np.generic]]:
        """What a model is to predict, by the names that batches have."""
        names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        return dict(zip(names, (self.positions, self.originals, self.weights), strict=True))


class _Words(NamedTuple):
    """The words of each sequence: shape (sequences, the most words of one)."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    of_token: NDArray[np.int64]
    """The word of each token; -1 for tokens that may not be chosen."""


def build_masking(
    tokenizer: Tokenizer,
    *,
    rate: float,
    max_predictions: int,
    whole_word: bool = False,
    max_ngram_size: int | None = None,
) -> Masking:
    """Returns how the tokens of a vocabulary are masked."""
    return Masking(
        rate=rate,
        max_predictions=max_predictions,
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.id_of(tokenizer.mask),
        specials=Specials.of(tokenizer),
        starts_word=tokenizer.starts_word if whole_word else None,
        max_ngram_size=max_ngram_size or 1,
    )


def example_keys(examples: NDArray[np.integer], *, seed: int, epochs: NDArray[np.integer] | int) -> NDArray[np.uint64]:
    """A key for each example, a function of (seed, epoch, example)."""
    root = _mixed(np.array([seed % 2**64], np.uint64) + _STEP)
    with_epoch = _mixed(root + np.atleast_1d(epochs).astype(np.uint64) * _STEP)
    return _mixed(with_epoch + np.asarray(examples).astype(np.uint64) * _STEP)


def mask_tokens(ids: Ids, *, lengths: NDArray[np.integer], keys: NDArray[np.uint64], masking: Masking) -> Masked:
    """Chooses tokens: 80 % of the choices become the mask, 10 % a random token, and 10 % stay as they are.

    What is chosen depends on a sequence and its key alone, not on the sequences beside it.

    Args:
        ids: Sequences, padded to one length.
        keys: One for each sequence, from `example_keys`.
    """
    words = _find_words(ids, lengths, masking)
    is_word_chosen, first = _choose_words(words, keys, masking.n_chosen(lengths), masking.max_ngram_size)
    rows = np.arange(len(ids))[:, None]
    of_token = np.maximum(words.of_token, 0)
    is_chosen = is_word_chosen[rows, of_token] & (words.of_token >= 0)
    action = _uniform(keys, _ACTION, words.starts.shape[1])[rows, first[rows, of_token]]
    random_ids = (_uniform(keys, _WORD, ids.shape[1]) * masking.vocab_size).astype(np.int32)
    masked = np.where(is_chosen & (action < _MASKED), np.int32(masking.mask_id), ids)
    masked = np.where(is_chosen & (action >= _UNCHANGED), random_ids, masked)
    n_places = min(masking.max_predictions, ids.shape[1])
    positions = np.argsort(~is_chosen, axis=1, kind="stable")[:, :n_places]
    is_there = np.take_along_axis(is_chosen, positions, axis=1)
    originals = np.where(is_there, np.take_along_axis(ids, positions, axis=1), 0)
    padding = ((0, 0), (0, masking.max_predictions - n_places))
    return Masked(
        masked,
        np.pad(np.where(is_there, positions, 0), padding).astype(np.int32),
        np.pad(originals, padding).astype(np.int32),
        np.pad(is_there, padding).astype(np.float32),
    )


def mask_pairs(
    tokens: NDArray[np.integer], *, pairs: Pairs, seq_length: int, keys: NDArray[np.uint64], masking: Masking
) -> tuple[Sequences, Masked]:
    """Makes sequences of pairs of spans, and masks them."""
    specials = masking.specials
    # Pairs are planned for one special token between them.
    pairs = pairs if specials.n_between == 1 else pairs.cut(seq_length, n_between=specials.n_between)
    sequences = assemble(tokens, pairs=pairs, seq_length=seq_length, specials=specials)
    masked = mask_tokens(sequences.ids, lengths=sequences.lengths, keys=keys, masking=masking)
    return sequences._replace(ids=masked.ids), masked


def _find_words(ids: Ids, lengths: NDArray[np.integer], masking: Masking) -> _Words:
    n_rows, width = ids.shape
    ends = (masking.specials.cls, masking.specials.sep)
    is_candidate = ~np.isin(ids, ends) & (np.arange(width) < np.asarray(lengths)[:, None])
    is_start = is_candidate.copy()
    if masking.starts_word is not None:
        is_start[:, 1:] &= masking.starts_word[ids[:, 1:]] | ~is_candidate[:, :-1]
    number = np.cumsum(is_start, axis=1, dtype=np.int64)
    counts = number[:, -1]
    n_words = max(int(counts.max(initial=0)), 1)
    row, place = np.nonzero(is_start)
    starts = np.full((n_rows, n_words), width, np.int64)
    starts[row, number[row, place] - 1] = place
    row, place = np.nonzero(is_candidate)
    flat = row * n_words + number[row, place] - 1
    sizes = np.bincount(flat, minlength=n_rows * n_words).reshape(n_rows, n_words)
    return _Words(starts, sizes, counts, np.where(is_candidate, number - 1, -1))


def _choose_words(
    words: _Words, keys: NDArray[np.uint64], n_tokens_to_choose: NDArray[np.int64], max_ngram_size: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Returns which words are chosen, and for each the first word of the gram that it was chosen with."""
    is_chosen = np.zeros(words.starts.shape, bool)
    first = np.broadcast_to(np.arange(words.starts.shape[1]), words.starts.shape).copy()
    n_left = n_tokens_to_choose.copy()
    if max_ngram_size > 1:
        _choose_grams(words, keys, is_chosen, first, n_left, max_ngram_size)
    order_keys = _uniform(keys, _CHOICE, words.starts.shape[1])
    order_keys[np.arange(words.starts.shape[1]) >= words.counts[:, None]] = np.inf
    order = np.argsort(order_keys, axis=1)
    ordered_sizes = np.take_along_axis(words.sizes, order, axis=1)
    is_free = ~np.take_along_axis(is_chosen, order, axis=1) & (ordered_sizes > 0)
    if ordered_sizes.max(initial=0) <= 1:
        is_picked = is_free & (np.cumsum(is_free, axis=1) <= n_left[:, None])
    else:
        is_picked = _pick_while_they_fit(ordered_sizes, is_free, n_left)
    row, rank = np.nonzero(is_picked)
    is_chosen[row, order[row, rank]] = True
    return is_chosen, first


def _pick_while_they_fit(
    sizes: NDArray[np.int64], is_free: NDArray[np.bool_], n_left: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Takes words in their order; those that are longer than the remaining number of tokens are left out."""
    is_picked = np.zeros_like(is_free)
    n_left = n_left.copy()
    for rank in range(sizes.shape[1]):
        fits = is_free[:, rank] & (sizes[:, rank] <= n_left)
        is_picked[:, rank] = fits
        n_left -= np.where(fits, sizes[:, rank], 0)
        if not n_left.any():
            break
    return is_picked


def _choose_grams(
    words: _Words,
    keys: NDArray[np.uint64],
    is_chosen: NDArray[np.bool_],
    first: NDArray[np.int64],
    n_left: NDArray[np.int64],
    max_ngram_size: int,
) -> None:
    """Draws runs of words until all tokens are chosen, or often enough; single words fill the rest."""
    # A row's own number, so that what is chosen does not depend on the rows beside it.
    n_own_draws = 2 * n_left
    n_draws = int(n_own_draws.max(initial=0))
    weights = 1 / np.arange(1, max_ngram_size + 1)
    sizes = np.searchsorted(np.cumsum(weights / weights.sum())[:-1], _uniform(keys, _GRAM, n_draws), side="right") + 1
    begins = (_uniform(keys, _START, n_draws) * words.counts[:, None]).astype(np.int64)
    last = words.starts.shape[1] - 1
    ends = words.starts + words.sizes
    rows = np.arange(len(keys))
    for draw, (begin, size) in enumerate(zip(begins.T, sizes.T, strict=True)):
        members = begin[:, None] + np.arange(max_ngram_size)
        is_member = members < (begin + size)[:, None]
        members = np.minimum(members, last)
        final = np.minimum(begin + size - 1, last)
        n_tokens = ends[rows, final] - words.starts[rows, begin]
        fits = (draw < n_own_draws) & (begin + size <= words.counts) & (n_tokens <= n_left)
        fits &= ~(is_member & is_chosen[rows[:, None], members]).any(axis=1)
        # Tokens between the words, such as a separator, would make the span longer than its words.
        fits &= np.where(is_member, words.sizes[rows[:, None], members], 0).sum(axis=1) == n_tokens
        row, place = np.nonzero(is_member & fits[:, None])
        is_chosen[row, members[row, place]] = True
        first[row, members[row, place]] = begin[row]
        n_left -= np.where(fits, n_tokens, 0)
        if not n_left.any():
            break


def _uniform(keys: NDArray[np.uint64], purpose: int, n: int) -> NDArray[np.float64]:
    """Numbers in [0, 1): `n` for each key, others for each purpose."""
    roots = _mixed(keys + np.uint64(purpose))[:, None]
    bits = _mixed(roots + np.arange(1, n + 1, dtype=np.uint64) * _STEP)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every bit of the result depends on every bit of the input."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
