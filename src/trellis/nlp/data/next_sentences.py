"""Pairs of spans for pretraining: two that follow each other in a document, or two that do not."""

import functools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, cached_columns
from trellis.errors import ArgumentError
from trellis.nlp.data.corpus import Corpus, open_corpus
from trellis.nlp.data.sequences import Pairs
from trellis.nlp.data.token_cache import OrderedMap
from trellis.runtime import print_line

_N_DRAWS = 10
_BLOCK_DOCUMENTS = 1 << 10
_MOST_RANDOM = 0.85


@dataclass(frozen=True)
class Pairing:
    """How documents are cut into pairs."""

    seq_length: int
    seed: int
    short_seq_prob: float = 0.1
    """How often a document is cut into shorter sequences, so that a model sees them too."""
    with_next_sentence: bool = True
    """Whether sequences have a second span; else each is one span of a document."""

    def __post_init__(self) -> None:
        """Refuses sequences without room for two tokens."""
        if self.seq_length < 5:
            raise ArgumentError(f"seq_length is {self.seq_length}; a pair of spans takes at least 5 tokens.")
        if not 0 <= self.short_seq_prob <= 1:
            raise ArgumentError(f"short_seq_prob is {self.short_seq_prob}; it lies between 0 and 1.")


class PlannedPairs(NamedTuple):
    """Pairs in a corpus, and which of them do not follow each other."""

    pairs: Pairs
    is_random: NDArray[np.bool_]

    def next_sentence_labels(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """The published labels of some pairs: 1 if the second span does not follow the first."""
        return self.is_random[rows].astype(np.int32)[:, None]


_Row = tuple[int, int, int, int, bool]
"""The starts and lengths of both spans, `a_start, a_length, b_start, b_length`, and whether the second is random."""


def write_plan(
    directory: Path, *, corpus: Corpus, pairing: Pairing, n_passes: int = 1, ordered_map: OrderedMap = map
) -> PlannedPairs:
    """Cuts all documents of a corpus into pairs in each pass, and writes these as columns unless they are there.

    How a document is cut is a function of (seed, pass, document).
    """
    n_documents = corpus.n_documents
    jobs = (
        (n_pass, range(start, min(start + _BLOCK_DOCUMENTS, n_documents)))
        for n_pass in range(n_passes)
        for start in range(0, n_documents, _BLOCK_DOCUMENTS)
    )
    plan_job = functools.partial(_plan_documents, corpus.directory, pairing)
    plans = ordered_map(plan_job, jobs)
    cached_columns(directory, ({**planned.pairs._asdict(), "is_random": planned.is_random} for planned in plans))
    planned = read_plan(directory)
    share = float(np.mean(planned.is_random))
    if share > _MOST_RANDOM:
        print_line(
            f"{share:.0%} of the pairs do not follow each other, for want of a next sentence: a document has "
            f"{len(corpus.sentences) / n_documents:.1f} sentences. If empty lines in the text part its paragraphs, say "
            f"what parts its documents: documents=headings for lines such as ` = Title = `."
        )
    return planned


def _plan_documents(directory: Path, pairing: Pairing, job: tuple[int, range]) -> PlannedPairs:
    n_pass, documents = job
    return plan_pairs(open_corpus(directory), documents=documents, pairing=pairing, n_pass=n_pass)


def read_plan(directory: Path) -> PlannedPairs:
    """The pairs that were written to a directory, memory-mapped."""
    columns = Columns.open(directory)
    return PlannedPairs(Pairs(*(np.asarray(columns[name]) for name in Pairs._fields)), np.asarray(columns["is_random"]))


def plan_pairs(corpus: Corpus, *, documents: Iterable[int], pairing: Pairing, n_pass: int = 0) -> PlannedPairs:
    """Cuts some documents into pairs."""
    plan = _pairs_of if pairing.with_next_sentence else _spans_of
    rows = [
        row
        for document in documents
        for row in plan(corpus, document, pairing, random.Random(f"{pairing.seed}/{n_pass}/{document}"))
    ]
    table = np.array(rows, np.int64).reshape(-1, 5)
    return PlannedPairs(Pairs(*table.T[:4]), table[:, 4].astype(bool))


def _pairs_of(corpus: Corpus, document: int, pairing: Pairing, rng: random.Random) -> Iterator[_Row]:
    first, last = (int(bound) for bound in corpus.document_offsets[document : document + 2])
    offsets = corpus.sentences.offsets[first : last + 1].tolist()
    n_sentences = last - first
    budget = pairing.seq_length - 3
    target = rng.randint(2, budget) if rng.random() < pairing.short_seq_prob else budget
    start = 0
    while start < n_sentences:
        stop = start + 1
        while stop < n_sentences and offsets[stop] - offsets[start] < target:
            stop += 1
        n_chunk = stop - start
        middle = start + (rng.randint(1, n_chunk - 1) if n_chunk > 1 else 1)
        is_random = n_chunk == 1 or rng.random() < 0.5
        span_a = offsets[start], offsets[middle] - offsets[start]
        if is_random:
            # What would have followed is not used up: it begins the next pair.
            span_b = _other_span(corpus, document, target - span_a[1], rng)
            stop = middle
        else:
            span_b = offsets[middle], offsets[stop] - offsets[middle]
        yield _cut(span_a, span_b, is_random, budget, rng)
        start = stop


def _other_span(corpus: Corpus, document: int, target: int, rng: random.Random) -> tuple[int, int]:
    """A span of about `target` tokens from another document, if there is one."""
    other = document
    for _ in range(_N_DRAWS):
        other = rng.randrange(corpus.n_documents)
        if other != document:
            break
    first, last = (int(bound) for bound in corpus.document_offsets[other : other + 2])
    start = rng.randrange(first, last)
    offsets = corpus.sentences.offsets
    begin = int(offsets[start])
    stop = start + 1
    while stop < last and offsets[stop] - begin < target:
        stop += 1
    return begin, int(offsets[stop]) - begin


def _cut(span_a: tuple[int, int], span_b: tuple[int, int], is_random: bool, budget: int, rng: random.Random) -> _Row:
    """Shortens the longer span, token by token, at a random end."""
    (a_start, n_a), (b_start, n_b) = span_a, span_b
    # As `sequences.fit` does for arrays.
    excess = max(n_a + n_b - budget, 0)
    from_longer = min(excess, abs(n_a - n_b))
    cut_a = (excess - from_longer) // 2 + (from_longer if n_a > n_b else 0)
    cut_b = excess - cut_a
    a_front, b_front = (rng.getrandbits(n).bit_count() if n else 0 for n in (cut_a, cut_b))
    return a_start + a_front, n_a - cut_a, b_start + b_front, n_b - cut_b, is_random


def _spans_of(corpus: Corpus, document: int, pairing: Pairing, rng: random.Random) -> Iterator[_Row]:
    first, last = (int(bound) for bound in corpus.document_offsets[document : document + 2])
    offsets = corpus.sentences.offsets
    begin, end = int(offsets[first]), int(offsets[last])
    budget = pairing.seq_length - 2
    while begin < end:
        # Whole sentences where one fits; a longer one is cut.
        stop = int(np.searchsorted(offsets[first : last + 1], begin + budget, side="right")) - 1 + first
        limit = int(offsets[stop])
        limit = limit if limit > begin else min(begin + budget, end)
        yield begin, limit - begin, 0, 0, False
        begin = limit
