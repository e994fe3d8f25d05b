"""Models of language."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.models.rnnlm import RNNLM as RNNLM

__getattr__, __dir__, __all__ = door(__name__, {"RNNLM": "rnnlm"})
