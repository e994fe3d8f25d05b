"""Experiments that train an encoder to give words tags."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.experiments.finetuning import finetuning
from trellis.nlp.tasks import TaggingConfig


@register_config_factory("bert/tagging")
def bert_tagging() -> ExperimentConfig:
    """BERT on sentences whose words have tags (names, parts of speech), as Model Garden has it."""
    return finetuning(TaggingConfig(), learning_rate=8e-5, n_epochs=2)


@register_config_factory("encoder/tagging")
def encoder_tagging() -> ExperimentConfig:
    """Any encoder, by `task.hub_module_url`, on sentences whose words have tags (names, parts of speech)."""
    return finetuning(TaggingConfig(), learning_rate=5e-5, n_epochs=3)
