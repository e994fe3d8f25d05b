"""What is learned."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.tasks.configs import DifferentialPrivacyConfig as DifferentialPrivacyConfig
    from trellis.tasks.configs import TaskConfig as TaskConfig

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "TaskConfig": "configs",
        "DifferentialPrivacyConfig": "configs",
    },
)
