"""Experiments that train an encoder to classify sentences, or to find answers."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.data import QADataConfig, SentencePredictionDataConfig, SentencePredictionTextDataConfig
from trellis.nlp.experiments.pretraining import ALBERT, MOBILEBERT, RESTRICTIONS, adamw_with_linear_decay
from trellis.nlp.models import EncoderConfig
from trellis.nlp.tasks import QuestionAnsweringConfig, SentencePredictionConfig
from trellis.tasks import TaskConfig
from trellis.trainer import TrainerConfig


@register_config_factory("bert/sentence_prediction")
def bert_sentence_prediction() -> ExperimentConfig:
    """BERT on sentences or pairs with labels (GLUE), from the files of `trellis data finetuning`."""
    return _sentence_prediction(EncoderConfig(), SentencePredictionDataConfig)


@register_config_factory("bert/sentence_prediction_text")
def bert_sentence_prediction_text() -> ExperimentConfig:
    """BERT on sentences or pairs with labels (GLUE), from their raw text."""
    return _sentence_prediction(EncoderConfig(), SentencePredictionTextDataConfig)


@register_config_factory("bert/squad")
def bert_squad() -> ExperimentConfig:
    """BERT on questions about passages (SQuAD)."""
    return _squad(EncoderConfig())


@register_config_factory("albert/sentence_prediction")
def albert_sentence_prediction() -> ExperimentConfig:
    """ALBERT on sentences or pairs with labels (GLUE), from the files of `trellis data finetuning`."""
    return _sentence_prediction(ALBERT, SentencePredictionDataConfig)


@register_config_factory("albert/sentence_prediction_text")
def albert_sentence_prediction_text() -> ExperimentConfig:
    """ALBERT on sentences or pairs with labels (GLUE), from their raw text."""
    return _sentence_prediction(ALBERT, SentencePredictionTextDataConfig)


@register_config_factory("albert/squad")
def albert_squad() -> ExperimentConfig:
    """ALBERT on questions about passages (SQuAD)."""
    return _squad(ALBERT)


@register_config_factory("mobilebert/sentence_prediction")
def mobilebert_sentence_prediction() -> ExperimentConfig:
    """MobileBERT on sentences or pairs with labels (GLUE), from the files of `trellis data finetuning`."""
    return _sentence_prediction(MOBILEBERT, SentencePredictionDataConfig)


@register_config_factory("mobilebert/sentence_prediction_text")
def mobilebert_sentence_prediction_text() -> ExperimentConfig:
    """MobileBERT on sentences or pairs with labels (GLUE), from their raw text."""
    return _sentence_prediction(MOBILEBERT, SentencePredictionTextDataConfig)


@register_config_factory("mobilebert/squad")
def mobilebert_squad() -> ExperimentConfig:
    """MobileBERT on questions about passages (SQuAD)."""
    return _squad(MOBILEBERT)


def _sentence_prediction(
    encoder: EncoderConfig, data: type[SentencePredictionDataConfig | SentencePredictionTextDataConfig]
) -> ExperimentConfig:
    task = SentencePredictionConfig(train_data=data(), validation_data=data(is_training=False, drop_remainder=False))
    task.model.encoder = encoder
    return _finetuning(task, learning_rate=3e-5, n_epochs=3)


def _squad(encoder: EncoderConfig) -> ExperimentConfig:
    # The published validation data is shuffled and endless, which cannot be intended.
    task = QuestionAnsweringConfig(
        train_data=QADataConfig(), validation_data=QADataConfig(is_training=False, drop_remainder=False)
    )
    task.model.encoder = encoder
    return _finetuning(task, learning_rate=8e-5, n_epochs=2)


def _finetuning(task: TaskConfig, *, learning_rate: float, n_epochs: float) -> ExperimentConfig:
    trainer = TrainerConfig(optimizer_config=adamw_with_linear_decay(learning_rate), train_epochs=n_epochs)
    return ExperimentConfig(task=task, trainer=trainer, restrictions=RESTRICTIONS)
