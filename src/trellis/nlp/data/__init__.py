"""Text to tokens to batches."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.data.configs import (
        BertPretrainDataConfig as BertPretrainDataConfig,
        BertPretrainTextDataConfig as BertPretrainTextDataConfig,
        TokenBlocksDataConfig as TokenBlocksDataConfig,
        SentencePredictionDataConfig as SentencePredictionDataConfig,
        SentencePredictionTextDataConfig as SentencePredictionTextDataConfig,
        MultiLabelDataConfig as MultiLabelDataConfig,
        TaggingDataConfig as TaggingDataConfig,
        QADataConfig as QADataConfig,
        DualEncoderDataConfig as DualEncoderDataConfig,
    )
    from trellis.nlp.data.tokenizer import (
        Tokenizer as Tokenizer,
        WordPieceTokenizer as WordPieceTokenizer,
        SentencePieceTokenizer as SentencePieceTokenizer,
        JsonTokenizer as JsonTokenizer,
        build_tokenizer as build_tokenizer,
    )
    from trellis.nlp.data.text_settings import (
        TEXT as TEXT,
        TextSettings as TextSettings,
        VOCABULARY_NAMES as VOCABULARY_NAMES,
        beside_records as beside_records,
    )
    from trellis.nlp.data.sequences import Specials as Specials, assemble_texts as assemble_texts
    from trellis.nlp.data.vocabulary import train_vocabulary as train_vocabulary
    from trellis.nlp.data.stream_parts import data_place as data_place
    from trellis.nlp.data.text_file import (
        TextFile as TextFile,
        is_unicode as is_unicode,
        open_text_file as open_text_file,
    )
    from trellis.nlp.data.token_cache import (
        OrderedMap as OrderedMap,
        in_blocks as in_blocks,
        local_map as local_map,
    )
    from trellis.nlp.data.ray_map import ray_map as ray_map
    from trellis.nlp.data.pretraining_stream import build_pretraining_stream as build_pretraining_stream
    from trellis.nlp.data.pretraining_data import (
        PretrainingOptions as PretrainingOptions,
        write_pretraining_data as write_pretraining_data,
    )
    from trellis.nlp.data.sentences import (
        Split as Split,
        get_sentence_task as get_sentence_task,
        write_sentence_data as write_sentence_data,
        build_sentence_stream as build_sentence_stream,
        count_classes as count_classes,
        cached_answers as cached_answers,
        AnswerRows as AnswerRows,
        count_label_names as count_label_names,
    )
    from trellis.nlp.data.multi_label import (
        build_multi_label_stream as build_multi_label_stream,
        count_labels as count_labels,
    )
    from trellis.nlp.data.tagged_sentences import (
        NO_TAG as NO_TAG,
        TaggedFields as TaggedFields,
        TaggedSentence as TaggedSentence,
        build_tagging_stream as build_tagging_stream,
        count_tags as count_tags,
        is_conll as is_conll,
        has_rows as has_rows,
        row_words as row_words,
        read_tagged_sentences as read_tagged_sentences,
        tag_windows as tag_windows,
        tagging_inputs as tagging_inputs,
    )
    from trellis.nlp.data.text_pairs import build_pair_stream as build_pair_stream
    from trellis.nlp.data.questions import (
        FIRST_UNIQUE_ID as FIRST_UNIQUE_ID,
        Question as Question,
        Skipped as Skipped,
        Windows as Windows,
        passage_gaps as passage_gaps,
        passage_words as passage_words,
        is_of_questions as is_of_questions,
        read_questions as read_questions,
        tokenize_questions as tokenize_questions,
        question_features as question_features,
        write_question_data as write_question_data,
        build_question_stream as build_question_stream,
        load_questions as load_questions,
        question_tokenizer as question_tokenizer,
        question_windows as question_windows,
    )
    from trellis.nlp.data.byte_tokenizers import (
        ByteTokenizer as ByteTokenizer,
        BytePieceTokenizer as BytePieceTokenizer,
        ReversibleTokenizer as ReversibleTokenizer,
        build_byte_tokenizer as build_byte_tokenizer,
    )
    from trellis.nlp.data.token_blocks import build_block_stream as build_block_stream
    from trellis.nlp.data.local_text import (
        LocalText as LocalText,
        byte_sequences as byte_sequences,
        load_local_corpus as load_local_corpus,
        prepare_local_text as prepare_local_text,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
