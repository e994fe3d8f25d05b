"""Models of language."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.models.configs import (
        EncoderConfig as EncoderConfig,
        TransformerConfig as TransformerConfig,
        BertEncoderConfig as BertEncoderConfig,
        AlbertEncoderConfig as AlbertEncoderConfig,
        DistilBertEncoderConfig as DistilBertEncoderConfig,
        MobileBertEncoderConfig as MobileBertEncoderConfig,
        ModernBertEncoderConfig as ModernBertEncoderConfig,
        RobertaEncoderConfig as RobertaEncoderConfig,
        XlmRobertaEncoderConfig as XlmRobertaEncoderConfig,
        DecoderConfig as DecoderConfig,
        ClsHeadConfig as ClsHeadConfig,
        PretrainerConfig as PretrainerConfig,
    )
    from trellis.nlp.models.layers import Embed as Embed
    from trellis.nlp.models.encoders import (
        build_encoder as build_encoder,
        BertEncoder as BertEncoder,
        AlbertEncoder as AlbertEncoder,
        DistilBertEncoder as DistilBertEncoder,
        RobertaEncoder as RobertaEncoder,
    )
    from trellis.nlp.models.mobilebert import MobileBertEncoder as MobileBertEncoder
    from trellis.nlp.models.modernbert import ModernBertEncoder as ModernBertEncoder
    from trellis.nlp.models.transformer import (
        LayeredEncoder as LayeredEncoder,
        MultiHeadAttention as MultiHeadAttention,
        TalkingHeadsAttention as TalkingHeadsAttention,
        FeedForward as FeedForward,
        GatedFeedForward as GatedFeedForward,
    )
    from trellis.nlp.models.decoder import Decoder as Decoder
    from trellis.nlp.models.heads import (
        BertPretrainer as BertPretrainer,
        BertClassifier as BertClassifier,
        BertSpanLabeler as BertSpanLabeler,
        BertTagger as BertTagger,
        MaskedLM as MaskedLM,
        ClassificationHead as ClassificationHead,
        TokenHead as TokenHead,
    )
    from trellis.nlp.models.dual_encoder import DualEncoder as DualEncoder, TEXT_SIDES as TEXT_SIDES
    from trellis.nlp.models.rnnlm import RNNLM as RNNLM
else:
    __getattr__, __dir__, __all__ = door(__name__)
