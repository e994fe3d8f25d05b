"""A task, run."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.trainer.trainer import (
        Trainer as Trainer,
        StagedTrainer as StagedTrainer,
        build_placement as build_placement,
    )
    from trellis.trainer.replica_trainer import ReplicaTrainer as ReplicaTrainer
    from trellis.trainer.stage import (
        ReplayStart as ReplayStart,
        Stage as Stage,
        StageOutline as StageOutline,
        computing_model as computing_model,
        merged_model as merged_model,
    )
    from trellis.trainer.task_calls import (
        build_task_inputs as build_task_inputs,
        build_task_metrics as build_task_metrics,
        check_shapes as check_shapes,
        start_of as start_of,
    )
    from trellis.trainer.progressive_trainer import ProgressiveTrainer as ProgressiveTrainer
    from trellis.trainer.progressive_policy import (
        ProgressivePolicy as ProgressivePolicy,
        register_policy_cls as register_policy_cls,
        get_policy as get_policy,
    )
    from trellis.trainer.configs import (
        TrainerConfig as TrainerConfig,
        ProgressiveConfig as ProgressiveConfig,
        ProgressiveTrainerConfig as ProgressiveTrainerConfig,
    )
    from trellis.trainer.changes import Change as Change
    from trellis.trainer.default_extensions import metric_name as metric_name, published_name as published_name
else:
    __getattr__, __dir__, __all__ = door(__name__)
