"""The experiment that every machine can run."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.experiments.optimization import RESTRICTIONS, adamw_with_linear_decay
from trellis.nlp.models import BertEncoderConfig, EncoderConfig, PretrainerConfig
from trellis.nlp.tasks import LocalMaskedLMConfig
from trellis.trainer import TrainerConfig

# The published 0.02 suits a width of 768; so narrow a model would spend half of its minute growing.
_INITIALIZER_RANGE = 0.08


@register_config_factory("bert/local")
def bert_local() -> ExperimentConfig:
    """A tiny BERT on the documentation of Python's own standard library: about a minute on two cores."""
    encoder = BertEncoderConfig(
        vocab_size=2048,
        hidden_size=128,
        num_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        max_position_embeddings=32,
        initializer_range=_INITIALIZER_RANGE,
    )
    trainer = TrainerConfig(
        optimizer_config=adamw_with_linear_decay(3e-3),
        train_steps=1500,
        steps_per_loop=250,
        summary_interval=250,
        checkpoint_interval=500,
        validation_interval=500,
        best_checkpoint_export_subdir="best_ckpt",
        best_checkpoint_eval_metric="masked_lm_accuracy",
    )
    # Second moments that forget sooner suit a run this short.
    trainer.optimizer_config.optimizer.adamw.beta_2 = 0.98
    model = PretrainerConfig(encoder=EncoderConfig(bert=encoder), mlm_initializer_range=_INITIALIZER_RANGE)
    task = LocalMaskedLMConfig(model=model)
    return ExperimentConfig(task=task, trainer=trainer, restrictions=RESTRICTIONS)
