"""What leaves the library: models that are served without the code that made them."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.serving.export import PLATFORMS as PLATFORMS
    from trellis.serving.export import ServingFunction as ServingFunction
    from trellis.serving.export import Signature as Signature
    from trellis.serving.export import export_model as export_model
    from trellis.serving.load import LoadedModel as LoadedModel
    from trellis.serving.load import LoadedSignature as LoadedSignature
    from trellis.serving.load import load_model as load_model
    from trellis.serving.manifest import FORMATS as FORMATS
    from trellis.serving.manifest import Format as Format
    from trellis.serving.manifest import check_format as check_format
    from trellis.serving.manifest import find_served_model as find_served_model

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "export_model": "export",
        "Signature": "export",
        "ServingFunction": "export",
        "PLATFORMS": "export",
        "Format": "manifest",
        "FORMATS": "manifest",
        "check_format": "manifest",
        "load_model": "load",
        "find_served_model": "manifest",
        "LoadedModel": "load",
        "LoadedSignature": "load",
    },
)
