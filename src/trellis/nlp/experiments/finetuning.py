"""Experiments that train an encoder to classify sentences, to tag words, or to find answers."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.data import SentencePredictionDataConfig, SentencePredictionTextDataConfig
from trellis.nlp.experiments.pretraining import RESTRICTIONS, adamw_with_linear_decay, for_each_encoder
from trellis.nlp.models import EncoderConfig
from trellis.nlp.tasks import QuestionAnsweringConfig, SentencePredictionConfig, TaggingConfig
from trellis.tasks import TaskConfig
from trellis.trainer import TrainerConfig


@for_each_encoder("sentence_prediction")
def sentence_prediction(encoder: EncoderConfig) -> ExperimentConfig:
    """{} on sentences or pairs with labels (GLUE), from the files of `trellis data finetuning`."""
    return _sentence_prediction(encoder, SentencePredictionDataConfig)


@for_each_encoder("sentence_prediction_text")
def sentence_prediction_text(encoder: EncoderConfig) -> ExperimentConfig:
    """{} on sentences or pairs with labels (GLUE), from their raw text."""
    return _sentence_prediction(encoder, SentencePredictionTextDataConfig)


@register_config_factory("bert/tagging")
def tagging() -> ExperimentConfig:
    """BERT on sentences whose words have tags (names, parts of speech), as Model Garden has it."""
    return finetuning(TaggingConfig(), learning_rate=8e-5, n_epochs=2)


@for_each_encoder("squad")
def squad(encoder: EncoderConfig) -> ExperimentConfig:
    """{} on questions about passages (SQuAD)."""
    # The published validation data is shuffled and endless, which cannot be intended; the task's own is neither.
    task = QuestionAnsweringConfig()
    task.model.encoder = encoder
    return finetuning(task, learning_rate=8e-5, n_epochs=2)


def _sentence_prediction(
    encoder: EncoderConfig, data: type[SentencePredictionDataConfig | SentencePredictionTextDataConfig]
) -> ExperimentConfig:
    task = SentencePredictionConfig(train_data=data(), validation_data=data(is_training=False, drop_remainder=False))
    task.model.encoder = encoder
    return finetuning(task, learning_rate=3e-5, n_epochs=3)


def finetuning(task: TaskConfig, *, learning_rate: float, n_epochs: float) -> ExperimentConfig:
    """An experiment that fine-tunes on a task: AdamW, a rate that rises and falls, some epochs."""
    trainer = TrainerConfig(optimizer_config=adamw_with_linear_decay(learning_rate), train_epochs=n_epochs)
    return ExperimentConfig(task=task, trainer=trainer, restrictions=RESTRICTIONS)
