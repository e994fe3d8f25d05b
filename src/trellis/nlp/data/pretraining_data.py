"""Pretraining data on disk: pairs of spans from plain text, masked, as records."""

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from trellis.data import Columns, ColumnsWriter, encode_examples, find_files
from trellis.errors import ArgumentError
from trellis.nlp.data.corpus import Corpus, read_sentences, write_corpus
from trellis.nlp.data.masking import Masking, example_keys, mask_tokens
from trellis.nlp.data.next_sentences import Pairing, PlannedPairs, plan_pairs
from trellis.nlp.data.output import Features, open_records
from trellis.nlp.data.sequences import Pairs, Specials, assemble
from trellis.nlp.data.tokenizer import MASK, Tokenizer
from trellis.nlp.data.workers import n_useful_workers, ordered_map

_BLOCK_PAIRS = 1 << 10
_BLOCK_DOCUMENTS = 1 << 10


@dataclass(frozen=True)
class PretrainingOptions:
    """The published options of how pretraining data is made."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    random_seed: int = 12345
    dupe_factor: int = 10
    """How often the text is used, with other pairs and other masks each time."""
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    do_whole_word_mask: bool = False
    max_ngram_size: int | None = None
    use_v2_feature_names: bool = False
    gzip_compress: bool = False


class _Job(NamedTuple):
    """Which documents to plan, in which pass over them."""

    n_pass: int
    documents: NDArray[np.int64]


def build_masking(
    tokenizer: Tokenizer,
    *,
    rate: float,
    max_predictions: int,
    whole_word: bool = False,
    max_ngram_size: int | None = None,
) -> Masking:
    """Returns how tokens of a vocabulary are masked."""
    if max_ngram_size and not whole_word:
        raise ArgumentError(f"max_ngram_size is {max_ngram_size}, which needs whole words: set whole-word masking too.")
    specials = Specials.of(tokenizer)
    return Masking(
        rate=rate,
        max_predictions=max_predictions,
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.id_of(MASK),
        special_ids=tuple(specials),
        starts_word=tokenizer.starts_word if whole_word else None,
        max_ngram_size=max_ngram_size or 1,
    )


def write_pretraining_data(
    input_files: str | Sequence[str],
    *,
    output_files: Sequence[str],
    tokenizer: Tokenizer,
    options: PretrainingOptions,
    n_workers: int | None = None,
) -> int:
    """Makes records of plain text, a sentence a line with empty lines between documents; returns how many.

    Tokens and pairs lie on disk while it works, so memory does not grow with the text (but for some bytes a pair). The
    result depends on the text, the vocabulary and the options, and on nothing else.

    Args:
        output_files: Records go to them in turn.
        n_workers: How many processes work; None is as many as do good.
    """
    if options.dupe_factor < 1:
        raise ArgumentError(f"dupe_factor is {options.dupe_factor}; the text is used at least once.")
    masking = build_masking(
        tokenizer,
        rate=options.masked_lm_prob,
        max_predictions=options.max_predictions_per_seq,
        whole_word=options.do_whole_word_mask,
        max_ngram_size=options.max_ngram_size,
    )
    pairing = Pairing(options.max_seq_length, options.random_seed, options.short_seq_prob)
    files = find_files(input_files)
    if n_workers is None:
        n_workers = n_useful_workers(options.dupe_factor * sum(file.stat().st_size for file in files))
    parent = Path(output_files[0]).parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".pretraining-") as folder:
        tokens, plan = Path(folder, "tokens"), Path(folder, "plan")
        sentences = tqdm(read_sentences(files), desc="Tokenizing", unit=" sentences", disable=None)
        write_corpus(tokens, sentences, tokenizer=tokenizer, n_workers=n_workers)
        _write_plan(plan, tokens, pairing, options.dupe_factor, n_workers)
        n_pairs = len(Columns.open(plan))
        order = np.random.Generator(np.random.Philox(options.random_seed)).permutation(n_pairs)
        blocks = (order[start : start + _BLOCK_PAIRS] for start in range(0, n_pairs, _BLOCK_PAIRS))
        work = functools.partial(_make_records, tokens, plan, options, masking, Specials.of(tokenizer))
        with (
            open_records(output_files, gzip=options.gzip_compress) as records,
            tqdm(desc="Writing", total=n_pairs, unit=" examples", disable=None) as bar,
        ):
            for block in ordered_map(work, blocks, n_workers=n_workers):
                records.write(block)
                bar.update(len(block))
    return n_pairs


def _write_plan(plan: Path, tokens: Path, pairing: Pairing, n_passes: int, n_workers: int) -> None:
    corpus = Corpus(Columns.open(tokens))
    jobs = (
        _Job(n_pass, np.arange(start, min(start + _BLOCK_DOCUMENTS, corpus.n_documents)))
        for n_pass in range(n_passes)
        for start in range(0, corpus.n_documents, _BLOCK_DOCUMENTS)
    )
    work = functools.partial(_plan_documents, tokens, pairing)
    with ColumnsWriter(plan) as writer:
        for planned in ordered_map(work, jobs, n_workers=n_workers):
            writer.append({**planned.pairs._asdict(), "is_random": planned.is_random})


def _plan_documents(tokens: Path, pairing: Pairing, job: _Job) -> PlannedPairs:
    return plan_pairs(_corpus(tokens), documents=job.documents.tolist(), pairing=pairing, n_pass=job.n_pass)


def _make_records(
    tokens: Path,
    plan: Path,
    options: PretrainingOptions,
    masking: Masking,
    specials: Specials,
    numbers: NDArray[np.int64],
) -> list[bytes]:
    return encode_examples(_features(_corpus(tokens), _plan(plan), options, masking, specials, numbers))


def _features(
    corpus: Corpus,
    plan: Columns,
    options: PretrainingOptions,
    masking: Masking,
    specials: Specials,
    numbers: NDArray[np.int64],
) -> Features:
    rows = plan.take(numbers)
    pairs = Pairs(*(rows[name] for name in Pairs._fields))
    made = assemble(corpus.sentences.values, pairs=pairs, seq_length=options.max_seq_length, specials=specials)
    keys = example_keys(numbers, seed=options.random_seed, epochs=0)
    masked = mask_tokens(made.ids, lengths=made.lengths, keys=keys, masking=masking)
    is_v2 = options.use_v2_feature_names
    return {
        "input_word_ids" if is_v2 else "input_ids": masked.ids,
        "input_mask": made.mask,
        "input_type_ids" if is_v2 else "segment_ids": made.types,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.originals,
        "masked_lm_weights": masked.weights,
        "next_sentence_labels": rows["is_random"].astype(np.int32)[:, None],
    }


@functools.lru_cache(maxsize=1)
def _corpus(tokens: Path) -> Corpus:
    return Corpus(Columns.open(tokens))


@functools.lru_cache(maxsize=1)
def _plan(plan: Path) -> Columns:
    return Columns.open(plan)
