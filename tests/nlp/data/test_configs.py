"""The fields and defaults that existing files rely on, and ours beside them."""

from typing import Any

import pytest

from trellis.data import DataConfig
from trellis.errors import ConfigError
from trellis.nlp.data import (
    BertPretrainDataConfig,
    BertPretrainTextDataConfig,
    QADataConfig,
    SentencePredictionDataConfig,
    SentencePredictionTextDataConfig,
)

RECORDS = {"is_training": True, "file_type": "tfrecord"}
PUBLISHED: dict[type[DataConfig], dict[str, Any]] = {
    SentencePredictionDataConfig: {
        "global_batch_size": 32, "seq_length": 128, "label_type": "int", "include_example_id": False,
        "label_field": "label_ids", "label_name": None,
    },
    SentencePredictionTextDataConfig: {
        "label_type": "int", "text_fields": None, "label_field": "label", "global_batch_size": 32, "seq_length": 128,
        "tokenization": "WordPiece", "vocab_file": "", "lower_case": True, "preprocessing_hub_module_url": "",
        "include_example_id": False,
    },
    QADataConfig: {
        "global_batch_size": 48, "seq_length": 384, "version_2_with_negative": False,
        "input_preprocessed_data_path": "", "doc_stride": 128, "query_length": 64, "vocab_file": "",
        "tokenization": "WordPiece", "do_lower_case": True, "xlnet_format": False,
    },
    BertPretrainDataConfig: {
        "global_batch_size": 512, "seq_length": 512, "max_predictions_per_seq": 76, "use_next_sentence_label": True,
        "use_position_id": False, "use_v2_feature_names": False,
    },
    BertPretrainTextDataConfig: {
        "doc_batch_size": 8, "global_batch_size": 512, "seq_length": 512, "max_predictions_per_seq": 76,
        "use_next_sentence_label": True, "text_field_names": ["text"], "vocab_file_path": "", "masking_rate": 0.15,
        "use_whole_word_masking": False,
    },
}  # fmt: skip
OURS: dict[type[DataConfig], dict[str, Any]] = {
    SentencePredictionTextDataConfig: {"label_values": None, "column_names": None, "cache_dir": ""},
    BertPretrainTextDataConfig: {
        "tokenization": "WordPiece", "lower_case": True, "max_ngram_size": None, "pack_sequences": False,
        "cache_dir": "", "documents": "blank_lines",
    },
}  # fmt: skip


@pytest.mark.parametrize("config", PUBLISHED, ids=lambda config: config.__name__)
def test_fields_and_defaults_are_the_published_ones(config: type[DataConfig]) -> None:
    expected = {**DataConfig().as_dict(), **RECORDS, **PUBLISHED[config], **OURS.get(config, {})}
    assert config().as_dict() == expected


def test_values_that_mean_nothing_are_refused_when_they_are_set() -> None:
    with pytest.raises(ConfigError, match="riegeli"):
        BertPretrainDataConfig(file_type="riegeli")
    with pytest.raises(ConfigError, match="BPE"):
        QADataConfig(tokenization="BPE")
    with pytest.raises(ConfigError, match="str"):
        SentencePredictionDataConfig(label_type="str")
