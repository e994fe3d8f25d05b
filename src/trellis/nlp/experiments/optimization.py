"""How encoders are trained, in all experiments on them."""

from trellis.optimizers import (
    AdamWeightDecayConfig,
    LrConfig,
    OptimizationConfig,
    OptimizerConfig,
    PolynomialLrConfig,
    WarmupConfig,
)

RESTRICTIONS = ("task.train_data.is_training != None", "task.validation_data.is_training != None")
"""What every experiment on text has to say of its data."""


def adamw_with_linear_decay(learning_rate: float) -> OptimizationConfig:
    """AdamW after a warm-up, decaying to zero; the lengths of both are left to the run."""
    rule = AdamWeightDecayConfig(weight_decay_rate=0.01, exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"])
    rate = PolynomialLrConfig(initial_learning_rate=learning_rate, end_learning_rate=0.0)
    return OptimizationConfig(
        optimizer=OptimizerConfig(type="adamw", adamw=rule),
        learning_rate=LrConfig(type="polynomial", polynomial=rate),
        warmup=WarmupConfig(type="polynomial"),
    )
