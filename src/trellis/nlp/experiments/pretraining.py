"""Experiments that learn language from text without labels."""

from collections.abc import Callable
from functools import partial, update_wrapper

from trellis.experiments import ExperimentConfig, register_config_factory
from trellis.nlp.data import BertPretrainTextDataConfig
from trellis.nlp.models import BertEncoderConfig, EncoderConfig, MobileBertEncoderConfig, PretrainerConfig
from trellis.nlp.tasks import LocalMaskedLMConfig, MaskedLMConfig
from trellis.optimizers import (
    AdamWeightDecayConfig,
    LrConfig,
    OptimizationConfig,
    OptimizerConfig,
    PolynomialLrConfig,
    WarmupConfig,
)
from trellis.runtime import RuntimeConfig
from trellis.trainer import TrainerConfig

# The student, which people call MobileBERT.
_MOBILEBERT = MobileBertEncoderConfig(
    intermediate_size=512,
    hidden_activation="relu",
    hidden_dropout_prob=0.0,
    intra_bottleneck_size=128,
    key_query_shared_bottleneck=True,
    num_feedforward_networks=4,
    normalization_type="no_norm",
    classifier_activation=False,
)
ENCODERS = {
    "BERT": EncoderConfig(),
    "ALBERT": EncoderConfig(type="albert"),
    "MobileBERT": EncoderConfig(type="mobilebert", mobilebert=_MOBILEBERT),
}
"""The encoders that there is an experiment of each kind for."""
BuildOnEncoder = Callable[[EncoderConfig], ExperimentConfig]
RESTRICTIONS = ("task.train_data.is_training != None", "task.validation_data.is_training != None")
"""What the config of every experiment on text has to state."""

# The published 0.02 suits a width of 768; with it so narrow a model would need half of its minute to grow its weights.
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


def for_each_encoder(kind: str) -> Callable[[BuildOnEncoder], BuildOnEncoder]:
    """Returns a decorator that makes a function the factory of `bert/{kind}`, `albert/{kind}` and `mobilebert/{kind}`.

    The function takes the encoder's config. In its docstring `{}` stands for the encoder's name.
    """

    def register(build: BuildOnEncoder) -> BuildOnEncoder:
        for name, encoder in ENCODERS.items():
            factory = update_wrapper(partial(build, encoder), build)
            factory.__doc__ = str(build.__doc__).format(name)
            register_config_factory(f"{name.lower()}/{kind}")(factory)
        return build

    return register


@for_each_encoder("pretraining")
def pretraining(encoder: EncoderConfig) -> ExperimentConfig:
    """{} on masked words and next sentences, from the files of `trellis data pretraining`."""
    task = MaskedLMConfig()
    task.model.encoder = encoder
    return ExperimentConfig(
        task=task,
        trainer=_trainer(),
        runtime=RuntimeConfig(enable_xla=True),
        restrictions=RESTRICTIONS,
    )


@register_config_factory("bert/text_wiki_pretraining")
def bert_text_wiki_pretraining() -> ExperimentConfig:
    """BERT on masked words and next sentences, from plain text, masked anew in every epoch."""
    text = BertPretrainTextDataConfig(tfds_name="wikipedia/20201201.en", tfds_split="train")
    task = MaskedLMConfig(train_data=text, validation_data=text.replace(is_training=False))
    return ExperimentConfig(task=task, trainer=_trainer(), restrictions=RESTRICTIONS)


def _trainer() -> TrainerConfig:
    return TrainerConfig(optimizer_config=adamw_with_linear_decay(1e-4), train_steps=1_000_000)


def adamw_with_linear_decay(learning_rate: float) -> OptimizationConfig:
    """AdamW after a warm-up, decaying to zero; the run sets the lengths of both."""
    rule = AdamWeightDecayConfig(weight_decay_rate=0.01, exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"])
    rate = PolynomialLrConfig(initial_learning_rate=learning_rate, end_learning_rate=0.0)
    return OptimizationConfig(
        optimizer=OptimizerConfig(type="adamw", adamw=rule),
        learning_rate=LrConfig(type="polynomial", polynomial=rate),
        warmup=WarmupConfig(type="polynomial"),
    )
