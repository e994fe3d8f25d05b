"""Text: its data, its models, what is learned from it, what is answered to it, and named experiments."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp import (
        data as data,
        models as models,
        tasks as tasks,
        answers as answers,
        experiments as experiments,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
