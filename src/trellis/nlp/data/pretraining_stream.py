"""Batches to pretrain on: masked when they were written, or anew in each epoch."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import ExampleStream, Ragged, StackingStream, cached_columns
from trellis.errors import ConfigError
from trellis.nlp.data.configs import BertPretrainDataConfig, BertPretrainTextDataConfig
from trellis.nlp.data.corpus import Corpus
from trellis.nlp.data.masking import Masked, Masking, build_masking, example_keys, mask_pairs
from trellis.nlp.data.next_sentences import Pairing, PlannedPairs, write_plan
from trellis.nlp.data.packing import pack, pack_masked
from trellis.nlp.data.sequences import INPUTS, Sequences
from trellis.nlp.data.stream_parts import (
    MadeExamples,
    config_tokenizer,
    example_stream,
    input_paths,
    read_features,
    seed_of,
)
from trellis.nlp.data.token_cache import local_map, n_useful_workers
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.tasks import InputContext

Batch = dict[str, NDArray[Any]]
_BLOCK_SEQUENCES = 1 << 20
"""How many sequences are packed at a time: memory does not grow with a corpus, and rows are as full as can be."""


def build_pretraining_stream(
    params: BertPretrainDataConfig | BertPretrainTextDataConfig,
    context: InputContext | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> StackingStream:
    """Batches with `input_word_ids`, `input_mask`, `input_type_ids`, `masked_lm_positions`, `_ids` and `_weights`.

    With next sentences there are `next_sentence_labels` (1 if the second does not follow the first), with
    `use_position_id` there are `position_ids`, and rows that are packed have `segment_ids` and `positions`.

    Args:
        tokenizer: Of text; the default is the one that the config names.
    """
    if isinstance(params, BertPretrainTextDataConfig):
        vocab_file, lower_case = params.vocab_file_path, params.lower_case
        tokenizer = tokenizer or config_tokenizer(params, vocab_file, field="vocab_file_path", lower_case=lower_case)
        return _build_text_stream(params, context, tokenizer)
    length, n_predictions = (params.seq_length,), (params.max_predictions_per_seq,)
    features: dict[str, Any] = dict.fromkeys(INPUTS, (np.int32, length))
    features |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (np.int32, n_predictions))
    features["masked_lm_weights"] = (np.float32, n_predictions)
    if params.use_next_sentence_label:
        features["next_sentence_labels"] = (np.int32, (1,))
    if params.use_position_id:
        features["position_ids"] = (np.int32, length)
    examples = read_features(params, features=features, text_config="BertPretrainTextDataConfig")
    return example_stream(examples, params=params, context=context)


@dataclass(frozen=True, eq=False)
class MaskedStream:
    """Sequences of a corpus, masked anew in each epoch: a batch is a pure function of (seed, step)."""

    tokens: NDArray[np.integer]
    planned: PlannedPairs
    """Where in the tokens the sequences are."""
    pairing: Pairing
    masking: Masking
    order: ExampleStream
    """The numbers of the rows of each batch."""
    packed: Ragged | None = None
    """Which sequences share a row; with None each has a row of its own."""

    @property
    def n_batches(self) -> int | None:
        """How many batches there are; None if the stream is endless."""
        return self.order.n_batches

    @property
    def n_examples(self) -> int:
        """How many rows an epoch has."""
        return self.order.n_examples

    def rows(self, start: int, stop: int) -> "MaskedStream":
        """The stream of some rows of every batch."""
        return replace(self, order=self.order.rows(start, stop))

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        return self._examples(self.order.batch(step), self._epochs(step, 1))

    def stacked_batches(self, step: int, n: int) -> Batch:
        """The batches of several steps."""
        numbers = self.order.stacked_batches(step, n)
        examples = self._examples(numbers.reshape(-1), self._epochs(step, n))
        return {name: values.reshape(*numbers.shape, *values.shape[1:]) for name, values in examples.items()}

    def _epochs(self, step: int, n: int) -> NDArray[np.int64]:
        """The epoch of each row of the batches of `n` steps, as if none of them were short."""
        places = (step + np.arange(n))[:, None] * self.order.batch_size + np.arange(*self.order.row_range)
        return places.reshape(-1) // self.n_examples

    def _examples(self, numbers: NDArray[np.int64], epochs: NDArray[np.int64]) -> Batch:
        """The rows of these numbers, and of the first of these epochs."""
        epochs = epochs[: len(numbers)]
        if self.packed is None:
            sequences, masked = self._masked(numbers, epochs)
            batch: Batch = sequences.inputs | masked.predictions
            if self.pairing.with_next_sentence:
                batch["next_sentence_labels"] = self.planned.next_sentence_labels(numbers)
            return batch
        members = self.packed.gather(numbers)
        sequences, masked = self._masked(members.values, np.repeat(epochs, members.lengths))
        return pack_masked(
            masked,
            lengths=sequences.lengths,
            counts=members.lengths,
            seq_length=self.pairing.seq_length,
            pad_id=self.masking.specials.pad,
        )

    def _masked(self, examples: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Sequences, Masked]:
        pairs = self.planned.pairs.take(examples)
        keys = example_keys(examples, seed=self.pairing.seed, epochs=epochs)
        seq_length = self.pairing.seq_length
        return mask_pairs(self.tokens, pairs=pairs, seq_length=seq_length, keys=keys, masking=self.masking)


def _build_text_stream(
    params: BertPretrainTextDataConfig, context: InputContext | None, tokenizer: Tokenizer
) -> MaskedStream:
    _check_text(params)
    seed = seed_of(params, context)
    masking = build_masking(
        tokenizer,
        rate=params.masking_rate,
        max_predictions=params.max_predictions_per_seq,
        whole_word=params.use_whole_word_masking,
        max_ngram_size=params.max_ngram_size,
    )
    pairing = Pairing(params.seq_length, seed, with_next_sentence=params.use_next_sentence_label)
    corpus = Corpus.read(
        input_paths(params),
        tokenizer=tokenizer,
        cache_dir=params.cache_dir,
        text_fields=list(params.text_field_names),
        documents=params.documents,
    )
    tokens = corpus.sentences.values
    # The pairs of a corpus are kept beside its tokens.
    key = hashlib.blake2b(repr(pairing).encode(), digest_size=8).hexdigest()
    directory = corpus.directory.with_name(f"{corpus.directory.name}-{key}")
    ordered_map = local_map(n_useful_workers(corpus.directory.iterdir()))
    planned = write_plan(directory, corpus=corpus, pairing=pairing, ordered_map=ordered_map)
    rows = _packed(directory, planned, masking, params.seq_length) if params.pack_sequences else None
    n_rows = len(planned.is_random) if rows is None else len(rows)
    order = example_stream(MadeExamples(n_rows, make=np.asarray), params=params, context=context)
    return MaskedStream(tokens, planned, pairing, masking, order, rows)


def _packed(directory: Path, planned: PlannedPairs, masking: Masking, seq_length: int) -> Ragged:
    """Which sequences share a row, kept beside the directory of the sequences."""
    key = hashlib.blake2b(f"{masking.rate}/{masking.max_predictions}".encode(), digest_size=8).hexdigest()
    rows = cached_columns(directory.with_name(f"{directory.name}-{key}"), _packed_blocks(planned, masking, seq_length))
    return rows.ragged("sequences")


def _packed_blocks(planned: PlannedPairs, masking: Masking, seq_length: int) -> Iterator[dict[str, Ragged]]:
    """Yields rows of sequences that have room in them, and whose predictions have."""
    n_sequences = len(planned.is_random)
    for start in range(0, n_sequences, _BLOCK_SEQUENCES):
        lengths = planned.pairs.take(np.arange(start, min(start + _BLOCK_SEQUENCES, n_sequences))).lengths
        # A sequence takes its tokens, or the same share of a row as its predictions take of all predictions of a row.
        shares = -(-masking.n_chosen(lengths) * seq_length // masking.max_predictions)
        rows = pack(np.maximum(lengths, shares), capacity=seq_length)
        yield {"sequences": Ragged(rows.values + start, offsets=rows.offsets)}


def _check_text(params: BertPretrainTextDataConfig) -> None:
    if params.pack_sequences and params.use_next_sentence_label:
        raise ConfigError(
            "pack_sequences and use_next_sentence_label are both true, but a row has one label only. "
            "Set use_next_sentence_label to false to pack."
        )
    if len(params.text_field_names) > 1 and params.use_next_sentence_label:
        raise ConfigError(
            f"text_field_names has {len(params.text_field_names)} columns, but next sentences come from one. "
            "Name one, or set use_next_sentence_label to false."
        )
