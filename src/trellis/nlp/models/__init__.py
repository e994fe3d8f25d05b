"""Models of language."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.models.albert import AlbertEncoder as AlbertEncoder
    from trellis.nlp.models.attention import MultiHeadAttention as MultiHeadAttention
    from trellis.nlp.models.attention import TalkingHeadsAttention as TalkingHeadsAttention
    from trellis.nlp.models.bert import BertEncoder as BertEncoder
    from trellis.nlp.models.bert_classifier import BertClassifier as BertClassifier
    from trellis.nlp.models.bert_pretrainer import BertPretrainer as BertPretrainer
    from trellis.nlp.models.bert_span_labeler import BertSpanLabeler as BertSpanLabeler
    from trellis.nlp.models.configs import AlbertEncoderConfig as AlbertEncoderConfig
    from trellis.nlp.models.configs import BertEncoderConfig as BertEncoderConfig
    from trellis.nlp.models.configs import ClsHeadConfig as ClsHeadConfig
    from trellis.nlp.models.configs import EncoderConfig as EncoderConfig
    from trellis.nlp.models.configs import MobileBertEncoderConfig as MobileBertEncoderConfig
    from trellis.nlp.models.configs import PretrainerConfig as PretrainerConfig
    from trellis.nlp.models.encoders import ATTENTION_CLASSES as ATTENTION_CLASSES
    from trellis.nlp.models.encoders import FEEDFORWARD_CLASSES as FEEDFORWARD_CLASSES
    from trellis.nlp.models.encoders import Encoder as Encoder
    from trellis.nlp.models.encoders import build_encoder as build_encoder
    from trellis.nlp.models.feedforward import FeedForward as FeedForward
    from trellis.nlp.models.feedforward import GatedFeedForward as GatedFeedForward
    from trellis.nlp.models.heads import ClassificationHead as ClassificationHead
    from trellis.nlp.models.heads import MaskedLM as MaskedLM
    from trellis.nlp.models.heads import SpanHead as SpanHead
    from trellis.nlp.models.mobilebert import MobileBertEncoder as MobileBertEncoder
    from trellis.nlp.models.rnnlm import RNNLM as RNNLM

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "EncoderConfig": "configs",
        "BertEncoderConfig": "configs",
        "AlbertEncoderConfig": "configs",
        "MobileBertEncoderConfig": "configs",
        "ClsHeadConfig": "configs",
        "PretrainerConfig": "configs",
        "build_encoder": "encoders",
        "Encoder": "encoders",
        "BertEncoder": "bert",
        "AlbertEncoder": "albert",
        "MobileBertEncoder": "mobilebert",
        "ATTENTION_CLASSES": "encoders",
        "MultiHeadAttention": "attention",
        "TalkingHeadsAttention": "attention",
        "FEEDFORWARD_CLASSES": "encoders",
        "FeedForward": "feedforward",
        "GatedFeedForward": "feedforward",
        "BertPretrainer": "bert_pretrainer",
        "BertClassifier": "bert_classifier",
        "BertSpanLabeler": "bert_span_labeler",
        "MaskedLM": "heads",
        "ClassificationHead": "heads",
        "SpanHead": "heads",
        "RNNLM": "rnnlm",
    },
)
