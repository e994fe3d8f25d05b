"""Other people's models and weights."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.bridges.nnx import NNXModel as NNXModel
    from trellis.bridges.keras import KerasModel as KerasModel
    from trellis.bridges.hugging_face import (
        read_hugging_face as read_hugging_face,
        read_hugging_face_config as read_hugging_face_config,
        read_hugging_face_settings as read_hugging_face_settings,
        HuggingFaceSettings as HuggingFaceSettings,
        write_hugging_face as write_hugging_face,
    )
    from trellis.bridges.peft import read_peft as read_peft, write_peft as write_peft
    from trellis.bridges.sentence_transformers import (
        Pooling as Pooling,
        SentenceEmbedding as SentenceEmbedding,
        read_sentence_embedding as read_sentence_embedding,
        sentence_embedding_files as sentence_embedding_files,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
