"""Experiments that train a decoder to tell what comes next."""

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.experiments.pretraining import RESTRICTIONS
from trellis.nlp.models import DecoderConfig
from trellis.nlp.tasks import LanguageModelConfig, LocalLanguageModelConfig
from trellis.optimizers import (
    AdamWeightDecayConfig,
    CosineLrConfig,
    LinearWarmupConfig,
    LrConfig,
    OptimizationConfig,
    OptimizerConfig,
    WarmupConfig,
)
from trellis.trainer import TrainerConfig


@register_config_factory("gpt/local")
def gpt_local() -> ExperimentConfig:
    """A tiny GPT on the bytes of the documentation of Python's own standard library: about a minute on two cores."""
    model = DecoderConfig(hidden_size=128, num_layers=4, num_attention_heads=4, max_position_embeddings=128)
    trainer = TrainerConfig(
        optimizer_config=adamw_with_cosine_decay(3e-3, n_warmup_steps=50),
        train_steps=600,
        steps_per_loop=100,
        summary_interval=100,
        checkpoint_interval=200,
        validation_interval=200,
        best_checkpoint_export_subdir="best_ckpt",
        best_checkpoint_eval_metric="loss",
        best_checkpoint_metric_comp="lower",
    )
    task = LocalLanguageModelConfig(model=model)
    return ExperimentConfig(task=task, trainer=trainer, restrictions=RESTRICTIONS)


@register_config_factory("gpt/pretraining")
def gpt_pretraining() -> ExperimentConfig:
    """GPT-2 small on text, in files of your own; sizes, rates and decay as nanoGPT has them."""
    trainer = TrainerConfig(
        optimizer_config=adamw_with_cosine_decay(6e-4, n_warmup_steps=2000),
        train_steps=600_000,
        n_microbatches=1,
    )
    return ExperimentConfig(task=LanguageModelConfig(), trainer=trainer, restrictions=RESTRICTIONS)


def adamw_with_cosine_decay(learning_rate: float, *, n_warmup_steps: int) -> OptimizationConfig:
    """AdamW after a warm-up, decaying to a tenth; all but biases and norms is pulled towards zero."""
    rule = AdamWeightDecayConfig(
        beta_1=0.9,
        beta_2=0.95,
        epsilon=1e-8,
        weight_decay_rate=0.1,
        exclude_from_weight_decay=["layer_norm", "bias"],
        gradient_clip_norm=1.0,
    )
    return OptimizationConfig(
        optimizer=OptimizerConfig(type="adamw", adamw=rule),
        learning_rate=LrConfig(type="cosine", cosine=CosineLrConfig(initial_learning_rate=learning_rate, alpha=0.1)),
        warmup=WarmupConfig(type="linear", linear=LinearWarmupConfig(warmup_steps=n_warmup_steps)),
    )
