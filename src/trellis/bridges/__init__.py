"""Other people's models, as a pair of `init` and `apply`."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.bridges.keras import KerasModel as KerasModel
    from trellis.bridges.nnx import NNXModel as NNXModel

__getattr__, __dir__, __all__ = door(__name__, {"NNXModel": "nnx", "KerasModel": "keras"})
