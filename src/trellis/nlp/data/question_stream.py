"""Batches of questions with windows over their passages."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns, ExampleStream, find_files
from trellis.errors import ConfigError
from trellis.nlp.data.configs import QADataConfig
from trellis.nlp.data.question_data import Windows, question_features, read_question_columns
from trellis.nlp.data.questions import Question, Skipped, read_questions
from trellis.nlp.data.stream_parts import SECOND_NAMES, check_vocabulary, example_stream, input_paths, read_features
from trellis.nlp.data.tokenizer import Tokenizer, build_tokenizer
from trellis.runtime import print_line
from trellis.tasks import InputContext

_INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
_POSITIONS = ("start_positions", "end_positions")


def build_question_stream(params: QADataConfig, context: InputContext | None = None) -> ExampleStream:
    """Batches with `input_word_ids`, `input_mask`, `input_type_ids` and, to learn from, the positions of answers.

    In validation there are `unique_ids` instead: a window's number in `question_windows`, from 1000000000 on. No window
    is left out then, whatever `drop_remainder` says: every question is to be answered.
    """
    names = (*_INPUTS, *_POSITIONS) if params.is_training else ("unique_ids", *_INPUTS)
    if reads_questions(params):
        examples: Any = QuestionWindows(question_windows(params), seq_length=params.seq_length, names=names)
    else:
        shapes = {name: ((params.seq_length,) if name in _INPUTS else ()) for name in names}
        features = {name: (np.int32, shape) for name, shape in shapes.items()}
        examples = read_features(params, features=features, text_config="a name that ends in .json")
    keeps_all = params.replace(drop_remainder=params.drop_remainder and bool(params.is_training))
    return example_stream(examples, params=keeps_all, context=context)


class QuestionWindows:
    """Windows over passages as examples."""

    def __init__(self, columns: Columns, *, seq_length: int, names: tuple[str, ...]) -> None:
        self._columns = columns
        self._seq_length = seq_length
        self._names = names

    def __len__(self) -> int:
        return len(self._columns)

    def take(self, indices: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Gathers examples."""
        rows = np.asarray(indices, np.int64)
        made = question_features(self._columns, rows=rows, seq_length=self._seq_length)
        renamed = {SECOND_NAMES.get(name, name): values for name, values in made.items()}
        return {name: renamed[name] for name in self._names}


def reads_questions(params: QADataConfig) -> bool:
    """Whether a config names questions themselves (SQuAD's JSON), not records made of them."""
    return all(path.endswith(".json") for path in input_paths(params))


def question_tokenizer(params: QADataConfig) -> Tokenizer:
    """The tokenizer that a config names."""
    check_vocabulary(params, params.vocab_file, field="vocab_file")
    return build_tokenizer(params.vocab_file, tokenization=params.tokenization, lower_case=params.do_lower_case)


def question_windows(params: QADataConfig) -> Columns:
    """The windows over the passages of a config's questions, as `tokenize_questions` describes them."""
    if params.xlnet_format:
        raise ConfigError("xlnet_format is true, but there is no XLNet model to read it. Leave it false.")
    skipped = Skipped()
    columns = read_question_columns(
        input_paths(params),
        tokenizer=question_tokenizer(params),
        windows=Windows(params.seq_length, params.doc_stride, params.query_length),
        is_training=bool(params.is_training),
        version_2_with_negative=params.version_2_with_negative,
        cache_dir=params.input_preprocessed_data_path,
        skipped=skipped,
    )
    if skipped.ids:
        print_line(str(skipped))
    return columns


def load_questions(params: QADataConfig) -> list[Question]:
    """The questions of a config with the words of their passages and all answers, in the order of their windows."""
    if not reads_questions(params):
        raise ConfigError(
            f"input_path is {params.input_path!r}: answers are compared with the questions themselves. "
            "Name SQuAD's JSON file for validation."
        )
    return list(
        read_questions(
            find_files(input_paths(params)),
            is_training=bool(params.is_training),
            version_2_with_negative=params.version_2_with_negative,
        )
    )
