"""The experiment that every machine can run."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.experiments.optimization import RESTRICTIONS, adamw_with_linear_decay
from trellis.nlp.models import BertEncoderConfig, EncoderConfig, PretrainerConfig
from trellis.nlp.tasks import LocalMaskedLMConfig
from trellis.trainer import TrainerConfig


@register_config_factory("bert/local")
def bert_local() -> ExperimentConfig:
    """A tiny BERT on the documentation of Python's own standard library: about a minute on two cores."""
    encoder = BertEncoderConfig(
        vocab_size=4096,
        hidden_size=128,
        num_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        max_position_embeddings=64,
    )
    trainer = TrainerConfig(
        optimizer_config=adamw_with_linear_decay(2e-3),
        train_steps=1200,
        steps_per_loop=200,
        summary_interval=200,
        checkpoint_interval=400,
        validation_interval=400,
        best_checkpoint_export_subdir="best_ckpt",
        best_checkpoint_eval_metric="masked_lm_accuracy",
    )
    task = LocalMaskedLMConfig(model=PretrainerConfig(encoder=EncoderConfig(bert=encoder)))
    return ExperimentConfig(task=task, trainer=trainer, restrictions=RESTRICTIONS)
