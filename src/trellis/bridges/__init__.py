"""Other people's models and weights."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.bridges.hugging_face import read_hugging_face as read_hugging_face
    from trellis.bridges.hugging_face import read_hugging_face_config as read_hugging_face_config
    from trellis.bridges.hugging_face import write_hugging_face as write_hugging_face
    from trellis.bridges.keras import KerasModel as KerasModel
    from trellis.bridges.nnx import NNXModel as NNXModel

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "NNXModel": "nnx",
        "KerasModel": "keras",
        "read_hugging_face": "hugging_face",
        "read_hugging_face_config": "hugging_face",
        "write_hugging_face": "hugging_face",
    },
)
