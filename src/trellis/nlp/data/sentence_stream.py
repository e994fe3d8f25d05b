"""Batches of sentences, or pairs of them, with labels."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, DataConfig, ExampleStream, Ragged
from trellis.errors import ConfigError, DataError
from trellis.nlp.data.configs import SentencePredictionDataConfig, SentencePredictionTextDataConfig
from trellis.nlp.data.sentence_data import read_sentences_columns
from trellis.nlp.data.sentence_tasks import SentenceFields
from trellis.nlp.data.sequences import Pairs, Specials, assemble, gather
from trellis.nlp.data.stream_parts import (
    RenamedColumns,
    check_vocabulary,
    data_place,
    example_stream,
    input_paths,
    read_features,
)
from trellis.nlp.data.tokenizer import build_tokenizer
from trellis.tasks import InputContext

_DTYPES = {"int": np.int32, "float": np.float32}
_INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
_MULTIPLE = 8  # of which hardware likes lengths to be


SentenceDataConfig = SentencePredictionDataConfig | SentencePredictionTextDataConfig
"""What sentences are read by: records, or text."""


def build_sentence_stream(
    params: SentenceDataConfig,
    context: InputContext | None = None,
    *,
    n_classes: int | None = None,
) -> ExampleStream:
    """Batches with `input_word_ids`, `input_mask`, `input_type_ids` and the label, by the name of its field.

    Text is tokenized once, and cut to `seq_length` when a batch is made. Batches to train on are only as long as the
    longest example needs, rounded up to a multiple of 8; others have `seq_length`, as those who ask a model have it.

    Args:
        n_classes: How many classes there are: a label that is none of them is refused. None takes any label.
    """
    examples = _read(params)
    if n_classes is not None:
        _check_labels(examples.column(params.label_field), params, n_classes)
    if params.is_training:
        return example_stream(FittedExamples(examples), params=params, context=context)
    return example_stream(examples, params=params, context=context)


def count_classes(params: SentenceDataConfig) -> int:
    """How many classes the labels are of: as many as are named, or else up to the highest; 1 if they are numbers."""
    names = params.as_dict().get("label_values")
    if params.label_type == "float":
        return 1
    return len(names) if names else max(2, 1 + int(_read(params).column(params.label_field).max()))


class FittedExamples:
    """Examples without the padding that all of them have."""

    def __init__(self, examples: "SentencePairs | RenamedColumns") -> None:
        if isinstance(examples, SentencePairs):
            longest = examples.lengths.max(initial=0)
        else:
            longest = 1 + np.flatnonzero(examples.column("input_mask").any(axis=0)).max(initial=0)
        self._examples = examples
        self._length = math.ceil(longest / _MULTIPLE) * _MULTIPLE

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, indices: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Gathers examples."""
        taken = self._examples.take(indices)
        return {name: array[:, : self._length] if name in _INPUTS else array for name, array in taken.items()}


class SentencePairs:
    """Tokens of sentences as examples, made into sequences when they are taken."""

    def __init__(self, columns: Columns, *, seq_length: int, specials: Specials, names: dict[str, str]) -> None:
        first, second = columns["a"], columns["b"]
        assert isinstance(first, Ragged) and isinstance(second, Ragged)
        self._first, self._second = first, second
        self._rest = columns.select(list(names))
        self._names = names
        self._seq_length = seq_length
        self._specials = specials

    def __len__(self) -> int:
        return len(self._rest)

    def column(self, name: str) -> NDArray[Any]:
        """What all examples have under a name."""
        column = next(column for column, named in self._names.items() if named == name)
        return np.asarray(self._rest[column])

    @property
    def lengths(self) -> NDArray[np.integer]:
        """How many tokens each example has, special ones included, if it is not cut."""
        first, second = (np.diff(ragged.offsets) for ragged in (self._first, self._second))
        return Pairs(first, first, second, second).lengths

    def take(self, indices: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Gathers examples."""
        rows = np.asarray(indices, np.int64)
        # No more of a text than a sequence holds: nothing behind that can be used.
        a_tokens, a_starts = gather(self._first, rows=rows, longest=self._seq_length)
        b_tokens, b_starts = gather(self._second, rows=rows, longest=self._seq_length)
        a_lengths, b_lengths = (
            ragged.offsets[rows + 1] - ragged.offsets[rows] for ragged in (self._first, self._second)
        )
        pairs = Pairs(a_starts, a_lengths, b_starts + len(a_tokens), b_lengths).cut(self._seq_length)
        tokens = np.concatenate([a_tokens, b_tokens])
        made = assemble(tokens, pairs=pairs, seq_length=self._seq_length, specials=self._specials)
        rest = self._rest.take(rows)
        return {
            "input_word_ids": made.ids,
            "input_mask": made.mask,
            "input_type_ids": made.types,
            **{name: rest[column] for column, name in self._names.items()},
        }


def _read(params: SentenceDataConfig) -> "SentencePairs | RenamedColumns":
    return _read_text(params) if isinstance(params, SentencePredictionTextDataConfig) else _read_records(params)


def _read_records(params: SentencePredictionDataConfig) -> RenamedColumns:
    length = (params.seq_length,)
    features: dict[str, Any] = dict.fromkeys(_INPUTS, (np.int32, length))
    features[params.label_field] = (_DTYPES[params.label_type], ())
    if params.include_example_id:
        features["example_id"] = (np.int32, ())
    text_config = "the experiments …/sentence_prediction_text"
    examples = read_features(params, features=features, text_config=text_config)
    if params.label_name is None:
        return examples
    field, name = params.label_name
    return examples.with_name(name, of=field)


def _check_labels(labels: NDArray[Any], params: DataConfig, n_classes: int) -> None:
    is_wrong = (labels < 0) | (labels >= n_classes)
    if is_wrong.any():
        first = int(is_wrong.argmax())
        more = f"Set num_classes to {int(labels.max()) + 1}" if labels.min() >= 0 else "Count classes from 0 on"
        raise DataError(
            f"{data_place(params)}.input_path: {params.input_path!r} has the label {labels[first]} in example {first}, "
            f"but there are {n_classes} classes, from 0 on (task.model.num_classes). {more}, or correct the label."
        )


def _read_text(params: SentencePredictionTextDataConfig) -> SentencePairs:
    if not params.text_fields or len(params.text_fields) > 2:
        raise ConfigError(
            f"{data_place(params)}.text_fields is {params.text_fields}. Name the column with the text, or two for "
            f"pairs, as in: --set {data_place(params)}.text_fields='[sentence1, sentence2]'"
        )
    if params.preprocessing_hub_module_url:
        raise ConfigError("preprocessing_hub_module_url has no meaning here: give the vocabulary as vocab_file.")
    check_vocabulary(params, params.vocab_file, field="vocab_file")
    tokenizer = build_tokenizer(params.vocab_file, tokenization=params.tokenization, lower_case=params.lower_case)
    fields = SentenceFields(
        texts=list(params.text_fields),
        label=params.label_field,
        label_values=None if params.label_values is None else list(params.label_values),
        is_regression=params.label_type == "float",
        column_names=None if params.column_names is None else list(params.column_names),
    )
    columns = read_sentences_columns(
        input_paths(params), fields=fields, tokenizer=tokenizer, cache_dir=params.cache_dir
    )
    names = {"label": params.label_field} | ({"number": "example_id"} if params.include_example_id else {})
    return SentencePairs(columns, seq_length=params.seq_length, specials=Specials.of(tokenizer), names=names)
