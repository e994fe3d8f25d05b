"""Models of language."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.models.configs import AlbertEncoderConfig as AlbertEncoderConfig
    from trellis.nlp.models.configs import BertEncoderConfig as BertEncoderConfig
    from trellis.nlp.models.configs import ClsHeadConfig as ClsHeadConfig
    from trellis.nlp.models.configs import EncoderConfig as EncoderConfig
    from trellis.nlp.models.configs import MobileBertEncoderConfig as MobileBertEncoderConfig
    from trellis.nlp.models.configs import PretrainerConfig as PretrainerConfig
    from trellis.nlp.models.rnnlm import RNNLM as RNNLM

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "EncoderConfig": "configs",
        "BertEncoderConfig": "configs",
        "AlbertEncoderConfig": "configs",
        "MobileBertEncoderConfig": "configs",
        "ClsHeadConfig": "configs",
        "PretrainerConfig": "configs",
        "RNNLM": "rnnlm",
    },
)
