"""Settings of optimizers, of averaging, and of both with a learning rate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trellis.config import Config, OneOfConfig
from trellis.optimizers.schedule_configs import LrConfig, WarmupConfig

_COMPILED = {"jit_compile": "JAX compiles every step"}


@dataclass
class GradientClipConfig(Config):
    """What is done to gradients before the update; at most one of the norms is set, and null or 0 is no clipping."""

    clipnorm: float | None = None
    """The greatest norm of each parameter's gradient."""
    clipvalue: float | None = None
    """The greatest absolute value of each element."""
    global_clipnorm: float | None = None
    """The greatest norm of all gradients together."""


@dataclass
class SGDConfig(GradientClipConfig):
    """Gradient descent with momentum."""

    name: str = "SGD"
    decay: float = 0.0
    nesterov: bool = False
    momentum: float = 0.0


@dataclass
class SGDExperimentalConfig(GradientClipConfig):
    """Gradient descent with momentum, without `decay`."""

    name: str = "SGD"
    nesterov: bool = False
    momentum: float = 0.0
    jit_compile: bool = False

    no_effect: ClassVar[Mapping[str, str]] = _COMPILED


@dataclass
class AdamConfig(GradientClipConfig):
    """Adam."""

    name: str = "Adam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    """As in Keras it is added before the bias correction, in torch and optax after it. Theirs times `√(1 - beta_2)`
    makes the first step equal to theirs, and the next ones nearly so (3e-10 for torch's 1e-8)."""
    amsgrad: bool = False


@dataclass
class AdamExperimentalConfig(AdamConfig):
    """Adam, as its successor is configured."""

    jit_compile: bool = False

    no_effect: ClassVar[Mapping[str, str]] = _COMPILED


@dataclass
class AdamWeightDecayConfig(GradientClipConfig):
    """Adam with decoupled weight decay."""

    name: str = "AdamWeightDecay"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    """Added before the bias correction, as in Keras; see `AdamConfig`."""
    amsgrad: bool = False
    weight_decay_rate: float = 0.0
    include_in_weight_decay: list[str] | None = None
    """Patterns of names that decay even if an exclusion matches."""
    exclude_from_weight_decay: list[str] | None = None
    """Patterns of names that do not decay."""
    gradient_clip_norm: float = 1.0
    """The greatest norm of all gradients together; 0 is none."""


@dataclass
class AdamWeightDecayExperimentalConfig(GradientClipConfig):
    """Adam with decoupled weight decay, as its successor is configured."""

    name: str = "AdamWeightDecayExperimental"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    """Added before the bias correction, as in Keras; see `AdamConfig`."""
    amsgrad: bool = False
    weight_decay: float = 0.0
    global_clipnorm: float | None = 1.0
    jit_compile: bool = False

    no_effect: ClassVar[Mapping[str, str]] = _COMPILED


@dataclass
class LAMBConfig(GradientClipConfig):
    """Adam with layer-wise adaptation, for large batches."""

    name: str = "LAMB"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.0
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None
    """Null or empty is the same as `exclude_from_weight_decay`."""


@dataclass
class RMSPropConfig(GradientClipConfig):
    """RMSprop."""

    name: str = "RMSprop"
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False


@dataclass
class LARSConfig(GradientClipConfig):
    """Momentum with layer-wise adaptation, for large batches."""

    name: str = "LARS"
    momentum: float = 0.9
    eeta: float = 0.001
    """The trust coefficient."""
    weight_decay_rate: float = 0.0
    nesterov: bool = False
    classic_momentum: bool = True
    """Whether the learning rate is part of the momentum."""
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None
    """Null or empty is the same as `exclude_from_weight_decay`."""


@dataclass
class AdagradConfig(GradientClipConfig):
    """Adagrad."""

    name: str = "Adagrad"
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7


@dataclass
class SLIDEConfig(GradientClipConfig):
    """SLIDE, which has no public definition; its settings are read, but it cannot be built."""

    name: str = "SLIDE"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.0
    weight_decay_type: str = "inner"
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None
    include_in_sparse_layer_adaptation: list[str] | None = None
    sparse_layer_learning_rate: float = 0.1
    do_gradient_rescaling: bool = True
    norm_type: str = "layer"
    ratio_clip_norm: float = 1e5


@dataclass
class AdafactorConfig(GradientClipConfig):
    """Adafactor, with the second moments of matrices factored."""

    name: str = "Adafactor"
    factored: bool = True
    multiply_by_parameter_scale: bool = True
    beta1: float | None = None
    decay_rate: float = 0.8
    step_offset: int = 0
    clipping_threshold: float = 1.0
    min_dim_size_to_factor: int = 128
    epsilon1: float = 1e-30
    epsilon2: float = 1e-3
    weight_decay: float | None = None
    include_in_weight_decay: list[str] | None = None


@dataclass
class AdafactorKerasConfig(GradientClipConfig):
    """Adafactor, as Keras configures it."""

    name: str = "Adafactor"
    learning_rate: float = 0.001
    beta_2_decay: float = -0.8
    epsilon_1: float = 1e-30
    epsilon_2: float = 1e-3
    clip_threshold: float = 1.0
    relative_step: bool = True

    no_effect: ClassVar[Mapping[str, str]] = {"learning_rate": "it comes from optimizer_config.learning_rate"}


@dataclass
class OptimizerConfig(OneOfConfig):
    """The rule by which parameters change."""

    sgd: SGDConfig = SGDConfig()
    sgd_experimental: SGDExperimentalConfig = SGDExperimentalConfig()
    adam: AdamConfig = AdamConfig()
    adam_experimental: AdamExperimentalConfig = AdamExperimentalConfig()
    adamw: AdamWeightDecayConfig = AdamWeightDecayConfig()
    adamw_experimental: AdamWeightDecayExperimentalConfig = AdamWeightDecayExperimentalConfig()
    lamb: LAMBConfig = LAMBConfig()
    rmsprop: RMSPropConfig = RMSPropConfig()
    lars: LARSConfig = LARSConfig()
    adagrad: AdagradConfig = AdagradConfig()
    slide: SLIDEConfig = SLIDEConfig()
    adafactor: AdafactorConfig = AdafactorConfig()
    adafactor_keras: AdafactorKerasConfig = AdafactorKerasConfig()


@dataclass
class EMAConfig(GradientClipConfig):
    """An exponential moving average of the parameters, which evaluation uses."""

    name: str = "ExponentialMovingAverage"
    trainable_weights_only: bool = True
    average_decay: float = 0.99
    start_step: int = 0
    """The average equals the parameters before this step."""
    dynamic_decay: bool = True
    """Whether the decay starts low and grows to `average_decay`."""


@dataclass
class OptimizationConfig(Config):
    """An optimizer, its learning rate, and an average of the parameters."""

    optimizer: OptimizerConfig = OptimizerConfig()
    ema: EMAConfig | None = None
    learning_rate: LrConfig = LrConfig()
    warmup: WarmupConfig = WarmupConfig()
