"""Experiments on the encoder in a directory of Hugging Face's, whichever it is."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.data import BertPretrainTextDataConfig, QADataConfig, SentencePredictionTextDataConfig
from trellis.nlp.experiments.pretraining import RESTRICTIONS, adamw_with_linear_decay
from trellis.nlp.models import EncoderConfig, PretrainerConfig
from trellis.nlp.tasks import MaskedLMConfig, QuestionAnsweringConfig, SentencePredictionConfig
from trellis.tasks import TaskConfig
from trellis.trainer import TrainerConfig

NO_ENCODER = EncoderConfig(type=None)
"""That of a task whose encoder is chosen by the directory that it starts from, `task.hub_module_url`."""


@register_config_factory("encoder/sentence_prediction_text")
def sentence_prediction_text() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on sentences or pairs with labels."""
    data = SentencePredictionTextDataConfig()
    validation_data = data.replace(is_training=False, drop_remainder=False)
    task = SentencePredictionConfig(train_data=data, validation_data=validation_data)
    return fine_tuning(task, learning_rate=3e-5, n_epochs=3)


@register_config_factory("encoder/squad")
def squad() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on questions about passages (SQuAD)."""
    data = QADataConfig()
    task = QuestionAnsweringConfig(
        train_data=data, validation_data=data.replace(is_training=False, drop_remainder=False)
    )
    return fine_tuning(task, learning_rate=3e-5, n_epochs=2)


@register_config_factory("encoder/masked_lm")
def masked_lm() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on masked words of more text."""
    data = BertPretrainTextDataConfig(global_batch_size=32, seq_length=128, max_predictions_per_seq=20)
    data.use_next_sentence_label = False
    task = MaskedLMConfig(
        model=PretrainerConfig(),
        train_data=data,
        validation_data=data.replace(is_training=False, drop_remainder=False),
    )
    return fine_tuning(task, learning_rate=5e-5, n_epochs=3)


def fine_tuning(task: TaskConfig, *, learning_rate: float, n_epochs: float) -> ExperimentConfig:
    """An experiment that begins with the encoder, its sizes and its weights in a directory.

    Args:
        task: With a config of a model that has an `encoder`.
    """
    task.model.encoder = NO_ENCODER
    trainer = TrainerConfig(optimizer_config=adamw_with_linear_decay(learning_rate), train_epochs=n_epochs)
    return ExperimentConfig(task=task, trainer=trainer, restrictions=RESTRICTIONS)
