"""Models of language."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.models.configs import (
        EncoderConfig as EncoderConfig,
        BertEncoderConfig as BertEncoderConfig,
        AlbertEncoderConfig as AlbertEncoderConfig,
        MobileBertEncoderConfig as MobileBertEncoderConfig,
        ClsHeadConfig as ClsHeadConfig,
        PretrainerConfig as PretrainerConfig,
    )
    from trellis.nlp.models.encoders import (
        build_encoder as build_encoder,
        Encoder as Encoder,
        ATTENTION_CLASSES as ATTENTION_CLASSES,
        FEEDFORWARD_CLASSES as FEEDFORWARD_CLASSES,
    )
    from trellis.nlp.models.bert import BertEncoder as BertEncoder
    from trellis.nlp.models.albert import AlbertEncoder as AlbertEncoder
    from trellis.nlp.models.mobilebert import MobileBertEncoder as MobileBertEncoder
    from trellis.nlp.models.attention import (
        MultiHeadAttention as MultiHeadAttention,
        TalkingHeadsAttention as TalkingHeadsAttention,
    )
    from trellis.nlp.models.feedforward import FeedForward as FeedForward, GatedFeedForward as GatedFeedForward
    from trellis.nlp.models.bert_pretrainer import BertPretrainer as BertPretrainer
    from trellis.nlp.models.bert_classifier import BertClassifier as BertClassifier
    from trellis.nlp.models.bert_span_labeler import BertSpanLabeler as BertSpanLabeler
    from trellis.nlp.models.heads import (
        MaskedLM as MaskedLM,
        ClassificationHead as ClassificationHead,
        SpanHead as SpanHead,
    )
    from trellis.nlp.models.rnnlm import RNNLM as RNNLM
else:
    __getattr__, __dir__, __all__ = door(__name__)
