"""Experiments that train an encoder to give sentences vectors, alike for sentences that belong together."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.experiments.pretraining import RESTRICTIONS, adamw_with_linear_decay
from trellis.nlp.tasks import DualEncoderConfig
from trellis.trainer import TrainerConfig


@register_config_factory("encoder/embedding")
def embedding() -> ExperimentConfig:
    """Any encoder on pairs of texts that belong together, or on scored pairs, from columns of files."""
    task = DualEncoderConfig()
    # The scale with which sentence-transformers trains.
    task.model.logit_scale = 20.0
    trainer = TrainerConfig(optimizer_config=adamw_with_linear_decay(2e-5), train_epochs=1)
    return ExperimentConfig(task=task, trainer=trainer, restrictions=RESTRICTIONS)
