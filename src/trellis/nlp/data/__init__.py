"""Text to tokens."""

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

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "BertPretrainDataConfig": "configs",
        "BertPretrainTextDataConfig": "configs",
        "SentencePredictionDataConfig": "configs",
        "SentencePredictionTextDataConfig": "configs",
        "QADataConfig": "configs",
        "byte_sequences": "local_corpus",
        "load_local_corpus": "local_corpus",
    },
)
