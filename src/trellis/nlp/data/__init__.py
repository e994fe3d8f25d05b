"""Text to tokens to batches."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.data.configs import BertPretrainDataConfig as BertPretrainDataConfig
    from trellis.nlp.data.configs import BertPretrainTextDataConfig as BertPretrainTextDataConfig
    from trellis.nlp.data.configs import QADataConfig as QADataConfig
    from trellis.nlp.data.configs import SentencePredictionDataConfig as SentencePredictionDataConfig
    from trellis.nlp.data.configs import SentencePredictionTextDataConfig as SentencePredictionTextDataConfig
    from trellis.nlp.data.local_corpus import byte_sequences as byte_sequences
    from trellis.nlp.data.local_corpus import load_local_corpus as load_local_corpus
    from trellis.nlp.data.local_text import LocalText as LocalText
    from trellis.nlp.data.local_text import prepare_local_text as prepare_local_text
    from trellis.nlp.data.pretraining_data import PretrainingOptions as PretrainingOptions
    from trellis.nlp.data.pretraining_data import write_pretraining_data as write_pretraining_data
    from trellis.nlp.data.pretraining_stream import build_pretraining_stream as build_pretraining_stream
    from trellis.nlp.data.question_data import FIRST_UNIQUE_ID as FIRST_UNIQUE_ID
    from trellis.nlp.data.question_data import Windows as Windows
    from trellis.nlp.data.question_data import question_features as question_features
    from trellis.nlp.data.question_data import tokenize_questions as tokenize_questions
    from trellis.nlp.data.question_data import write_question_data as write_question_data
    from trellis.nlp.data.question_stream import build_question_stream as build_question_stream
    from trellis.nlp.data.question_stream import load_questions as load_questions
    from trellis.nlp.data.question_stream import question_tokenizer as question_tokenizer
    from trellis.nlp.data.question_stream import question_windows as question_windows
    from trellis.nlp.data.questions import Question as Question
    from trellis.nlp.data.questions import Skipped as Skipped
    from trellis.nlp.data.questions import read_questions as read_questions
    from trellis.nlp.data.sentence_data import write_sentence_data as write_sentence_data
    from trellis.nlp.data.sentence_stream import build_sentence_stream as build_sentence_stream
    from trellis.nlp.data.sentence_stream import count_classes as count_classes
    from trellis.nlp.data.sentence_tasks import Split as Split
    from trellis.nlp.data.sentence_tasks import get_sentence_task as get_sentence_task
    from trellis.nlp.data.stream_parts import data_place as data_place
    from trellis.nlp.data.tokenizer import SentencePieceTokenizer as SentencePieceTokenizer
    from trellis.nlp.data.tokenizer import Tokenizer as Tokenizer
    from trellis.nlp.data.tokenizer import WordPieceTokenizer as WordPieceTokenizer
    from trellis.nlp.data.tokenizer import build_tokenizer as build_tokenizer
    from trellis.nlp.data.vocabulary import train_vocabulary as train_vocabulary

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "BertPretrainDataConfig": "configs",
        "BertPretrainTextDataConfig": "configs",
        "SentencePredictionDataConfig": "configs",
        "SentencePredictionTextDataConfig": "configs",
        "QADataConfig": "configs",
        "Tokenizer": "tokenizer",
        "WordPieceTokenizer": "tokenizer",
        "SentencePieceTokenizer": "tokenizer",
        "build_tokenizer": "tokenizer",
        "train_vocabulary": "vocabulary",
        "data_place": "stream_parts",
        "build_pretraining_stream": "pretraining_stream",
        "build_sentence_stream": "sentence_stream",
        "count_classes": "sentence_stream",
        "build_question_stream": "question_stream",
        "load_questions": "question_stream",
        "question_tokenizer": "question_stream",
        "question_windows": "question_stream",
        "Question": "questions",
        "Skipped": "questions",
        "FIRST_UNIQUE_ID": "question_data",
        "Windows": "question_data",
        "question_features": "question_data",
        "tokenize_questions": "question_data",
        "read_questions": "questions",
        "write_question_data": "question_data",
        "PretrainingOptions": "pretraining_data",
        "write_pretraining_data": "pretraining_data",
        "Split": "sentence_tasks",
        "get_sentence_task": "sentence_tasks",
        "write_sentence_data": "sentence_data",
        "byte_sequences": "local_corpus",
        "load_local_corpus": "local_corpus",
        "LocalText": "local_text",
        "prepare_local_text": "local_text",
    },
)
