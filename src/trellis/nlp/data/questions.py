"""Questions about passages: SQuAD's files to windows, to records, to batches."""

import functools
import itertools
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import (
    Columns,
    Examples,
    ExampleStream,
    Padding,
    Ragged,
    cached_columns,
    find_files,
    open_file,
)
from trellis.errors import ArgumentError, ConfigError, DataError
from trellis.json_text import parse_json
from trellis.nlp.data.configs import QADataConfig
from trellis.nlp.data.output import OutputFormat, work_folder, write_features, write_meta_data
from trellis.nlp.data.question_rows import read_question_rows
from trellis.nlp.data.sequences import INPUTS, RECORD_NAMES, Features, Specials
from trellis.nlp.data.stream_parts import (
    MadeExamples,
    config_tokenizer,
    data_place,
    example_stream,
    input_paths,
    read_features,
)
from trellis.nlp.data.text_settings import TEXT, TextSettings, beside_records
from trellis.nlp.data.token_cache import OrderedMap, cache_directory, in_blocks, local_map, n_useful_workers
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.runtime import Tally, print_line
from trellis.tasks import InputContext

FIRST_UNIQUE_ID = 1_000_000_000
_BLOCK_QUESTIONS = 256
_BLOCK_WINDOWS = 1 << 10
QuestionTokens = dict[str, Ragged | NDArray[Any]]
# Part of the key of the cache: raised when the same files would give other features than before.
_VERSION = 1
# Words are parted at these spaces alone.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_ROWS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""How the names of files end in which a row is a question; others are documents as SQuAD's."""
_POSITIONS = ("start_positions", "end_positions")


@dataclass(frozen=True)
class Question:
    """A question, the words of its passage, and what answers it."""

    id: str
    text: str
    words: tuple[str, ...]
    answers: tuple[str, ...]
    is_impossible: bool = False
    first_word: int = -1
    """Of the answer to learn from; -1 if there is none."""
    last_word: int = -1
    gaps: tuple[str, ...] = ()
    """What stands before each word, for vocabularies to which spaces are signs as others; empty is single spaces."""


@dataclass
class Skipped:
    """Questions that were left out because their answers are not in their passages."""

    ids: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shown = ", ".join(self.ids[:5]) + (", …" if len(self.ids) > 5 else "")
        return f"{len(self.ids)} questions were left out: their answers are not in their passages ({shown})."


def read_questions(
    files: Sequence[Path],
    *,
    is_training: bool = False,
    version_2_with_negative: bool = False,
    is_asked: bool = False,
    skipped: Skipped | None = None,
) -> Iterator[Question]:
    """Yields the questions of files.

    Args:
        is_training: Whether each question needs an answer in its passage; those without one are left out.
        version_2_with_negative: Whether some questions have no answer.
        is_asked: Whether the answers are what is asked for: then those in the files are not looked at.
        skipped: Gets the ids of the questions that are left out.
    """
    skipped = Skipped() if skipped is None else skipped
    n_questions = 0
    for question, passage, start in _all_questions(files, version_2_with_negative, is_asked):
        n_questions += 1
        needs_span = is_training and not question.is_impossible
        complete = _with_span(question, passage, start) if needs_span else question
        if complete is None:
            skipped.ids.append(question.id)
        else:
            yield complete
    if n_questions == len(skipped.ids):
        why = f" {skipped}" if n_questions else " Give files that have some."
        raise DataError(f"There are no questions in {', '.join(map(str, files))}.{why}")


def passage_words(passage: str) -> tuple[str, ...]:
    """The words of a passage, which are parted at spaces as in the published tools.

    Example:
        >>> passage_words("The sky  is blue.")
        ('The', 'sky', 'is', 'blue.')
    """
    return tuple(_WORD.findall(passage))


def passage_gaps(passage: str) -> tuple[str, ...]:
    """What stands before each word of a passage.

    Example:
        >>> passage_gaps("The sky  is blue.")
        ('', ' ', '  ', ' ')
    """
    ends = [0, *(match.end() for match in _WORD.finditer(passage))]
    return tuple(passage[end : match.start()] for end, match in zip(ends, _WORD.finditer(passage), strict=False))


def _all_questions(files: Sequence[Path], with_negative: bool, is_asked: bool) -> Iterator[tuple[Question, str, int]]:
    for file in files:
        if file.name.lower().removesuffix(".gz").endswith(_ROWS):
            yield from _questions_of_rows(file, with_negative, is_asked)
            continue
        for number, article in enumerate(_articles(file)):
            yield from _questions_of(article, f"{file}, article {number}", with_negative, is_asked)


def _questions_of_rows(file: Path, with_negative: bool, is_asked: bool) -> Iterator[tuple[Question, str, int]]:
    """Yields the questions of a file of rows, each with its passage and where its first answer starts in it."""
    for row in read_question_rows(file, has_answers=not is_asked):
        if not row.answers and not with_negative and not is_asked:
            raise DataError(
                f"{row.place}: there is no answer. If questions may have none, set version_2_with_negative."
            )
        is_impossible = with_negative and not row.answers and not is_asked
        texts = tuple(answer.text for answer in row.answers)
        start = row.answers[0].start if row.answers else -1
        yield Question(row.id, row.question, passage_words(row.context), texts, is_impossible), row.context, start


def _questions_of(article: Any, place: str, with_negative: bool, is_asked: bool) -> Iterator[tuple[Question, str, int]]:
    """Yields questions, each with its passage and where its first answer starts in it."""
    for number, paragraph in enumerate(_get(article, "paragraphs", list, place)):
        paragraph_place = f"{place}, paragraph {number}"
        passage = _get(paragraph, "context", str, paragraph_place)
        words, gaps = passage_words(passage), passage_gaps(passage)
        for entry in _get(paragraph, "qas", list, paragraph_place):
            name = str(_get(entry, "id", str, paragraph_place))
            question_place = f"{paragraph_place}, question {name}"
            is_impossible = with_negative and bool(entry.get("is_impossible", False))
            answers = [] if is_impossible or is_asked else _get(entry, "answers", list, question_place)
            if not answers and not is_impossible and not is_asked:
                way_out = "If questions may have none, set version_2_with_negative."
                raise DataError(f"{question_place}: there is no answer. {way_out}")
            texts = tuple(_get(answer, "text", str, question_place) for answer in answers)
            start = int(_get(answers[0], "answer_start", int, question_place)) if answers else -1
            text = _get(entry, "question", str, question_place)
            yield Question(name, text, words, texts, is_impossible, gaps=gaps), passage, start


def _with_span(question: Question, passage: str, start: int) -> Question | None:
    """The question with the words that its first answer lies in; None if it is not there."""
    answer = question.answers[0]
    spans = [match.span() for match in _WORD.finditer(passage)]
    stop = start + len(answer)
    inside = [number for number, (begin, end) in enumerate(spans) if begin < stop and end > start]
    if start < 0 or not inside:
        return None
    first, last = inside[0], inside[-1]
    if " ".join(answer.split()) not in " ".join(question.words[first : last + 1]):
        return None
    return replace(question, first_word=first, last_word=last)


def _articles(file: Path) -> list[Any]:
    try:
        with open_file(file) as stream:
            text = stream.read().decode("utf-8-sig")
        content = parse_json(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 ({error}). Convert the file to UTF-8.") from error
    except ValueError as error:
        if '"data"' in text:
            raise DataError(f"{file}: not JSON, or cut short ({error}). Copy the file again.") from error
        content = None
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise DataError(f"{file} is not in SQuAD's format: there is no list `data`. Give SQuAD's JSON files.")
    return articles


def _get(mapping: Any, name: str, kind: type, place: str) -> Any:
    values = mapping if isinstance(mapping, Mapping) else {}
    value = values.get(name)
    if not isinstance(value, kind):
        problem = f"{name!r} is {reprlib.repr(value)}" if name in values else f"there is no {name!r}"
        raise DataError(f"{place}: {problem}. Give files in SQuAD's format.")
    return value


@dataclass(frozen=True)
class Windows:
    """How a passage that is too long is cut into windows, each with the question before it."""

    seq_length: int = 384
    doc_stride: int = 128
    query_length: int = 64

    def __post_init__(self) -> None:
        """Refuses windows without room for the passage, and strides that stand still."""
        if self.seq_length < self.query_length + 4:
            needed = f"a question of {self.query_length} tokens and one of its passage take {self.query_length + 4}"
            raise ArgumentError(
                f"seq_length is {self.seq_length}, but {needed}. Make it longer, or query_length shorter."
            )
        if self.doc_stride < 1:
            raise ArgumentError(f"doc_stride is {self.doc_stride}; it is at least 1.")

    def spans(self, n_tokens: int, *, n_query: int, n_special: int = 3) -> list[tuple[int, int]]:
        """The windows over a passage, each as its first token and its length.

        Args:
            n_special: How many special tokens there are in a window.

        Example:
            >>> Windows(seq_length=10, doc_stride=3, query_length=2).spans(9, n_query=2)
            [(0, 5), (3, 5), (6, 3)]
        """
        width = self.seq_length - n_query - n_special
        if width < 1:
            raise ArgumentError(
                f"seq_length is {self.seq_length}, but a question of {n_query} tokens, {n_special} special ones and "
                f"one of its passage take {n_query + n_special + 1}. Make it longer, or query_length shorter."
            )
        stride = min(width, self.doc_stride)
        n_more = max(0, -(-(n_tokens - width) // stride))
        return [(start, min(width, n_tokens - start)) for start in range(0, n_more * stride + 1, stride) if n_tokens]


@dataclass(frozen=True)
class _Window:
    question: int
    ids: NDArray[np.int32]
    paragraph_start: int
    words: NDArray[np.int32]
    is_max_context: NDArray[np.bool_]
    start_position: int
    end_position: int
    is_impossible: bool


def tokenize_questions(questions: Sequence[Question], *, tokenizer: Tokenizer, windows: Windows) -> QuestionTokens:
    """Makes columns of questions, a row for each window.

    `question` is the number of the question in the block, and `input_ids` is not padded. The passage's tokens begin at
    `paragraph_start`; `words` has the word of each of them, and `is_max_context` whether no other window shows more of
    what is around it. Where a window does not hold the whole answer, both positions are 0.
    """
    # Questions on one passage share its words: each passage is tokenized once.
    shared = {id(question.words): (question.words, question.gaps) for question in questions}
    passages = [words for words, _ in shared.values()]
    pieces = tokenizer.encode_words(passages, gaps=[gaps for _, gaps in shared.values()])
    first_words = np.cumsum([0, *map(len, passages)])
    first_word = {id(words): int(first) for words, first in zip(passages, first_words[:-1], strict=True)}
    queries = tokenizer.encode([question.text.lstrip() for question in questions])
    texts = [question.answers[0] if question.answers else "" for question in questions]
    spellings = [tokenizer.encode(texts)]
    if tokenizer.tells_spaces:
        # An answer may begin a word, or stand inside one.
        spellings.insert(0, tokenizer.encode_inside(texts))
    specials = Specials.of(tokenizer)
    rows: list[_Window] = []
    for number, question in enumerate(questions):
        first = first_word[id(question.words)]
        offsets = pieces.offsets[first : first + len(question.words) + 1]
        tokens = pieces.values[offsets[0] : offsets[-1]]
        query = np.asarray(queries[number])[: windows.query_length]
        answers = [np.asarray(spelling[number]) for spelling in spellings]
        span = _token_span(question, tokens, offsets - offsets[0], answers, tokenizer)
        words = np.repeat(np.arange(len(question.words), dtype=np.int32), np.diff(offsets))
        rows += _windows_of(number, query, tokens, words, span, windows, specials)
    return {
        "question": np.array([window.question for window in rows], np.int64),
        "input_ids": Ragged.from_rows([window.ids for window in rows], dtype="int32"),
        "paragraph_start": np.array([window.paragraph_start for window in rows], np.int32),
        "words": Ragged.from_rows([window.words for window in rows], dtype="int32"),
        "is_max_context": Ragged.from_rows([window.is_max_context for window in rows], dtype="bool"),
        "start_positions": np.array([window.start_position for window in rows], np.int32),
        "end_positions": np.array([window.end_position for window in rows], np.int32),
        "is_impossible": np.array([window.is_impossible for window in rows], np.int32),
    }


def _token_span(
    question: Question,
    tokens: NDArray[np.int32],
    word_offsets: NDArray[np.int64],
    answers: Sequence[NDArray[np.int32]],
    tokenizer: Tokenizer,
) -> tuple[int, int] | None:
    """The first and last token of the answer.

    These are the ones that the tokenizer tells, or the answer's own tokens if they are there as such, or those of its
    words.

    Args:
        answers: The tokens that the answer may have.
    """
    if question.first_word < 0:
        return None
    first, last = int(word_offsets[question.first_word]), int(word_offsets[question.last_word + 1]) - 1
    text, part = " ".join(question.words[question.first_word : question.last_word + 1]), question.answers[0]
    begin = text.find(" ".join(part.split()))
    if begin >= 0:
        told = tokenizer.pieces_at(begin, begin + len(" ".join(part.split())), text=text, ids=tokens[first : last + 1])
        if told is not None:
            return first + told[0], first + told[1]
    for answer in answers:
        for start in range(first, last - len(answer) + 2):
            if len(answer) and np.array_equal(tokens[start : start + len(answer)], answer):
                return start, start + len(answer) - 1
    return first, last


def _windows_of(
    number: int,
    query: NDArray[np.int32],
    tokens: NDArray[np.int32],
    words: NDArray[np.int32],
    answer: tuple[int, int] | None,
    windows: Windows,
    specials: Specials,
) -> Iterator[_Window]:
    n_between = specials.n_between
    spans = windows.spans(len(tokens), n_query=len(query), n_special=2 + n_between)
    best = _best_windows(spans, len(tokens))
    paragraph_start = len(query) + 1 + n_between
    for index, (start, length) in enumerate(spans):
        stop = start + length
        is_inside = answer is not None and start <= answer[0] and answer[1] < stop
        first, last = (place - start + paragraph_start for place in answer) if answer and is_inside else (0, 0)
        between = [specials.sep] * n_between
        ids = np.concatenate([[specials.cls], query, between, tokens[start:stop], [specials.sep]])
        yield _Window(
            number, ids, paragraph_start, words[start:stop], best[start:stop] == index, first, last, not is_inside
        )


def _best_windows(spans: Sequence[tuple[int, int]], n_tokens: int) -> NDArray[np.int64]:
    """For each token, the window that shows most of what is around it."""
    best = np.zeros(n_tokens, np.int64)
    best_scores = np.full(n_tokens, -np.inf)
    for index, (start, length) in enumerate(spans):
        place = np.arange(length)
        scores = np.minimum(place, length - 1 - place) + 0.01 * length
        inside = slice(start, start + length)
        # Of two that show as much, the first.
        is_better = scores > best_scores[inside]
        best[inside][is_better] = index
        best_scores[inside][is_better] = scores[is_better]
    return best


def _write_windows(
    directory: Path, questions: Iterable[Question], *, tokenizer: Tokenizer, windows: Windows, ordered_map: OrderedMap
) -> Columns:
    """Makes columns of questions, as `tokenize_questions` does, in a directory, unless they are there."""
    tokenize = functools.partial(tokenize_questions, tokenizer=tokenizer, windows=windows)
    blocks = ordered_map(tokenize, in_blocks(questions, _BLOCK_QUESTIONS))
    # The questions of each block are numbered from 0.
    numbered = zip(blocks, itertools.count(0, _BLOCK_QUESTIONS), strict=False)
    return cached_columns(
        directory, ({**block, "question": np.asarray(block["question"]) + first} for block, first in numbered)
    )


def question_features(
    columns: Columns, *, rows: NDArray[np.integer], seq_length: int, specials: Specials | None = None
) -> dict[str, NDArray[np.generic]]:
    """Returns the published features of windows, by the names that records have.

    Args:
        specials: Of the vocabulary that the windows were made with; None is for one that fills up rows with 0 and tells
            passages from questions by their kind, as BERT's does.
    """
    pad, has_types = (0, True) if specials is None else (specials.pad, specials.has_types)
    chosen = columns.select(["input_ids", "paragraph_start", "start_positions", "end_positions", "is_impossible"])
    values = chosen.padded({"input_ids": Padding(seq_length, pad)}).take(rows)
    offsets = columns.ragged("input_ids").offsets
    lengths = (offsets[rows + 1] - offsets[rows])[:, None]
    place = np.arange(seq_length)
    start = values.pop("paragraph_start")[:, None]
    return {
        "unique_ids": (rows + FIRST_UNIQUE_ID).astype(np.int32),
        **values,
        "input_mask": (place < lengths).astype(np.int32),
        "segment_ids": ((place >= start) & (place < lengths) & has_types).astype(np.int32),
        "paragraph_mask": ((place >= start) & (place < lengths - 1)).astype(np.int32),
        "class_index": np.zeros(len(rows), np.int32),
    }


def write_question_data(
    squad_file: str,
    *,
    output_path: str | os.PathLike[str],
    meta_data_file: str,
    tokenizer: Tokenizer,
    windows: Windows,
    version_2_with_negative: bool = False,
    output_format: OutputFormat = "tfrecord",
    ordered_map: OrderedMap | None = None,
) -> dict[str, object]:
    """Makes features of questions to learn from, and writes and returns what a model needs to know of them.

    Args:
        ordered_map: Who does the work; None is as many processes of this machine as do good.
    """
    files = find_files(squad_file)
    ordered_map = ordered_map or local_map(n_useful_workers(files))
    skipped = Skipped()
    questions = read_questions(
        files, is_training=True, version_2_with_negative=version_2_with_negative, skipped=skipped
    )
    with work_folder(output_path) as folder:
        columns = _write_windows(
            folder / "windows",
            Tally("Tokenizing", unit="questions").over(questions),
            tokenizer=tokenizer,
            windows=windows,
            ordered_map=ordered_map,
        )
        n_rows = len(columns)
        write_features(
            [os.fspath(output_path)],
            np.split(np.arange(n_rows), range(_BLOCK_WINDOWS, n_rows, _BLOCK_WINDOWS)),
            make=functools.partial(_features, folder / "windows", windows.seq_length, Specials.of(tokenizer)),
            output_format=output_format,
            ordered_map=ordered_map,
            n_rows=n_rows,
        )
    if skipped.ids:
        print_line(str(skipped))
    meta: dict[str, object] = {
        "task_type": "bert_squad",
        "train_data_size": n_rows,
        "max_seq_length": windows.seq_length,
        "max_query_length": windows.query_length,
        "doc_stride": windows.doc_stride,
        "version_2_with_negative": version_2_with_negative,
    }
    text = TextSettings.of(tokenizer, seq_length=windows.seq_length)
    text.write(beside_records(output_path))
    meta[TEXT] = text.as_json()
    write_meta_data(meta_data_file, meta)
    return meta


def _features(directory: Path, seq_length: int, specials: Specials, rows: NDArray[np.integer]) -> Features:
    return question_features(_open_windows(directory), rows=rows, seq_length=seq_length, specials=specials)


_open_windows = functools.lru_cache(maxsize=1)(Columns.open)
"""Windows that a process works on block by block, opened once."""


def build_question_stream(
    params: QADataConfig, context: InputContext | None = None, *, tokenizer: Tokenizer | None = None
) -> ExampleStream:
    """Batches with `input_word_ids`, `input_mask`, `input_type_ids` and, to learn from, the positions of answers.

    In validation there are `unique_ids` instead: a window's number in `question_windows`, from 1000000000 on. Then no
    window is left out, whatever `drop_remainder` is: every question is to be answered.
    """
    names = (*INPUTS, *_POSITIONS) if params.is_training else ("unique_ids", *INPUTS)
    if reads_questions(params):
        tokenizer = tokenizer or question_tokenizer(params)
        columns, specials = question_windows(params, tokenizer=tokenizer), Specials.of(tokenizer)

        def make(rows: NDArray[np.int64]) -> Features:
            features = question_features(columns, rows=rows, seq_length=params.seq_length, specials=specials)
            return {name: features[RECORD_NAMES.get(name, name)] for name in names}

        examples: Examples = MadeExamples(len(columns), make)
    else:
        features = {name: (np.int32, (params.seq_length,) if name in INPUTS else ()) for name in names}
        examples = read_features(
            params, features=features, text_config="a name that ends in .json, .jsonl, .csv, .tsv or .parquet"
        )
    keeps_all = params.replace(drop_remainder=params.drop_remainder and bool(params.is_training))
    return example_stream(examples, params=keeps_all, context=context)


def reads_questions(params: QADataConfig) -> bool:
    """Whether the files of a config are questions (SQuAD's JSON, or rows with columns), not records."""
    return all(map(is_of_questions, input_paths(params)))


def is_of_questions(path: str) -> bool:
    """Whether a path is, by its name, of a file with questions, not with records."""
    return path.lower().removesuffix(".gz").endswith((".json", *_ROWS))


def question_tokenizer(params: QADataConfig) -> Tokenizer:
    """The tokenizer that a config names."""
    return config_tokenizer(params, params.vocab_file, field="vocab_file", lower_case=params.do_lower_case)


def question_windows(params: QADataConfig, *, tokenizer: Tokenizer | None = None) -> Columns:
    """The windows over the passages of a config's questions, as columns of `tokenize_questions`.

    They are made once, into a cache that the next call memory-maps.

    Args:
        tokenizer: The default is the one that the config names.
    """
    if params.xlnet_format:
        raise ConfigError("xlnet_format is true, but there is no XLNet model to read it. Leave it false.")
    tokenizer = tokenizer or question_tokenizer(params)
    files = find_files(input_paths(params))
    try:
        windows = Windows(params.seq_length, params.doc_stride, params.query_length)
    except ArgumentError as error:
        raise ArgumentError(f"{data_place(params)}.{error}") from None
    settings = [
        _VERSION,
        tokenizer.fingerprint,
        repr(windows),
        bool(params.is_training),
        params.version_2_with_negative,
    ]
    skipped = Skipped()
    columns = _write_windows(
        cache_directory(files, params.input_preprocessed_data_path, settings=settings),
        _read_questions(params, files, skipped),
        tokenizer=tokenizer,
        windows=windows,
        ordered_map=local_map(n_useful_workers(files)),
    )
    if skipped.ids:
        print_line(str(skipped))
    return columns


def load_questions(params: QADataConfig) -> list[Question]:
    """The questions of a config with the words of their passages and all answers, in the order of their windows."""
    if not reads_questions(params):
        raise ConfigError(
            f"input_path is {params.input_path!r}: answers are compared with the questions themselves. "
            "Name SQuAD's JSON file, or rows with questions, for validation."
        )
    return list(_read_questions(params, find_files(input_paths(params))))


def _read_questions(params: QADataConfig, files: Sequence[Path], skipped: Skipped | None = None) -> Iterator[Question]:
    return read_questions(
        files,
        is_training=bool(params.is_training),
        version_2_with_negative=params.version_2_with_negative,
        skipped=skipped,
    )
