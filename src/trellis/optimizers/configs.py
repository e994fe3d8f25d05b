"""Settings of learning rates, of optimizers, of averaging, and of all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from trellis.config import Config, OneOfConfig

_COMPILED = {"jit_compile": "JAX compiles every step"}


@dataclass
class ConstantLrConfig(Config):
    """One learning rate throughout."""

    name: str = "Constant"
    learning_rate: float = 0.1


@dataclass
class StepwiseLrConfig(Config):
    """`values[i]` up to and including step `boundaries[i]`, and the last value after that."""

    name: str = "PiecewiseConstantDecay"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    """One more than there are boundaries."""
    offset: int = 0


@dataclass
class ExponentialLrConfig(Config):
    """A decay by `decay_rate` every `decay_steps`."""

    name: str = "ExponentialDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    decay_rate: float | None = None
    staircase: bool | None = None
    """Whether to decay at once at the end of each period."""
    offset: int = 0


@dataclass
class PolynomialLrConfig(Config):
    """A decay to `end_learning_rate` over `decay_steps`, linear if `power` is 1."""

    name: str = "PolynomialDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    """Null is the whole run."""
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    """Whether to start again, with a longer period, instead of staying at the end."""
    offset: int = 0


@dataclass
class CosineLrConfig(Config):
    """Half a cosine from the initial rate to `alpha` times that."""

    name: str = "CosineDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    """Null is the whole run."""
    alpha: float = 0.0
    offset: int = 0


@dataclass
class CosineRestartsLrConfig(Config):
    """Cosines one after the other, each `t_mul` as long and `m_mul` as high as the one before.

    With a `t_mul` below 1 they end after `first_decay_steps / (1 - t_mul)` steps, and a longer run is refused.
    """

    name: str = "CosineDecayRestarts"
    initial_learning_rate: float | None = None
    first_decay_steps: int | None = None
    t_mul: float = 2.0
    m_mul: float = 1.0
    alpha: float = 0.0
    offset: int = 0


@dataclass
class DirectPowerLrConfig(Config):
    """The initial rate times a power of the step."""

    name: str = "DirectPowerDecay"
    initial_learning_rate: float | None = None
    power: float = -0.5


@dataclass
class PowerAndLinearDecayLrConfig(Config):
    """A power of the step which, over the last part of the run, is also brought to zero linearly."""

    name: str = "PowerAndLinearDecay"
    initial_learning_rate: float | None = None
    total_decay_steps: int | None = None
    """Null is the whole run."""
    power: float = -0.5
    linear_decay_fraction: float = 0.1
    offset: int = 0


@dataclass
class PowerDecayWithOffsetLrConfig(Config):
    """One rate up to `offset`, then a power of the steps since."""

    name: str = "PowerDecayWithOffset"
    initial_learning_rate: float | None = None
    power: float = -0.5
    offset: int = 0
    pre_offset_learning_rate: float = 1.0e6


@dataclass
class StepCosineLrConfig(Config):
    """Half a cosine from each value to the next, from each boundary to the next."""

    name: str = "StepCosineDecayWithOffset"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    """As many as there are boundaries."""
    offset: int = 0


@dataclass
class LrConfig(OneOfConfig):
    """The learning rate as a function of the step."""

    constant: ConstantLrConfig = ConstantLrConfig()
    stepwise: StepwiseLrConfig = StepwiseLrConfig()
    exponential: ExponentialLrConfig = ExponentialLrConfig()
    polynomial: PolynomialLrConfig = PolynomialLrConfig()
    cosine: CosineLrConfig = CosineLrConfig()
    cosine_restarts: CosineRestartsLrConfig = CosineRestartsLrConfig()
    power: DirectPowerLrConfig = DirectPowerLrConfig()
    power_linear: PowerAndLinearDecayLrConfig = PowerAndLinearDecayLrConfig()
    power_with_offset: PowerDecayWithOffsetLrConfig = PowerDecayWithOffsetLrConfig()
    step_cosine_with_offset: StepCosineLrConfig = StepCosineLrConfig()


@dataclass
class LinearWarmupConfig(Config):
    """A straight line from `warmup_learning_rate` to the learning rate of step `warmup_steps`."""

    name: str = "linear"
    warmup_learning_rate: float = 0.0
    warmup_steps: int | None = None


@dataclass
class PolynomialWarmupConfig(Config):
    """A power of the step, up to the learning rate of step `warmup_steps`."""

    name: str = "polynomial"
    power: float = 1.0
    warmup_steps: int | None = None


@dataclass
class WarmupConfig(OneOfConfig):
    """What takes the learning rate's place in the first steps."""

    linear: LinearWarmupConfig = LinearWarmupConfig()
    polynomial: PolynomialWarmupConfig = PolynomialWarmupConfig()


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
class AdamWeightDecayConfig(AdamConfig):
    """Adam with decoupled weight decay."""

    name: str = "AdamWeightDecay"
    weight_decay_rate: float = 0.0
    include_in_weight_decay: list[str] | None = None
    """Patterns of names that decay even if an exclusion matches."""
    exclude_from_weight_decay: list[str] | None = None
    """Patterns of names that do not decay."""
    gradient_clip_norm: float = 1.0
    """The greatest norm of all gradients together; 0 is none."""


@dataclass
class AdamWeightDecayExperimentalConfig(AdamConfig):
    """Adam with decoupled weight decay, as its successor is configured."""

    name: str = "AdamWeightDecayExperimental"
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
class ParameterGroupConfig(Config):
    """Parameters whose learning rate or weight decay differs from that of the others."""

    parameters: list[str] = field(default_factory=list)
    """Paths of parts, such as `encoder/embeddings` or `encoder/layer_*`, which stand for all that is in them; `**` is
    for any number of names. A parameter is of the first group that it fits."""
    name: str = ""
    """Its learning rate is reported under this name; empty is its first path."""
    learning_rate_factor: float = 1.0
    """Its learning rate is so many times that of the step."""
    layer_decay: float | None = None
    """Null is one rate for all; else each part that a path matches is a layer, in the order of the paths and of the
    numbers in names, and has so many times the rate of the layer after it, down from the last."""
    weight_decay: float | None = None
    """Null is that of the optimizer. What an optimizer excludes from its weight decay stays excluded."""

    @property
    def title(self) -> str:
        """What it is called in reports."""
        return self.name or next(iter(self.parameters), "")


@dataclass
class OptimizationConfig(Config):
    """An optimizer, its learning rate, an average of the parameters, and the parts that differ.

    Example:
        >>> config = OptimizationConfig({"optimizer": {"type": "adamw"}, "learning_rate": {"type": "cosine"}})
        >>> config.optimizer.get().name
        'AdamWeightDecay'
    """

    optimizer: OptimizerConfig = OptimizerConfig()
    ema: EMAConfig | None = None
    learning_rate: LrConfig = LrConfig()
    warmup: WarmupConfig = WarmupConfig()
    frozen: list[str] = field(default_factory=list)
    """Paths of parts whose parameters stay as they are, such as `encoder/embeddings` or `encoder/layer_[0-5]`."""
    groups: list[ParameterGroupConfig] = field(default_factory=list)
    """Parts with learning rates of their own; all else has that of the step."""


_NOT_DECAYED = ["LayerNorm", "layer_norm", "bias"]


@dataclass
class BertOptimizationConfig(OptimizationConfig):
    """How BERT was pretrained: AdamW for a million steps, the first 10,000 of them a warm-up, then down to zero."""

    optimizer: OptimizerConfig = OptimizerConfig(
        type="adamw", adamw=AdamWeightDecayConfig(weight_decay_rate=0.01, exclude_from_weight_decay=_NOT_DECAYED)
    )
    learning_rate: LrConfig = LrConfig(
        type="polynomial",
        polynomial=PolynomialLrConfig(initial_learning_rate=1e-4, decay_steps=1_000_000, end_learning_rate=0.0),
    )
    warmup: WarmupConfig = WarmupConfig(type="polynomial", polynomial=PolynomialWarmupConfig(warmup_steps=10_000))
