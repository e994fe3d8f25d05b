"""Sentences whose words have tags: files to words, to windows of tokens, to batches."""

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.data import (
    Columns,
    Examples,
    ExampleStream,
    Padding,
    Ragged,
    Row,
    cached_columns,
    find_files,
    first_names,
    format_of,
    offsets_of,
    read_rows,
)
from trellis.errors import ConfigError, DataError
from trellis.nlp.data.configs import TaggingDataConfig
from trellis.nlp.data.sequences import INPUTS, Features, Sequences, Specials, assemble_texts
from trellis.nlp.data.stream_parts import (
    MadeExamples,
    config_tokenizer,
    data_place,
    example_stream,
    input_paths,
    named_counts,
    read_features,
)
from trellis.nlp.data.text_file import is_unicode
from trellis.nlp.data.token_cache import cache_directory, in_blocks, local_map, n_useful_workers
from trellis.nlp.data.tokenizer import UNKNOWN, Tokenizer
from trellis.runtime import print_line
from trellis.spelling import did_you_mean
from trellis.tasks import InputContext

LABELS, SENTENCES = "label_ids", "sentence_ids"
"""What a batch calls the tags of its tokens, and the numbers of its sentences."""
NO_TAG = -1
"""The label of a token that none is learned for."""
_BLOCK_SENTENCES = 1 << 11
# Part of the key of the cache: raised when the same files would give other tokens than before.
_VERSION = 1
_MULTIPLE = 8
_DOCUMENT = "-DOCSTART-"
_CONLL_NAMES = (".conll", ".conllu", ".conll03", ".iob", ".iob2", ".bio", ".ner")
_N_LOOKED_AT = 50
_LONGEST_USUAL = 500
# In CoNLL-U a range of words, or a word that is not written.
_NO_WORD = re.compile(r"\d+[-.]\d+")
_UNKNOWNS = (UNKNOWN, "<unk>")


@dataclass(frozen=True)
class TaggedFields:
    """Where a file has its words and their tags."""

    words: str = "words"
    """The column, if a row is a sentence."""
    tags: str = "tags"
    word_column: int = 0
    """The column, if a line is a word."""
    tag_column: int | None = -1
    """None if the words have no tags."""


class TaggedSentence(NamedTuple):
    """The words of a sentence, a tag for each, where it was read, and its number, counted over all files from 0."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    place: str = ""
    number: int = 0


def read_tagged_sentences(files: Sequence[Path], *, fields: TaggedFields) -> Iterator[TaggedSentence]:
    """Yields the sentences of files that have words.

    A row of JSONL, Parquet, CSV or TSV is a sentence, if the file has the columns that the fields name. Else a line is
    a word, in columns between tabs or spaces, and an empty line ends a sentence, as CoNLL has it.
    """
    numbers = itertools.count()
    n_sentences = 0
    for path in files:
        is_table = has_rows(path, fields=fields)
        n_words = 0
        n_before = n_sentences
        for words, tags, place in _sentences_of_rows(path, fields) if is_table else _sentences_of_lines(path, fields):
            if words:
                n_sentences += 1
                n_words += len(words)
                yield TaggedSentence(words, tags, place, next(numbers))
        if not is_table and n_sentences == n_before + 1 and n_words > _LONGEST_USUAL:
            print_line(f"{path}: there is no empty line in it, so its {n_words:,} words are one sentence.")
    if not n_sentences:
        raise DataError(f"There are no sentences in {', '.join(map(str, files))}. Give files that have some.")


def has_rows(path: Path, *, fields: TaggedFields) -> bool:
    """Whether each row of a file is a sentence; else each line of it is a word."""
    try:
        format = format_of(path)
    except DataError:
        return False
    if format in ("jsonl", "parquet"):
        return True
    # Files of words with tabs between columns are often called .tsv, too.
    return format in ("csv", "tsv") and fields.words in first_names(path, format=format)


def is_conll(path: Path, *, tags: Sequence[str] = ()) -> bool:
    """Whether each line of a file is a word: its name says so, or each of its first lines ends with a known tag."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if suffixes and suffixes[-1] in _CONLL_NAMES:
        return True
    rows = list(itertools.islice(read_rows(path, format="text", keep_bad=True), _N_LOOKED_AT))
    lines = [str(row.values.get("text", "")).split() for row in rows]
    words = [cells for cells in lines if cells and cells[0] != _DOCUMENT]
    return (
        bool(words)
        and not any(row.problem for row in rows)
        and all(len(cells) > 1 and cells[-1] in tags for cells in words)
    )


Rows = Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]


def _sentences_of_lines(path: Path, fields: TaggedFields) -> Rows:
    words: list[str] = []
    tags: list[str] = []
    n_columns, first = 0, 0
    has_tabs = any("\t" in text for _, text in itertools.islice(_lines(path), _N_LOOKED_AT))
    for line, text in itertools.chain(_lines(path), [(0, "")]):
        if has_tabs and text.startswith("#") and "\t" not in text:
            # What CoNLL-U says of a sentence.
            continue
        cells = text.split("\t") if "\t" in text else text.split()
        if not any(cell.strip() for cell in cells) or cells[0] == _DOCUMENT:
            yield tuple(words), tuple(tags), f"{path}:{first}"
            words, tags = [], []
            continue
        n_columns = n_columns or len(cells)
        place = f"{path}:{line}"
        if len(cells) != n_columns:
            parted = "tabs" if "\t" in text else "spaces"
            n_cells = f"{len(cells)} column" + ("s" if len(cells) > 1 else "")
            raise DataError(
                f"{place}: {n_cells} between {parted} ({text.strip()!r:.60}), but {n_columns} in the first "
                f"line. Part the columns of all lines alike, by tabs if a word has spaces."
            )
        if n_columns == 10 and _NO_WORD.fullmatch(cells[0]):
            continue
        first = first if words else line
        words.append(_cell(cells, fields.word_column, "word_column", place))
        if fields.tag_column is not None:
            tags.append(_cell(cells, fields.tag_column, "tag_column", place))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for row in read_rows(path, format="text"):
        yield row.line, str(row.values["text"])


def _cell(cells: Sequence[str], column: int, name: str, place: str) -> str:
    if not -len(cells) <= column < len(cells) or (len(cells) < 2 and name == "tag_column"):
        shown = f"{len(cells)} column" + ("s" if len(cells) > 1 else "")
        raise DataError(
            f"{place}: there {'are' if len(cells) > 1 else 'is'} {shown} ({' | '.join(cells)!r:.60}), but words are in "
            f"one and tags in another ({name} is {column}). Put a tab or a space between word and tag; or name "
            f"the columns by word_column and tag_column."
        )
    text = cells[column].strip()
    if not text:
        raise DataError(f"{place}: the cell in column {column} ({name}) is empty. Fill it in, or leave the line out.")
    return text


def _sentences_of_rows(path: Path, fields: TaggedFields) -> Rows:
    for row in read_rows(path):
        place = f"{path}:{row.line}"
        words = row_words(row, name=fields.words, setting="words_field", place=place)
        tags = _row_tags(row, fields.tags, place)
        if len(words) != len(tags):
            raise DataError(
                f"{place}: there are {len(words)} {fields.words} but {len(tags)} {fields.tags}. Give one tag for each "
                f"word."
            )
        yield words, tags, place


def row_words(row: Row, *, name: str, setting: str, place: str) -> tuple[str, ...]:
    """The words of a row: a list of them, or text with spaces between them.

    Args:
        name: Their column.
        setting: What the name is set by, for errors.
    """
    value = _value(row, name, setting, place)
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DataError(f"{place}: {name!r} is {value!r:.60}, not a list of words. Correct the row.")
    broken = next((word for word in words if not is_unicode(word) or not word.strip()), None)
    if broken is not None:
        raise DataError(f"{place}: {name!r} has the word {broken!r}, which cannot be read. Correct the row.")
    return tuple(words)


def _row_tags(row: Row, name: str, place: str) -> tuple[str, ...]:
    value = _value(row, name, "tags_field", place)
    tags = value.split() if isinstance(value, str) else value
    if not isinstance(tags, list) or not all(isinstance(tag, str | int) for tag in tags):
        raise DataError(f"{place}: {name!r} is {value!r:.60}, not a list of tags. Correct the row.")
    return tuple(map(str, tags))


def _value(row: Row, name: str, setting: str, place: str) -> object:
    if name not in row.values:
        known = ", ".join(map(repr, row.values))
        suggestion = did_you_mean(name, list(row.values), show=repr)
        raise DataError(
            f"{place}: there is no {name!r} among {known}.{suggestion} Fill it in, or name the column by {setting}."
        )
    if row.values[name] is None:
        raise DataError(f"{place}: {name!r} is null. Fill it in, or leave the row out.")
    return row.values[name]


def count_tags(params: TaggingDataConfig) -> dict[str, int]:
    """How often each tag is in the files of a config, in alphabetical order; numbers are listed up to the highest.

    The counts are kept, as tokens are.
    """
    files = find_files(input_paths(params))
    if _holds_records(files):
        raise ConfigError(
            f"{data_place(params)}.input_path: the records in {files[0]} have numbers for tags. Name the tags in their "
            f"order: --set task.class_names='[O, B-PER, I-PER]'"
        )
    fields = _fields(params)
    directory = cache_directory(files, params.cache_dir, settings=[_VERSION, "tags", repr(fields)])
    columns = cached_columns(directory, _counted(files, fields))
    names = columns.ragged("name")
    return {str(names[number]): int(count) for number, count in enumerate(columns["count"])}


def _counted(files: Sequence[Path], fields: TaggedFields) -> Iterator[Mapping[str, Any]]:
    counts = Counter[str]()
    for sentence in read_tagged_sentences(files, fields=fields):
        counts.update(sentence.tags)
    by_name = named_counts(counts, files=files, column=fields.tags)
    yield {"name": list(by_name), "count": np.array([*by_name.values()], np.int64)}


def tag_windows(
    sentences: Sequence[TaggedSentence],
    *,
    tokenizer: Tokenizer,
    seq_length: int,
    class_names: Sequence[str] = (),
) -> dict[str, Ragged | NDArray[Any]]:
    """Makes columns of sentences, a row for each window: as many words as `seq_length` has room for.

    `pieces` are the tokens of the words, without special ones; `labels` the number of a word's tag at its first piece,
    and -1 elsewhere; `sentence` is the sentence's number. A word without pieces, or with more than a window has room
    for, is an unknown one.

    Args:
        class_names: The tags, in their order; without any, labels are 0 at the first pieces.
    """
    all_words = [word for sentence in sentences for word in sentence.words]
    # Pieces that are cut from bytes show by a space that a word begins.
    before = "" if tokenizer.family in ("WordPiece", "SentencePiece") else " "
    pieces = tokenizer.encode([before + word for word in all_words])
    room = seq_length - 2
    unknown = np.array([tokenizer.id_of(next((one for one in _UNKNOWNS if one in tokenizer.all_tokens), UNKNOWN))])
    numbers = {name: number for number, name in enumerate(class_names)}
    n_pieces = pieces.lengths
    is_unknown = (n_pieces == 0) | (n_pieces > room)
    rows: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    of_sentence: list[int] = []
    first = 0
    for sentence in sentences:
        tags = [_number(tag, numbers, sentence.place) for tag in sentence.tags] or [0] * len(sentence.words)
        lengths = np.where(is_unknown, 1, n_pieces)[first : first + len(sentence.words)]
        for start, stop in _cuts(lengths, room):
            words = range(first + start, first + stop)
            rows.append(np.concatenate([unknown if is_unknown[word] else np.asarray(pieces[word]) for word in words]))
            row = np.full(len(rows[-1]), NO_TAG, np.int32)
            row[np.cumsum(lengths[start:stop]) - lengths[start:stop]] = tags[start:stop]
            labels.append(row)
            of_sentence.append(sentence.number)
        first += len(sentence.words)
    return {
        "pieces": Ragged.from_rows(rows, dtype="int32"),
        "labels": Ragged.from_rows(labels, dtype="int32"),
        "sentence": np.array(of_sentence, np.int32),
    }


def _cuts(lengths: NDArray[np.integer], room: int) -> Iterator[tuple[int, int]]:
    """Yields the first word of each window and the one after its last: as many as there is room for."""
    start, used = 0, 0
    for word, length in enumerate(lengths.tolist()):
        if used + length > room:
            yield start, word
            start, used = word, 0
        used += length
    yield start, len(lengths)


def _number(tag: str, numbers: Mapping[str, int], place: str) -> int:
    if tag in numbers:
        return numbers[tag]
    if tag.isdecimal() and int(tag) < len(numbers):
        return int(tag)
    known = ", ".join(map(repr, numbers))
    suggestion = did_you_mean(tag, list(numbers), show=repr)
    raise DataError(
        f"{place}: the tag {tag!r} is none of {known}.{suggestion} Correct it, or name all tags in task.class_names."
    )


def tagging_inputs(windows: Mapping[str, Ragged | NDArray[Any]], *, seq_length: int, specials: Specials) -> Sequences:
    """What a model reads of all windows."""
    columns = Columns.from_arrays(windows)
    return _sequences(columns, np.arange(len(columns)), seq_length, specials)


def _sequences(columns: Columns, rows: NDArray[np.int64], seq_length: int, specials: Specials) -> Sequences:
    none = Ragged(np.zeros(0, np.int32), offsets=offsets_of(np.zeros(len(columns), np.int64)))
    return assemble_texts(columns.ragged("pieces"), none, rows=rows, seq_length=seq_length, specials=specials)


def build_tagging_stream(
    params: TaggingDataConfig,
    context: InputContext | None = None,
    *,
    class_names: Sequence[str],
    tokenizer: Tokenizer | None = None,
) -> ExampleStream:
    """Batches with `input_word_ids`, `input_mask`, `input_type_ids` and `label_ids`, -1 where none is learned.

    In validation there are `sentence_ids` too: a sentence that is too long for one row is in several. Batches to train
    on are only as long as the longest example needs, rounded up to a multiple of 8.

    Args:
        tokenizer: Of text; the default is the one that the config names.
    """
    files = find_files(input_paths(params))
    if _holds_records(files):
        examples: Examples = _record_examples(params, class_names)
    else:
        examples = _text_examples(params, files, class_names, tokenizer)
    return example_stream(examples, params=params, context=context)


def _record_examples(params: TaggingDataConfig, class_names: Sequence[str]) -> Columns:
    length = (params.seq_length,)
    features: dict[str, Any] = dict.fromkeys((*INPUTS, LABELS), (np.int32, length))
    if params.include_sentence_id:
        features["sentence_id"] = (np.int32, ())
    examples = read_features(params, features=features, text_config="a file that is none")
    highest = int(np.asarray(examples[LABELS]).max(initial=0))
    if highest >= len(class_names):
        raise DataError(
            f"{data_place(params)}.input_path: {params.input_path!r} has the tag {highest}, but task.class_names has "
            f"{len(class_names)}, from 0 on. Name all tags in their order."
        )
    if not params.include_sentence_id:
        return examples
    return Columns({**{name: examples[name] for name in (*INPUTS, LABELS)}, SENTENCES: examples["sentence_id"]})


def _text_examples(
    params: TaggingDataConfig, files: Sequence[Path], class_names: Sequence[str], tokenizer: Tokenizer | None
) -> MadeExamples:
    if params.seq_length < 3:
        raise ConfigError(
            f"{data_place(params)}.seq_length is {params.seq_length}, but one word takes 3. Make it longer."
        )
    if tokenizer is None:
        tokenizer = config_tokenizer(params, params.vocab_file, field="vocab_file", lower_case=params.lower_case)
    fields, names = _fields(params), list(class_names)
    settings = [_VERSION, tokenizer.fingerprint, repr(fields), params.seq_length, names]
    directory = cache_directory(files, params.cache_dir, settings=settings)
    make_windows = functools.partial(tag_windows, tokenizer=tokenizer, seq_length=params.seq_length, class_names=names)
    blocks = in_blocks(read_tagged_sentences(files, fields=fields), _BLOCK_SENTENCES)
    columns = cached_columns(directory, local_map(n_useful_workers(files))(make_windows, blocks))
    specials = Specials.of(tokenizer)
    length = params.seq_length
    if params.is_training:
        longest = 2 + columns.ragged("pieces").longest
        length = min(length, math.ceil(longest / _MULTIPLE) * _MULTIPLE)
    labels = columns.select(["labels"]).padded({"labels": Padding(length - 1, value=NO_TAG)})

    def make(rows: NDArray[np.int64]) -> Features:
        inputs = _sequences(columns, rows, length, specials).inputs
        # No tag is learned for the first token, which is a special one.
        of_tokens = np.pad(labels.take(rows)["labels"], [(0, 0), (1, 0)], constant_values=NO_TAG)
        numbers = {} if params.is_training else {SENTENCES: columns["sentence"][rows]}
        return {**inputs, LABELS: of_tokens, **numbers}

    return MadeExamples(len(columns), make)


def _holds_records(files: Sequence[Path]) -> bool:
    try:
        return format_of(files[0]) == "tfrecord"
    except DataError:
        return False


def _fields(params: TaggingDataConfig) -> TaggedFields:
    return TaggedFields(params.words_field, params.tags_field, params.word_column, params.tag_column)
