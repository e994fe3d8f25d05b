"""What is learned."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.tasks.bound_model import BoundModel as BoundModel
    from trellis.tasks.bound_model import lasting_init as lasting_init
    from trellis.tasks.configs import DifferentialPrivacyConfig as DifferentialPrivacyConfig
    from trellis.tasks.configs import DigitsConfig as DigitsConfig
    from trellis.tasks.configs import InputContext as InputContext
    from trellis.tasks.configs import TaskConfig as TaskConfig
    from trellis.tasks.export import export_task as export_task
    from trellis.tasks.models import InferenceStep as InferenceStep
    from trellis.tasks.models import Model as Model
    from trellis.tasks.models import ModelWithItems as ModelWithItems
    from trellis.tasks.models import WrappedModel as WrappedModel
    from trellis.tasks.task import Task as Task
    from trellis.tasks.task_registry import get_task as get_task
    from trellis.tasks.task_registry import register_task_cls as register_task_cls
    from trellis.tasks.warm_start import is_traceable as is_traceable
    from trellis.tasks.warm_start import read_warm_start as read_warm_start
    from trellis.tasks.warm_start import traceable as traceable

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "Task": "task",
        "TaskConfig": "configs",
        "register_task_cls": "task_registry",
        "get_task": "task_registry",
        "InputContext": "configs",
        "InferenceStep": "models",
        "export_task": "export",
        "Model": "models",
        "ModelWithItems": "models",
        "BoundModel": "bound_model",
        "lasting_init": "bound_model",
        "WrappedModel": "models",
        "is_traceable": "warm_start",
        "read_warm_start": "warm_start",
        "traceable": "warm_start",
        "DifferentialPrivacyConfig": "configs",
        "DigitsConfig": "configs",
    },
)
