"""Pretraining data on disk: pairs of spans from plain text, masked, as records."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trellis.data import Order, find_files
from trellis.errors import ArgumentError
from trellis.nlp.data.configs import Documents
from trellis.nlp.data.corpus import open_corpus, read_sentences, write_corpus
from trellis.nlp.data.masking import Masking, build_masking, example_keys, mask_pairs
from trellis.nlp.data.next_sentences import Pairing, read_plan, write_plan
from trellis.nlp.data.output import OutputFormat, work_folder, write_features
from trellis.nlp.data.sequences import Features, with_record_names
from trellis.nlp.data.text_settings import TextSettings, beside_records
from trellis.nlp.data.token_cache import OrderedMap, local_map, n_useful_workers
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.runtime import Tally

_BLOCK_PAIRS = 1 << 10


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
    documents: Documents = "blank_lines"
    """What parts the documents of the text."""


def write_pretraining_data(
    input_files: str | Sequence[str],
    *,
    output_files: Sequence[str],
    tokenizer: Tokenizer,
    options: PretrainingOptions,
    output_format: OutputFormat = "tfrecord",
    ordered_map: OrderedMap | None = None,
) -> int:
    """Makes records of plain text, a sentence a line; returns how many.

    Tokens and pairs lie on disk while it works, so memory does not grow with the text. The
    result depends on the text, the vocabulary and the options, and on nothing else.

    Args:
        output_files: Records go to them in turn; columns go to one directory.
        ordered_map: Who does the work; None is as many processes of this machine as do good.
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
    if ordered_map is None:
        ordered_map = local_map(n_useful_workers(files, n_passes=options.dupe_factor))
    with work_folder(output_files[0] if output_files else "") as folder:
        tokens, plan = folder / "tokens", folder / "plan"
        sentences = read_sentences(files, documents=options.documents)
        sentences = Tally("Tokenizing", unit="sentences").over(sentences)
        corpus = write_corpus(tokens, sentences, tokenizer=tokenizer, ordered_map=ordered_map)
        planned = write_plan(
            plan, corpus=corpus, pairing=pairing, n_passes=options.dupe_factor, ordered_map=ordered_map
        )
        n_pairs = len(planned.is_random)
        order = Order(n_pairs, key=options.random_seed % 2**64)
        n_written = write_features(
            output_files,
            (order.between(start, start + _BLOCK_PAIRS) for start in range(0, n_pairs, _BLOCK_PAIRS)),
            make=functools.partial(_features, tokens, plan, options, masking),
            output_format=output_format,
            gzip=options.gzip_compress,
            ordered_map=ordered_map,
            n_rows=n_pairs,
        )
    # One of many files is enough: they are trained on together.
    TextSettings.of(tokenizer, seq_length=options.max_seq_length).write(beside_records(output_files[0]))
    return n_written


def _features(
    tokens_directory: Path,
    plan_directory: Path,
    options: PretrainingOptions,
    masking: Masking,
    numbers: NDArray[np.int64],
) -> Features:
    tokens, planned = open_corpus(tokens_directory).sentences.values, _open_plan(plan_directory)
    keys = example_keys(numbers, seed=options.random_seed, epochs=0)
    pairs = planned.pairs.take(numbers)
    sequences, masked = mask_pairs(tokens, pairs=pairs, seq_length=options.max_seq_length, keys=keys, masking=masking)
    labels = {"next_sentence_labels": planned.next_sentence_labels(numbers)}
    features = sequences.inputs | masked.predictions | labels
    return features if options.use_v2_feature_names else with_record_names(features)


_open_plan = functools.lru_cache(maxsize=1)(read_plan)
