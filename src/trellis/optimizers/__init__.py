"""Configs to optax; averages of parameters, and the scale of a loss."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.optimizers.configs import (
        OptimizationConfig as OptimizationConfig,
        BertOptimizationConfig as BertOptimizationConfig,
        OptimizerConfig as OptimizerConfig,
        EMAConfig as EMAConfig,
        ParameterGroupConfig as ParameterGroupConfig,
        GradientClipConfig as GradientClipConfig,
        SGDConfig as SGDConfig,
        SGDExperimentalConfig as SGDExperimentalConfig,
        AdamConfig as AdamConfig,
        AdamExperimentalConfig as AdamExperimentalConfig,
        AdamWeightDecayConfig as AdamWeightDecayConfig,
        AdamWeightDecayExperimentalConfig as AdamWeightDecayExperimentalConfig,
        LAMBConfig as LAMBConfig,
        RMSPropConfig as RMSPropConfig,
        LARSConfig as LARSConfig,
        AdagradConfig as AdagradConfig,
        SLIDEConfig as SLIDEConfig,
        AdafactorConfig as AdafactorConfig,
        AdafactorKerasConfig as AdafactorKerasConfig,
        LrConfig as LrConfig,
        ConstantLrConfig as ConstantLrConfig,
        StepwiseLrConfig as StepwiseLrConfig,
        ExponentialLrConfig as ExponentialLrConfig,
        PolynomialLrConfig as PolynomialLrConfig,
        CosineLrConfig as CosineLrConfig,
        CosineRestartsLrConfig as CosineRestartsLrConfig,
        DirectPowerLrConfig as DirectPowerLrConfig,
        PowerAndLinearDecayLrConfig as PowerAndLinearDecayLrConfig,
        PowerDecayWithOffsetLrConfig as PowerDecayWithOffsetLrConfig,
        StepCosineLrConfig as StepCosineLrConfig,
        WarmupConfig as WarmupConfig,
        LinearWarmupConfig as LinearWarmupConfig,
        PolynomialWarmupConfig as PolynomialWarmupConfig,
    )
    from trellis.optimizers.requirements import optimization_problems as optimization_problems, WHOLE_RUN as WHOLE_RUN
    from trellis.optimizers.schedule import build_schedule as build_schedule
    from trellis.optimizers.optimizer import (
        build_optimizer as build_optimizer,
        register_optimizer_cls as register_optimizer_cls,
        UpdateRule as UpdateRule,
    )
    from trellis.optimizers.averaging import (
        average_parameters as average_parameters,
        average_weights as average_weights,
        AverageState as AverageState,
    )
    from trellis.optimizers.parts import (
        freeze_parameters as freeze_parameters,
        trained_part as trained_part,
        with_part as with_part,
        parameter_paths as parameter_paths,
        matches as matches,
        check_matches as check_matches,
        FrozenState as FrozenState,
    )
    from trellis.optimizers.loss_scale import (
        scale_loss as scale_loss,
        current_loss_scale as current_loss_scale,
        all_finite as all_finite,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
