"""Experiments that learn language from text without labels."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.data import BertPretrainDataConfig, BertPretrainTextDataConfig
from trellis.nlp.experiments.encoders import ALBERT, MOBILEBERT
from trellis.nlp.experiments.optimization import RESTRICTIONS, adamw_with_linear_decay
from trellis.nlp.models import EncoderConfig
from trellis.nlp.tasks import MaskedLMConfig
from trellis.runtime import RuntimeConfig
from trellis.trainer import TrainerConfig


@register_config_factory("bert/pretraining")
def bert_pretraining() -> ExperimentConfig:
    """BERT on masked words and next sentences, from the files of `trellis data pretraining`."""
    return _pretraining(EncoderConfig())


@register_config_factory("bert/text_wiki_pretraining")
def bert_text_wiki_pretraining() -> ExperimentConfig:
    """BERT on masked words and next sentences, from plain text, masked anew in every epoch."""
    text = BertPretrainTextDataConfig(tfds_name="wikipedia/20201201.en", tfds_split="train")
    return ExperimentConfig(
        task=MaskedLMConfig(train_data=text, validation_data=text.replace(is_training=False)),
        trainer=_trainer(),
        restrictions=RESTRICTIONS,
    )


@register_config_factory("albert/pretraining")
def albert_pretraining() -> ExperimentConfig:
    """ALBERT on masked words and next sentences."""
    return _pretraining(ALBERT)


@register_config_factory("mobilebert/pretraining")
def mobilebert_pretraining() -> ExperimentConfig:
    """MobileBERT on masked words and next sentences."""
    return _pretraining(MOBILEBERT)


def _pretraining(encoder: EncoderConfig) -> ExperimentConfig:
    task = MaskedLMConfig(
        train_data=BertPretrainDataConfig(), validation_data=BertPretrainDataConfig(is_training=False)
    )
    task.model.encoder = encoder
    return ExperimentConfig(
        task=task,
        trainer=_trainer(),
        runtime=RuntimeConfig(enable_xla=True),
        restrictions=RESTRICTIONS,
    )


def _trainer() -> TrainerConfig:
    return TrainerConfig(optimizer_config=adamw_with_linear_decay(1e-4), train_steps=1_000_000)
