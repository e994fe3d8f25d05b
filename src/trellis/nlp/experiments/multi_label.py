"""Experiments that train an encoder to give sentences any number of labels."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.experiments.finetuning import finetuning
from trellis.nlp.tasks import MultiLabelConfig


@register_config_factory("encoder/multi_label")
def encoder_multi_label() -> ExperimentConfig:
    """Any encoder, by `task.hub_module_url`, on sentences or pairs with any number of labels each."""
    return finetuning(MultiLabelConfig(), learning_rate=5e-5, n_epochs=3)
