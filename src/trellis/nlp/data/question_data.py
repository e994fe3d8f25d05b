"""Questions as features: windows over their passages, as ids with the positions of answers."""

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, ColumnsWriter, Padding, Ragged, find_files
from trellis.errors import ArgumentError
from trellis.nlp.data.corpus import cache_directory
from trellis.nlp.data.output import Features, OutputFormat, write_features, write_meta_data
from trellis.nlp.data.questions import Question, Skipped, read_questions
from trellis.nlp.data.sequences import Specials
from trellis.nlp.data.tokenizer import Tokenizer
from trellis.nlp.data.workers import n_useful_workers, ordered_map

FIRST_UNIQUE_ID = 1_000_000_000
_BLOCK_QUESTIONS = 256
QuestionTokens = dict[str, Ragged | NDArray[Any]]
# Part of the key of the cache: raised when the same files would give other features than before.
_VERSION = 1


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

    def spans(self, n_tokens: int, *, n_query: int) -> list[tuple[int, int]]:
        """The windows over a passage, each as its first token and its length."""
        width = self.seq_length - n_query - 3
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

    `question` counts the questions of the block, `input_ids` is not padded, the passage's tokens begin at
    `paragraph_start`; `words` tells the word of each of them, and `is_max_context` whether no other window shows more
    of what is around it. Without the whole answer in a window both positions are 0.
    """
    # Questions on one passage share its words: each passage is looked up once.
    passages = list({id(question.words): question.words for question in questions}.values())
    pieces = tokenizer.encode([word for words in passages for word in words])
    first_words = np.cumsum([0, *map(len, passages)])
    first_word = {id(words): int(first) for words, first in zip(passages, first_words, strict=False)}
    queries = tokenizer.encode([question.text for question in questions])
    answers = tokenizer.encode([question.answers[0] if question.answers else "" for question in questions])
    specials = Specials.of(tokenizer)
    made: list[_Window] = []
    for number, question in enumerate(questions):
        first = first_word[id(question.words)]
        offsets = pieces.offsets[first : first + len(question.words) + 1]
        tokens = pieces.values[offsets[0] : offsets[-1]]
        query = np.asarray(queries[number])[: windows.query_length]
        span = _token_span(question, tokens, offsets - offsets[0], np.asarray(answers[number]))
        words = np.repeat(np.arange(len(question.words), dtype=np.int32), np.diff(offsets))
        made += _windows_of(number, query, tokens, words, span, windows, specials)
    return {
        "question": np.array([window.question for window in made], np.int64),
        "input_ids": Ragged.from_rows([window.ids for window in made], dtype="int32"),
        "paragraph_start": np.array([window.paragraph_start for window in made], np.int32),
        "words": Ragged.from_rows([window.words for window in made], dtype="int32"),
        "is_max_context": Ragged.from_rows([window.is_max_context for window in made], dtype="bool"),
        "start_positions": np.array([window.start_position for window in made], np.int32),
        "end_positions": np.array([window.end_position for window in made], np.int32),
        "is_impossible": np.array([window.is_impossible for window in made], np.int32),
    }


def _token_span(
    question: Question, tokens: NDArray[np.int32], word_offsets: NDArray[np.int64], answer: NDArray[np.int32]
) -> tuple[int, int] | None:
    """The first and last token of the answer: exactly its tokens if they are among those of its words."""
    if question.first_word < 0:
        return None
    first, last = int(word_offsets[question.first_word]), int(word_offsets[question.last_word + 1]) - 1
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
    spans = windows.spans(len(tokens), n_query=len(query))
    best = _best_windows(spans, len(tokens))
    paragraph_start = len(query) + 2
    for index, (start, length) in enumerate(spans):
        stop = start + length
        is_inside = answer is not None and start <= answer[0] and answer[1] < stop
        first, last = (place - start + paragraph_start for place in answer) if answer and is_inside else (0, 0)
        ids = np.concatenate([[specials.cls], query, [specials.sep], tokens[start:stop], [specials.sep]])
        yield _Window(
            number, ids, paragraph_start, words[start:stop], best[start:stop] == index, first, last, not is_inside
        )


def _best_windows(spans: Sequence[tuple[int, int]], n_tokens: int) -> NDArray[np.int64]:
    """For each token, the window that shows most of what is around it."""
    scores = np.full((max(len(spans), 1), n_tokens), -np.inf)
    for index, (start, length) in enumerate(spans):
        place = np.arange(length)
        scores[index, start : start + length] = np.minimum(place, length - 1 - place) + 0.01 * length
    best: NDArray[np.int64] = np.argmax(scores, axis=0)
    return best


def read_question_columns(
    paths: str | Sequence[str],
    *,
    tokenizer: Tokenizer,
    windows: Windows,
    is_training: bool,
    version_2_with_negative: bool = False,
    cache_dir: str = "",
    skipped: Skipped | None = None,
) -> Columns:
    """Tokenizes questions once into columns, as `tokenize_questions` says: the next call just maps them."""
    files = find_files(paths)
    settings = [_VERSION, tokenizer.fingerprint, repr(windows), is_training, version_2_with_negative]
    directory = cache_directory(files, cache_dir, settings=settings)
    if not (directory / "columns.json").exists():
        questions = read_questions(
            files, is_training=is_training, version_2_with_negative=version_2_with_negative, skipped=skipped
        )
        work = functools.partial(tokenize_questions, tokenizer=tokenizer, windows=windows)
        n_workers = n_useful_workers(sum(file.stat().st_size for file in files))
        with ColumnsWriter(directory, source=directory.name) as writer:
            for number, block in enumerate(ordered_map(work, _blocks(questions), n_workers=n_workers)):
                writer.append({**block, "question": np.asarray(block["question"]) + number * _BLOCK_QUESTIONS})
    return Columns.open(directory)


def _blocks(questions: Iterator[Question]) -> Iterator[list[Question]]:
    return iter(lambda: list(itertools.islice(questions, _BLOCK_QUESTIONS)), [])


def question_features(
    columns: Columns, *, rows: NDArray[np.integer], seq_length: int
) -> dict[str, NDArray[np.generic]]:
    """Returns the published features of windows, by the names that records have."""
    chosen = columns.select(["input_ids", "paragraph_start", "start_positions", "end_positions", "is_impossible"])
    taken = chosen.padded({"input_ids": Padding(seq_length)}).take(rows)
    ragged = columns["input_ids"]
    assert isinstance(ragged, Ragged)
    lengths = (ragged.offsets[rows + 1] - ragged.offsets[rows])[:, None]
    place = np.arange(seq_length)
    start = taken.pop("paragraph_start")[:, None]
    return {
        "unique_ids": (rows + FIRST_UNIQUE_ID).astype(np.int32),
        **taken,
        "input_mask": (place < lengths).astype(np.int32),
        "segment_ids": ((place >= start) & (place < lengths)).astype(np.int32),
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
    skipped: Skipped | None = None,
) -> dict[str, object]:
    """Makes features of questions to learn from, and writes and returns what a model needs to know of them."""
    files = find_files(squad_file)
    questions = read_questions(
        files, is_training=True, version_2_with_negative=version_2_with_negative, skipped=skipped
    )
    work = functools.partial(tokenize_questions, tokenizer=tokenizer, windows=windows)
    n_workers = n_useful_workers(sum(file.stat().st_size for file in files))
    tokenized = ordered_map(work, _blocks(questions), n_workers=n_workers)
    n_rows = write_features(
        [os.fspath(output_path)],
        _numbered(Columns.from_arrays(block) for block in tokenized),
        make=functools.partial(_numbered_features, seq_length=windows.seq_length),
        output_format=output_format,
    )
    meta: dict[str, object] = {
        "task_type": "bert_squad",
        "train_data_size": n_rows,
        "max_seq_length": windows.seq_length,
        "max_query_length": windows.query_length,
        "doc_stride": windows.doc_stride,
        "version_2_with_negative": version_2_with_negative,
    }
    write_meta_data(meta_data_file, meta)
    return meta


def _numbered(blocks: Iterator[Columns]) -> Iterator[tuple[Columns, int]]:
    first = 0
    for block in blocks:
        yield block, first
        first += len(block)


def _numbered_features(block: tuple[Columns, int], *, seq_length: int) -> Features:
    columns, first = block
    features = question_features(columns, rows=np.arange(len(columns)), seq_length=seq_length)
    return {**features, "unique_ids": (np.arange(len(columns)) + first + FIRST_UNIQUE_ID).astype(np.int32)}
