"""Language: its data and its models."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp import data as data
    from trellis.nlp import models as models

__getattr__, __dir__, __all__ = door(__name__, {"data": "data", "models": "models"})
