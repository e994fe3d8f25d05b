"""Experiments on the encoder in a directory of Hugging Face's, whichever it is."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.data import BertPretrainTextDataConfig, QADataConfig, SentencePredictionTextDataConfig
from trellis.nlp.experiments.finetuning import finetuning
from trellis.nlp.models import EncoderConfig, PretrainerConfig
from trellis.nlp.tasks import (
    DistillationConfig,
    DualEncoderConfig,
    MaskedLMConfig,
    MultiLabelConfig,
    QuestionAnsweringConfig,
    SentencePredictionConfig,
    TaggingConfig,
)
from trellis.tasks import TaskConfig

NO_ENCODER = EncoderConfig(type=None)
"""That of a task whose encoder is chosen by the directory that it starts from, `task.hub_module_url`."""


@register_config_factory("encoder/sentence_prediction_text")
def sentence_prediction_text() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on sentences or pairs with labels."""
    data = SentencePredictionTextDataConfig()
    validation_data = data.replace(is_training=False, drop_remainder=False)
    task = SentencePredictionConfig(train_data=data, validation_data=validation_data)
    return on_any_encoder(task, learning_rate=3e-5, n_epochs=3)


@register_config_factory("encoder/multi_label")
def multi_label() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on sentences or pairs with any number of labels."""
    return on_any_encoder(MultiLabelConfig(), learning_rate=5e-5, n_epochs=3)


@register_config_factory("encoder/tagging")
def tagging() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on sentences whose words have tags."""
    return on_any_encoder(TaggingConfig(), learning_rate=5e-5, n_epochs=3)


@register_config_factory("encoder/embedding")
def embedding() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on texts that belong together, or scored pairs."""
    task = DualEncoderConfig()
    # The scale with which sentence-transformers trains.
    task.model.logit_scale = 20.0
    return on_any_encoder(task, learning_rate=2e-5, n_epochs=1)


@register_config_factory("encoder/distillation")
def distillation() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on labels, and on what a teacher says of them."""
    return on_any_encoder(DistillationConfig(), learning_rate=3e-5, n_epochs=3)


@register_config_factory("encoder/squad")
def squad() -> ExperimentConfig:
    """The encoder of any folder of weights (task.hub_module_url) on questions about passages (SQuAD)."""
    data = QADataConfig()
    task = QuestionAnsweringConfig(
        train_data=data, validation_data=data.replace(is_training=False, drop_remainder=False)
    )
    return on_any_encoder(task, learning_rate=3e-5, n_epochs=2)


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
    return on_any_encoder(task, learning_rate=5e-5, n_epochs=3)


def on_any_encoder(task: TaskConfig, *, learning_rate: float, n_epochs: float) -> ExperimentConfig:
    """An experiment that begins with the encoder, its sizes and its weights in a directory.

    Args:
        task: With a config of a model that has an `encoder`.
    """
    task.model.encoder = NO_ENCODER
    return finetuning(task, learning_rate=learning_rate, n_epochs=n_epochs)
