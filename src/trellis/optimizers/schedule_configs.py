"""Settings of learning rates and of warm-ups."""

from dataclasses import dataclass

from trellis.config import Config, OneOfConfig


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
    """Cosines one after the other, each `t_mul` as long and `m_mul` as high as the one before."""

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
