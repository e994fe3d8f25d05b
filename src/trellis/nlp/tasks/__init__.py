"""What is learned from text."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.tasks.configs import (
        MaskedLMConfig as MaskedLMConfig,
        LocalMaskedLMConfig as LocalMaskedLMConfig,
        LanguageModelConfig as LanguageModelConfig,
        LocalLanguageModelConfig as LocalLanguageModelConfig,
        SentencePredictionConfig as SentencePredictionConfig,
        SentencePredictionModelConfig as SentencePredictionModelConfig,
        DistillationConfig as DistillationConfig,
        MultiLabelConfig as MultiLabelConfig,
        MultiLabelModelConfig as MultiLabelModelConfig,
        TaggingConfig as TaggingConfig,
        TaggingModelConfig as TaggingModelConfig,
        QuestionAnsweringConfig as QuestionAnsweringConfig,
        QuestionAnsweringModelConfig as QuestionAnsweringModelConfig,
        DualEncoderConfig as DualEncoderConfig,
        DualEncoderModelConfig as DualEncoderModelConfig,
    )
    from trellis.nlp.tasks.fine_tuned import read_hugging_face_experiment as read_hugging_face_experiment
else:
    __getattr__, __dir__, __all__ = door(__name__)
