"""Language: its data, its models, what is learned from it, and named experiments."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp import data as data
    from trellis.nlp import experiments as experiments
    from trellis.nlp import models as models
    from trellis.nlp import tasks as tasks

__getattr__, __dir__, __all__ = door(
    __name__, {"data": "data", "models": "models", "tasks": "tasks", "experiments": "experiments"}
)
