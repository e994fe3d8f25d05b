"""A task, run."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.trainer.computation import computing_model as computing_model
    from trellis.trainer.configs import ProgressiveConfig as ProgressiveConfig
    from trellis.trainer.configs import ProgressiveTrainerConfig as ProgressiveTrainerConfig
    from trellis.trainer.configs import TrainerConfig as TrainerConfig
    from trellis.trainer.default_extensions import metric_name as metric_name
    from trellis.trainer.default_extensions import published_name as published_name
    from trellis.trainer.outline import Outline as Outline
    from trellis.trainer.outline import Side as Side
    from trellis.trainer.outline import describe_arrays as describe_arrays
    from trellis.trainer.progressive_policy import ProgressivePolicy as ProgressivePolicy
    from trellis.trainer.progressive_policy import get_policy as get_policy
    from trellis.trainer.progressive_policy import register_policy_cls as register_policy_cls
    from trellis.trainer.progressive_trainer import ProgressiveTrainer as ProgressiveTrainer
    from trellis.trainer.trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "Trainer": "trainer",
        "ProgressiveTrainer": "progressive_trainer",
        "ProgressivePolicy": "progressive_policy",
        "register_policy_cls": "progressive_policy",
        "get_policy": "progressive_policy",
        "TrainerConfig": "configs",
        "ProgressiveConfig": "configs",
        "ProgressiveTrainerConfig": "configs",
        "computing_model": "computation",
        "Outline": "outline",
        "Side": "outline",
        "describe_arrays": "outline",
        "metric_name": "default_extensions",
        "published_name": "default_extensions",
    },
)
