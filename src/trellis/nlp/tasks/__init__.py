"""What is learned from text."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.tasks.configs import LocalMaskedLMConfig as LocalMaskedLMConfig
    from trellis.nlp.tasks.configs import MaskedLMConfig as MaskedLMConfig
    from trellis.nlp.tasks.configs import QuestionAnsweringConfig as QuestionAnsweringConfig
    from trellis.nlp.tasks.configs import QuestionAnsweringModelConfig as QuestionAnsweringModelConfig
    from trellis.nlp.tasks.configs import SentencePredictionConfig as SentencePredictionConfig
    from trellis.nlp.tasks.configs import SentencePredictionModelConfig as SentencePredictionModelConfig
    from trellis.nlp.tasks.predictions import Prediction as Prediction
    from trellis.nlp.tasks.predictor import Predictor as Predictor
    from trellis.nlp.tasks.predictor import load_predictor as load_predictor

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "MaskedLMConfig": "configs",
        "LocalMaskedLMConfig": "configs",
        "SentencePredictionConfig": "configs",
        "SentencePredictionModelConfig": "configs",
        "QuestionAnsweringConfig": "configs",
        "QuestionAnsweringModelConfig": "configs",
        "load_predictor": "predictor",
        "Predictor": "predictor",
        "Prediction": "predictions",
    },
)
