"""Experiments that train a small encoder by the answers of a large one."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.experiments.pretraining import RESTRICTIONS, adamw_with_linear_decay
from trellis.nlp.tasks import DistillationConfig
from trellis.trainer import TrainerConfig


@register_config_factory("encoder/distillation")
def distillation() -> ExperimentConfig:
    """Any encoder on sentences or pairs with labels, and on what a trained teacher says of them."""
    trainer = TrainerConfig(optimizer_config=adamw_with_linear_decay(3e-5), train_epochs=3)
    return ExperimentConfig(task=DistillationConfig(), trainer=trainer, restrictions=RESTRICTIONS)
