"""From a loss to an update: gradients, and configs to optax."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.optimizers.averaging import AverageState as AverageState
    from trellis.optimizers.averaging import average_parameters as average_parameters
    from trellis.optimizers.averaging import average_weights as average_weights
    from trellis.optimizers.configs import AdafactorConfig as AdafactorConfig
    from trellis.optimizers.configs import AdafactorKerasConfig as AdafactorKerasConfig
    from trellis.optimizers.configs import AdagradConfig as AdagradConfig
    from trellis.optimizers.configs import AdamConfig as AdamConfig
    from trellis.optimizers.configs import AdamExperimentalConfig as AdamExperimentalConfig
    from trellis.optimizers.configs import AdamWeightDecayConfig as AdamWeightDecayConfig
    from trellis.optimizers.configs import AdamWeightDecayExperimentalConfig as AdamWeightDecayExperimentalConfig
    from trellis.optimizers.configs import EMAConfig as EMAConfig
    from trellis.optimizers.configs import GradientClipConfig as GradientClipConfig
    from trellis.optimizers.configs import LAMBConfig as LAMBConfig
    from trellis.optimizers.configs import LARSConfig as LARSConfig
    from trellis.optimizers.configs import OptimizationConfig as OptimizationConfig
    from trellis.optimizers.configs import OptimizerConfig as OptimizerConfig
    from trellis.optimizers.configs import RMSPropConfig as RMSPropConfig
    from trellis.optimizers.configs import SGDConfig as SGDConfig
    from trellis.optimizers.configs import SGDExperimentalConfig as SGDExperimentalConfig
    from trellis.optimizers.configs import SLIDEConfig as SLIDEConfig
    from trellis.optimizers.gradients import compute_gradients as compute_gradients
    from trellis.optimizers.gradients import update_state as update_state
    from trellis.optimizers.loss_scale import LossScaleState as LossScaleState
    from trellis.optimizers.loss_scale import current_loss_scale as current_loss_scale
    from trellis.optimizers.loss_scale import scale_loss as scale_loss
    from trellis.optimizers.optimizer import UpdateRule as UpdateRule
    from trellis.optimizers.optimizer import build_optimizer as build_optimizer
    from trellis.optimizers.optimizer import register_optimizer_cls as register_optimizer_cls
    from trellis.optimizers.parameter_names import named_mask as named_mask
    from trellis.optimizers.parameter_names import parameter_name as parameter_name
    from trellis.optimizers.requirements import WHOLE_RUN as WHOLE_RUN
    from trellis.optimizers.requirements import optimization_problems as optimization_problems
    from trellis.optimizers.schedule import build_schedule as build_schedule
    from trellis.optimizers.schedule_configs import ConstantLrConfig as ConstantLrConfig
    from trellis.optimizers.schedule_configs import CosineLrConfig as CosineLrConfig
    from trellis.optimizers.schedule_configs import CosineRestartsLrConfig as CosineRestartsLrConfig
    from trellis.optimizers.schedule_configs import DirectPowerLrConfig as DirectPowerLrConfig
    from trellis.optimizers.schedule_configs import ExponentialLrConfig as ExponentialLrConfig
    from trellis.optimizers.schedule_configs import LinearWarmupConfig as LinearWarmupConfig
    from trellis.optimizers.schedule_configs import LrConfig as LrConfig
    from trellis.optimizers.schedule_configs import PolynomialLrConfig as PolynomialLrConfig
    from trellis.optimizers.schedule_configs import PolynomialWarmupConfig as PolynomialWarmupConfig
    from trellis.optimizers.schedule_configs import PowerAndLinearDecayLrConfig as PowerAndLinearDecayLrConfig
    from trellis.optimizers.schedule_configs import PowerDecayWithOffsetLrConfig as PowerDecayWithOffsetLrConfig
    from trellis.optimizers.schedule_configs import StepCosineLrConfig as StepCosineLrConfig
    from trellis.optimizers.schedule_configs import StepwiseLrConfig as StepwiseLrConfig
    from trellis.optimizers.schedule_configs import WarmupConfig as WarmupConfig

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "OptimizationConfig": "configs",
        "OptimizerConfig": "configs",
        "EMAConfig": "configs",
        "GradientClipConfig": "configs",
        "SGDConfig": "configs",
        "SGDExperimentalConfig": "configs",
        "AdamConfig": "configs",
        "AdamExperimentalConfig": "configs",
        "AdamWeightDecayConfig": "configs",
        "AdamWeightDecayExperimentalConfig": "configs",
        "LAMBConfig": "configs",
        "RMSPropConfig": "configs",
        "LARSConfig": "configs",
        "AdagradConfig": "configs",
        "SLIDEConfig": "configs",
        "AdafactorConfig": "configs",
        "AdafactorKerasConfig": "configs",
        "LrConfig": "schedule_configs",
        "ConstantLrConfig": "schedule_configs",
        "StepwiseLrConfig": "schedule_configs",
        "ExponentialLrConfig": "schedule_configs",
        "PolynomialLrConfig": "schedule_configs",
        "CosineLrConfig": "schedule_configs",
        "CosineRestartsLrConfig": "schedule_configs",
        "DirectPowerLrConfig": "schedule_configs",
        "PowerAndLinearDecayLrConfig": "schedule_configs",
        "PowerDecayWithOffsetLrConfig": "schedule_configs",
        "StepCosineLrConfig": "schedule_configs",
        "WarmupConfig": "schedule_configs",
        "LinearWarmupConfig": "schedule_configs",
        "PolynomialWarmupConfig": "schedule_configs",
        "optimization_problems": "requirements",
        "WHOLE_RUN": "requirements",
        "build_schedule": "schedule",
        "build_optimizer": "optimizer",
        "register_optimizer_cls": "optimizer",
        "UpdateRule": "optimizer",
        "named_mask": "parameter_names",
        "parameter_name": "parameter_names",
        "average_parameters": "averaging",
        "average_weights": "averaging",
        "AverageState": "averaging",
        "scale_loss": "loss_scale",
        "current_loss_scale": "loss_scale",
        "LossScaleState": "loss_scale",
        "compute_gradients": "gradients",
        "update_state": "gradients",
    },
)
